"""The table of docs/play.md, from what ``benchmarks/play.py`` wrote."""

from __future__ import annotations

from typing import Any

import tables


def frames(record: dict[str, Any]) -> str:
    """``benchmarks/play.py``: frames a second of the page, and what a step takes."""
    rows = [
        [
            name,
            f"{figure['frames_per_second']:.0f}",
            *(f"{spent:.1f} ms" for spent in figure["milliseconds"].values()),
        ]
        for name, figure in record["figures"].items()
    ]
    parts = list(next(iter(record["figures"].values()))["milliseconds"])
    return tables.markdown_table(("agent", "frames/s", *parts), rows) + (
        f"\nHeadless Chromium {record['chromium']} on one core, single measurement"
        f" (`benchmarks/play.py`): {record['machine']}; commit {record['commit']}. The controller"
        " drives, with the strip of expected frames, at most 60 frames/s; the columns after it are"
        " the parts of a step without the strip.\n"
    )
