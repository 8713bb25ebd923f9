"""The table of dynamics models in docs/concepts.md, from what ``benchmarks/dynamics.py`` wrote."""

from __future__ import annotations

from typing import Any

import tables


def dynamics(record: dict[str, Any]) -> str:
    """``benchmarks/dynamics.py``: parameters and speed of each dynamics model."""
    header = ("rnn.model", "parameters", "training, transitions/s", "dream, steps/s")
    rows = [
        (
            figure["model"],
            f"{figure['parameters'] / 1e6:.2f} M",
            f"{figure['training']:,.0f}",
            f"{figure['dream']:,.0f}",
        )
        for figure in record["figures"]
    ]
    return tables.markdown_table(header, rows)
