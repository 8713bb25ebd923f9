"""The table of exploration, from what ``benchmarks/exploration.py`` wrote."""

from __future__ import annotations

import statistics
from typing import Any

import tables
from over_seeds import with_interval

_MEASURES = (
    ("frames", "frames", ",.0f"),
    ("tiles", "tiles visited", ".1%"),
    ("cells", "cells", ",.0f"),
    ("log_determinant", "log-determinant", ".2f"),
    ("distance", "distance to the test set", ".2f"),
    ("nll", "NLL of the test set", ".3f"),
    ("score", "score", ".0f"),
    ("watched", "television on", ".0%"),
)
"""Key, heading and format of each column."""


def exploration(record: dict[str, Any], table: str) -> str:
    """A row for each way to explore: the mean over seeds, and its 95 % interval by Student's t.

    Args:
        record: of the benchmark.
        table: ``plain`` or ``television``.
    """
    runs = [
        run | {"score": statistics.mean(run["returns"])}
        for run in record["runs"]
        if run["table"] == table
    ]
    shown = [one for one in _MEASURES if any(run[one[0]] is not None for run in runs)]
    rows = []
    for name in dict.fromkeys(run["name"] for run in runs):
        mine = [run for run in runs if run["name"] == name]
        cells = (with_interval([run[key] for run in mine], form) for key, _, form in shown)
        rows.append((mine[0]["what"], str(len(mine)), *cells))
    return tables.markdown_table(("collects", "seeds", *(head for _, head, _ in shown)), rows)
