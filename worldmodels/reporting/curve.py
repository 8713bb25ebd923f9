"""How a search for a controller went: its score over steps and over time."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from worldmodels.files import JsonLines
from worldmodels.tracking import read_metrics


class Point(NamedTuple):
    """The search's mean, played on the selection seeds, at one moment."""

    steps: int  # played in training until then, by all candidates
    seconds: float  # spent on them
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
"""The log of the paper's own run in CarRacing-v0: 64 candidates on 16 episodes of 1,000 steps,
1,800 generations in 46.6 days on 64 processes; the mean of its search, played 1,024 times."""


def learning_curve(folder: Path) -> list[Point]:
    """The points of a controller stage's folder, in their order."""
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
