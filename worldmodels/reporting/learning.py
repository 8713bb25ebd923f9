"""Learning curves of CMA-ES searches against the steps in training, beside the paper's.

Environment steps are those of the simulator, as in `worldmodels.reporting.progress`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from worldmodels.config.choices import Objective, WorldKind
from worldmodels.reporting.charts import Chart, Drawn, draw
from worldmodels.reporting.records import frame_skip, read_record
from worldmodels.runs.tracking import Row, read_metrics


class Point(NamedTuple):
    """The score of the mean of the search distribution after some generations.

    Args:
        steps: environment steps of all candidates until then, without those of evaluations.
        seconds: wall time of the stage until then, evaluations included.
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

PAPER_CURVES = {"CarRacing-v3": PAPER_CURVE}
"""Environment -> the paper's curve of a search in that environment."""


class Search(NamedTuple):
    """The metrics of a controller's search.

    Args:
        rows: of ``metrics.csv``.
        env: id of the environment; None if it was the learned model.
        intrinsic: name of the reward that it maximised, where it was not the task's.
        frame_skip: steps of the simulator for each step of an episode; 1 in the learned model,
            whose steps are counted as they are.
    """

    rows: list[Row]
    env: str | None
    intrinsic: str | None = None
    frame_skip: int = 1


def against_steps(search: Search, metric: str) -> list[tuple[float, float]]:
    """Points (steps in training until then, value) of a metric, in the order of the generations.

    Args:
        search: its steps are those of the simulator, or of the learned model.
        metric: its name; generations without it have no point.
    """
    rows, skip = search.rows, search.frame_skip
    steps = {generation: value for generation, name, value, _ in rows if name == "fitness/steps"}
    values = {generation: value for generation, name, value, _ in rows if name == metric}
    sums = accumulate(skip * steps[generation] for generation in sorted(steps))
    return [
        (total, values[generation])
        for generation, total in zip(sorted(steps), sums, strict=True)
        if generation in values
    ]


def read_search(folder: Path) -> Search:
    """The search of a finished stage ``controller``.

    Raises:
        ArtifactError: a file is damaged.
    """
    manifest = read_record(folder / "manifest.json")
    dream = manifest.group("summary").text("world") == WorldKind.dream.name
    env = None if dream else manifest.group("config").text("env.id")
    summary = manifest.group("summary")
    named = summary.text("objective") if "objective" in summary.fields else Objective.reward.name
    intrinsic = None if named == Objective.reward.name else named
    skip = 1 if dream else frame_skip(manifest)
    return Search(read_metrics(folder / "metrics.csv"), env, intrinsic, skip)


def draw_learning(
    curves: Mapping[str, Sequence[tuple[float, float]]], envs: Collection[str | None]
) -> Drawn | None:
    """A chart of learning curves, with the paper's where all are of searches in its environment.

    Args:
        curves: label -> points (steps, return).
        envs: environments of the searches, as in `Search`.
    """
    rows = [
        (steps, label, value, 0.0) for label, points in curves.items() for steps, value in points
    ]
    if not rows:
        return None
    env = next(iter(envs)) if len(set(envs)) == 1 else None
    paper = PAPER_CURVES.get(env, ()) if env else ()
    rows += [(float(point.steps), _PAPER, point.score, 0.0) for point in paper]
    chart = Chart(
        {label: label for label in curves} | {_PAPER: "mean of CMA-ES, paper"},
        "steps in training" if None in envs else "environment steps",
        "return",
        log_x=bool(paper),
        reference=_PAPER,
    )
    return draw(chart, rows)


_PAPER = "\npaper"
"""A name that no run and no metric has."""
