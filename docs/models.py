"""The tables of models, from what ``benchmarks/dynamics.py`` and ``benchmarks/probe.py`` wrote."""

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


def probe(record: dict[str, Any]) -> str:
    """``benchmarks/probe.py``: R² and RMSE of each regression, a column for each target."""
    units = record["units"]
    header = ["inputs", *(f"{name}: R², RMSE in {unit}" for name, unit in units.items())]
    rows = [
        [
            f"{figure['inputs']} ({figure['features']} features)",
            *(f"{score['r2']:.3f}, {score['rmse']:.2f}" for score in figure["scores"].values()),
        ]
        for figure in record["figures"]
    ]
    spread = ["standard deviation", *(f"{record['std'][name]:.2f}" for name in units)]
    table = tables.markdown_table(header, [*rows, spread])
    return f"{table}\n{record['episodes']} episodes, {record['frames']:,} frames.\n"
