"""The tables of model-free baselines, from what ``benchmarks/baselines.py`` wrote."""

from __future__ import annotations

import statistics
from typing import Any

import tables
from over_seeds import with_interval


def baselines(record: dict[str, Any], table: str) -> str:
    """A row for each way to train: means over seeds, with 95 % intervals by Student's t.

    Args:
        record: of the benchmark: its ``runs``, and by row the ``tuning`` of the learning rate.
        table: ``environment`` or ``learned``.
    """
    runs = [run for run in record["runs"] if run["table"] == table]
    dreamt = any("predicted" in run["returns"] for run in runs)
    header = (
        *("trained by", "seeds", "score", "random policy"),
        *(("predicted",) if dreamt else ("learning rate", "its mean returns in tuning")),
        *("steps, M", "hours", "CPU hours"),
    )
    rows = []
    for name in dict.fromkeys(run["name"] for run in runs):
        mine = [run for run in runs if run["name"] == name]
        tuned = sorted((float(rate), mean) for rate, mean in record["tuning"].get(name, {}).items())
        tuning = ", ".join(f"{rate:g}: {mean:.0f}" for rate, mean in tuned)
        rows.append(
            (
                mine[0]["what"],
                str(len(mine)),
                with_interval(_means(mine, "agent"), ".0f"),
                f"{statistics.mean(_means(mine, 'random')):.0f}",
                *(
                    (with_interval(_means(mine, "predicted"), ".0f"),)
                    if dreamt
                    else (f"{mine[0]['learning_rate']:g}", tuning or "–")
                ),
                *(
                    f"{statistics.mean(run[key] / unit for run in mine):.2f}"
                    for key, unit in _COSTS
                ),
            )
        )
    return tables.markdown_table(header, rows)


_COSTS = (("steps", 1e6), ("wall_s", 3600), ("cpu_s", 3600))
"""Key and unit."""


def _means(runs: list[dict[str, Any]], who: str) -> list[float]:
    """The mean return of each run."""
    return [statistics.mean(run["returns"][who]) for run in runs]
