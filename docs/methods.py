"""The figure of docs/results-dream.md: scores against what a run had cost by then."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from worldmodels.reporting.charts import Drawn
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


def methods(
    runs: Mapping[str, Sequence[dict[str, Any]]], baselines: Sequence[dict[str, Any]]
) -> list[Drawn | None]:
    """Scores in CarRacing against environment steps, and against hours.

    Args:
        runs: label -> the results of runs that differ in the seed alone.
        baselines: runs of ``benchmarks/baselines.py``, of which those of its table ``environment``
            are shown.
    """
    shown = {label: [_progress(run) for run in several] for label, several in runs.items()}
    for run in baselines:
        if run["table"] == "environment":
            points = [Point(*point) for point in run["points"]]
            shown.setdefault(run["what"], []).append(Progress(points, False))
    everything = [run for several in runs.values() for run in several]
    random = statistics.mean(run["scores"][RANDOM]["mean"] for run in everything)
    return draw_progress(shown, "CarRacing-v3", random)


def _progress(run: dict[str, Any]) -> Progress:
    """The progress of a run as `render.take_run` or `rounds.taken` keeps it."""
    if "points" in run:
        return Progress([Point(*point) for point in run["points"]], False)
    manifests = {
        stage: Record(Path(stage, "manifest.json"), found) for stage, found in run["stages"].items()
    }
    return Progress(after_all_stages(manifests, [Point(*p) for p in run["curve"]]), True)
