"""Learning curves of CMA-ES searches: the score over steps and over time; that of the paper."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from worldmodels.files.atomic import JsonLines
from worldmodels.runs.tracking import read_metrics


class Point(NamedTuple):
    """The score of the mean of the search distribution after some generations.

    Args:
        steps: environment steps of all candidates until then.
        seconds: wall time of these steps.
        score: mean return on the selection seeds.
    """

    steps: int
    seconds: float
    score: float


PAPER_CURVE = tuple(
    Point(generation * 64 * 16 * 1000, generation / 1800 * 46.6 * 86400, score)
    for generation, score in (
        (25, 822.9),
        (50, 867.5),
        (200, 880.4),
        (500, 890.6),
        (900, 895.0),
        (1800, 900.5),
    )
)
"""The log of the paper's run in CarRacing-v0 (hardmaru/WorldModelsExperiments): 64 candidates, 16
episodes of 1,000 steps each, 1,800 generations in 46.6 days on 64 processes; score of the mean of
the search distribution over 1,024 episodes."""


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
