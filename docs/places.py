"""The table of docs/elsewhere.md, from what ``benchmarks/chains.py`` wrote."""

from __future__ import annotations

from typing import Any

from tables import markdown_table

from worldmodels.runs.costs import duration


def places(record: dict[str, Any]) -> str:
    """``benchmarks/chains.py``: one run in every place, compared with that of local workers."""
    rows = []
    for row in record["places"]:
        if "lacking" in row:
            rows.append((row["what"], "–", f"not run: this machine lacks {row['lacking']}"))
        elif "failed" in row:
            rows.append((row["what"], "–", "failed"))
        else:
            unlike = ", ".join(row["unlike"])
            rows.append((row["what"], duration(row["seconds"]), unlike or "equal"))
    rows[0] = (*rows[0][:2], "the reference")
    return (
        f"\n{markdown_table(('the smoke preset by', 'time', 'artifacts of all stages'), rows)}\n"
        f"`make chains` on {record['machine']}, commit {record['commit']}: fingerprints of"
        f" {', '.join(record['artifacts'])}, and SHA-256 of the files that later stages read. Times"
        " contain installation and start.\n\n"
    )
