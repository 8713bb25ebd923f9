"""The tables of docs/plan.md, from what ``benchmarks/plan_accuracy.py`` wrote."""

from __future__ import annotations

from typing import Any

import tables

from worldmodels.runs.costs import duration, size


def plans(records: list[dict[str, Any]]) -> str:
    """``benchmarks/plan_accuracy.py``: the plan of each run beside what its stages took."""
    parts = []
    for record in records:
        rows, sums = [], [0.0, 0.0]
        for row in record["stages"]:
            planned, actual = row["planned"], row["actual"]
            sums = [sums[0] + planned["wall_s"], sums[1] + actual["wall_s"]]
            cells = [duration(one["wall_s"]) for one in (planned, actual)]
            cells.append(f"{planned['wall_s'] / actual['wall_s']:.2f}")
            for one in (planned, actual):
                peaks = one["peak_bytes"]
                cells.append(", ".join(size(peaks[key]) for key in peaks if peaks[key]))
            cells += [size(one["disk_bytes"]) for one in (planned, actual)]
            rows.append([row["stage"], "≤ " * planned["at_most"] + cells[0], *cells[1:]])
        rows.append(["all", *map(duration, sums), f"{sums[0] / sums[1]:.2f}", *[""] * 4])
        header = ["stage", "planned", "took", "planned / took", "memory planned", "memory used"]
        header += ["disk planned", "disk used"]
        what = f"`{' '.join(record['words'])}`: {record['machine']}, {record['cores']} usable,"
        what += f" calibrated in {duration(record['calibration_s'])}; commit {record['commit']}."
        parts.append(f"{what}\n\n{tables.markdown_table(header, rows)}")
    return "\n" + "\n".join(parts)


def took(records: list[dict[str, Any]]) -> str:
    """The lines that the stages of the planned run of ``preset=quick`` ended with."""
    shown = [record for record in records if record["words"] == ["preset=quick"]]
    lines = [row["line"] for record in shown for row in record["stages"]]
    return "\n```text\n" + "\n".join(lines) + "\n```\n\n"
