"""Learning curves of CMA-ES searches: the score over steps and over time."""

from __future__ import annotations

from pathlib import Path

from worldmodels.files.atomic import JsonLines
from worldmodels.reporting.learning import Point
from worldmodels.runs.tracking import read_metrics


def learning_curve(folder: Path) -> list[Point]:
    """The points of a search, in the order of its generations.

    Args:
        folder: of a stage controller, with ``metrics.csv`` and ``generations.jsonl``.

    Raises:
        ArtifactError: ``metrics.csv`` is damaged.
    """
    means = {
        step: value
        for step, name, value, _ in read_metrics(folder / "metrics.csv")
        if name == "selection/mean"
    }
    points = []
    steps, seconds = 0, 0.0
    for record in JsonLines(folder / "generations.jsonl").read():
        steps, seconds = steps + record["steps"], seconds + record["seconds"]
        if (number := record["generation"] + 1) in means:
            points.append(Point(steps, round(seconds, 1), round(means[number], 2)))
    return points
