"""The tables of models, from what ``benchmarks/encoders.py``, ``dynamics.py``, ``probe.py``,
``calibration.py``, ``vision.py`` and ``generalisation.py`` wrote, and from runs."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import tables
from over_seeds import SCORE_HEADER, score_cells, with_interval


def encoders(record: dict[str, Any]) -> str:
    """``benchmarks/encoders.py``: parameters and speed of each encoder."""
    header = (
        *("vae.encoder", "frames", "parameters", "training, images/s", "encoding, images/s"),
        "one at a time, images/s",
    )
    rows = [
        (
            figure["encoder"],
            str(figure["frames"]),
            f"{figure['parameters'] / 1e6:.2f} M",
            *(f"{figure[what]:,.0f}" for what in ("training", "encoding", "one")),
        )
        for figure in record["figures"]
    ]
    return tables.markdown_table(header, rows)


def dynamics(record: dict[str, Any]) -> str:
    """``benchmarks/dynamics.py``: parameters and speed of each dynamics model."""
    header = (
        *("rnn.model", "parameters", "training, transitions/s", "dream, steps/s"),
        f"{record['members']} members, steps/s (share of one model)",
    )
    rows = [
        (
            figure["model"],
            f"{figure['parameters'] / 1e6:.2f} M",
            f"{figure['training']:,.0f}",
            f"{figure['dream']:,.0f}",
            f"{figure['ensemble']:,.0f} ({figure['ensemble'] / figure['dream']:.2f})",
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


def calibration(record: dict[str, Any]) -> str:
    """``benchmarks/calibration.py``: returns by horizon, and failures, a row for each agent."""
    figures = record["figures"]
    steps = [horizon["steps"] for horizon in figures[0]["horizons"]]
    header = ["agent", *(f"{count} steps" for count in steps)]
    header += ["windows with a failure", "recall", "precision", "Brier score"]
    rows = []
    for figure in figures:
        pairs = {
            h["steps"]: f"{h['predicted']:.1f} / {h['earned']:.1f}" for h in figure["horizons"]
        }
        failures = figure["failures"]
        shares = (failures["recall"], failures["precision"])
        rows.append(
            [
                figure["name"],
                *(pairs.get(count, "–") for count in steps),
                f"{failures['recorded']} of {failures['windows']}",
                *("–" if share is None else f"{share:.2f}" for share in shares),
                f"{failures['brier']:.3f}",
            ]
        )
    return tables.markdown_table(header, rows)


def vision(record: dict[str, Any]) -> str:
    """``benchmarks/vision.py``: kept regions by size, a row for each agent."""
    figures = record["figures"]
    least = [row["pixels"] for row in figures[0]["sizes"]]
    spans = [f"{one} to {above - 1} pixels" for one, above in pairwise(least)]
    header = ["agent", "frames", *spans, f"{least[-1]} pixels or more"]
    rows = []
    for figure in figures:
        cells = [
            "–" if row["kept"] is None else f"{100 * row['kept']:.0f} % of {row['regions']:,}"
            for row in figure["sizes"]
        ]
        rows.append([figure["name"], f"{figure['frames']:,}", *cells])
    return tables.markdown_table(header, rows)


def dream_speed(record: dict[str, Any]) -> str:
    """``benchmarks/dream_speed.py``: a column for each shipped agent."""
    agents = {"carracing": "CarRacing", "takecover": "Take Cover"}
    parts = ("cell and head", "noise", "sampling", "features", "controller", "loop")
    figures = record["figures"]
    names = dict.fromkeys(part for figure in figures for part in figure["microseconds"])
    (several,) = (name for name in names if name.endswith("members"))
    rows = [
        (f"{part}, µs", *(f"{figure['microseconds'][part]:,.0f}" for figure in figures))
        for part in parts
    ]
    for what, loop in (
        ("loop", "loop"),
        ("noise and sampling by tensor operations", "loop, plain"),
    ):
        cells = (f"{figure['ratio'][loop]:.2f}" for figure in figures)
        rows.append((f"{what} / cell and head", *cells))
    rows.append(("steps/s", *(f"{figure['steps_per_s']:,.0f}" for figure in figures)))
    shares = (figure["ratio"]["loop"] / figure["ratio"][several] for figure in figures)
    rows.append((f"steps/s of the {several} / those of one", *(f"{share:.2f}" for share in shares)))
    header = (f"a step of {record['num_envs']:,} episodes", *(agents[f["agent"]] for f in figures))
    return tables.markdown_table(header, rows)


def generalisation(record: dict[str, Any]) -> str:
    """``benchmarks/generalisation.py``: scores by condition, two columns for each name.

    Of agents of three training seeds or more it is the mean over them, with its 95 % interval by
    Student's t; of one, the mean of episodes with its bootstrap interval. Columns have the
    conditions of the newest one; those in others are left out.
    """
    conditions = [row["condition"] for row in record["figures"][-1]["rows"]]
    columns: dict[str, list[dict[str, dict[str, Any]]]] = {}
    for figure in record["figures"]:
        by_condition = {row["condition"]: row for row in figure["rows"]}
        if by_condition.keys() == set(conditions):
            columns.setdefault(figure["name"], []).append(by_condition)
    header = ["condition"]
    for name, agents in columns.items():
        header += [f"`{name}`" + (f", {len(agents)} seeds" if len(agents) > 1 else ""), "below 500"]
    rows = []
    for condition in conditions:
        cells = [condition]
        for agents in columns.values():
            found = [agent[condition] for agent in agents]
            cells += [_score(found), f"{statistics.mean(row['failed'] for row in found):.0%}"]
        rows.append(cells)
    return tables.markdown_table(header, rows)


def _score(found: Sequence[dict[str, Any]]) -> str:
    """The mean of agents of several seeds, or of one, with its interval."""
    if len(found) > 1:
        return with_interval([row["mean"] for row in found], "z.0f")  # no "-0"
    low, high = found[0]["interval"]
    return f"{found[0]['mean']:.0f} ({low:.0f} to {high:.0f})"


def in_quick(runs: Mapping[str, dict[str, Any]]) -> str:
    """An agent of ``preset=quick`` for each pair of models.

    Args:
        runs: name of the pair -> the run, as `render.take_run` keeps it.
    """
    rows = [
        (name, *score_cells(tables.score_of("agent", run["scores"]["agent"])))
        for name, run in runs.items()
    ]
    return tables.markdown_table(("models", *SCORE_HEADER), rows)
