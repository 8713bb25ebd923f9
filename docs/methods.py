"""A figure and tables of docs/results-dream.md: scores against what a run had cost by then."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tables
from over_seeds import with_interval

from worldmodels.reporting.charts import Drawn, interpolated
from worldmodels.reporting.learning import Point
from worldmodels.reporting.progress import Progress, after_all_stages, draw_progress
from worldmodels.reporting.records import Record
from worldmodels.reporting.scores import RANDOM

METHODS = {
    "CMA-ES, preset=laptop": ("laptop", "laptop-2", "laptop-3"),
    "CMA-ES, preset=quick": ("quick", "quick-2", "quick-3"),
    "learned model only": ("dream-12-1", "dream-12-2", "dream-12-3"),
}
"""Label -> the results of its runs, one for each seed."""
BASELINES = ("ppo", "dqn", "sac")
"""Names of their rows in ``benchmarks/baselines.py``."""
SEEDS = 3


Methods = dict[str, list[Progress]]
"""Label -> the progress of its runs."""
AXES: dict[str, tuple[Callable[[Point], float], dict[float, str]]] = {
    "steps": (
        lambda point: float(point.steps),
        {2e5: "0.2 M", 4e5: "0.4 M", 1.5e6: "1.5 M", 4e6: "4 M", 2e7: "20 M"},
    ),
    "hours": (
        lambda point: point.seconds / 3600,
        {0.1: "0.1 h", 0.2: "0.2 h", 0.4: "0.4 h", 1.0: "1 h"},
    ),
}
"""Name -> what a point had cost, and the costs of a table with their headings."""


def progress(
    runs: Mapping[str, Sequence[dict[str, Any]]], baselines: Sequence[dict[str, Any]]
) -> Methods:
    """What is compared.

    Args:
        runs: label -> the results of runs that differ in the seed alone.
        baselines: runs of ``benchmarks/baselines.py``, of which those of `BASELINES` are taken that
            have `SEEDS` seeds.
    """
    found = {label: [_progress(run) for run in several] for label, several in runs.items()}
    for run in baselines:
        if run["name"] in BASELINES:
            points = [Point(*point) for point in run["points"]]
            found.setdefault(run["what"], []).append(Progress(points, False))
    return {label: several for label, several in found.items() if len(several) == SEEDS}


def figure(methods: Methods, runs: Mapping[str, Sequence[dict[str, Any]]]) -> list[Drawn | None]:
    """Scores in CarRacing against environment steps, and against hours.

    Args:
        methods: of `progress`.
        runs: as of `progress`, from which the score of the random policy is taken.
    """
    everything = [run for several in runs.values() for run in several]
    random = statistics.mean(run["scores"][RANDOM]["mean"] for run in everything)
    return draw_progress(methods, "CarRacing-v3", random)


def table(methods: Methods, axis: str) -> str:
    """A row for each method: the mean over its seeds at each cost, on the lines of the figure of an
    axis of `AXES`.

    A cell has a dash where a seed had not begun, or had ended; a method of dashes has no row.
    """
    cost, shown = AXES[axis]
    rows = []
    for label, several in methods.items():
        lines = [[(cost(point), point.score) for point in run.points] for run in several]
        cells = [_cell(lines, at) for at in shown]
        if set(cells) != {"–"}:
            rows.append((label, *cells))
    return tables.markdown_table(("", *shown.values()), rows)


def _cell(lines: Sequence[Sequence[tuple[float, float]]], at: float) -> str:
    if not all(line[0][0] <= at <= line[-1][0] for line in lines):
        return "–"
    values = [float(interpolated(line, [at], log_x=True)[0]) for line in lines]
    return with_interval(values, ".0f")


def _progress(run: dict[str, Any]) -> Progress:
    """The progress of a run as `render.take_run` or `rounds.taken` keeps it."""
    if "points" in run:
        return Progress([Point(*point) for point in run["points"]], False)
    manifests = {
        stage: Record(Path(stage, "manifest.json"), found) for stage, found in run["stages"].items()
    }
    return Progress(after_all_stages(manifests, [Point(*p) for p in run["curve"]]), True)
