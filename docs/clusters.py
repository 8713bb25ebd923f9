"""The tables of docs/ray.md, from what ``benchmarks/scaling.py`` and ``overlap.py`` wrote."""

from __future__ import annotations

import statistics
from typing import Any

from tables import markdown_table

ENOUGH = 0.95
"""Above this share of the time a shared resource counts as saturated."""


def measured(record: dict[str, Any]) -> str:
    """``benchmarks/scaling.py``: generations of a small search by workers of this machine."""
    rows = [
        (
            "local" if pool["backend"] == "local" else "Ray",
            str(pool["workers"]),
            f"{pool['generations_per_hour']:,.0f}",
            f"{pool['computing']:.1%}",
            f"{pool['last_job']:.1%}",
            f"{pool['messages']:.1%}",
        )
        for pool in record["pools"]
    ]
    header = ("workers", "number", "generations/hour", "doing jobs", "last job", "communication")
    size, ray = record["generation"], record["ray"]
    return markdown_table(header, rows) + (
        f"\nGenerations of {size['population']} candidates, {size['episodes']} episodes of"
        f" {size['steps']} steps each, {size['num_envs']} environments in a job;"
        f" {record['machine']}; commit {record['commit']}. On Ray a job"
        f" and its result are {ray['message'] / 1e3:.1f} kB, keep the process of the search busy"
        f" for {ray['handling'] * 1e3:.2f} ms, and are under way for"
        f" {ray['latency'] * 1e3:.2f} ms.\n"
    )


def simulated(record: dict[str, Any]) -> str:
    """``benchmarks/scaling.py``: the same search at the paper's size, by more workers.

    Of the numbers of environments in a job, the one with the most generations an hour.
    """
    slowest_first = sorted(record["simulated"], key=lambda row: row["generations_per_hour"])
    fastest = {(row["workers"], row["overlap"]): row for row in slowest_first}
    rows = [
        (
            f"{row['workers']:,}",
            str(row["num_envs"]),
            "true" if row["overlap"] else "false",
            f"{row['generations_per_hour']:,.0f}",
            f"{row['computing']:.0%}",
            f"{row['last_job']:.0%}",
            f"{row['update'] + row['messages']:.1%}",
            _first(row),
        )
        for _, row in sorted(fastest.items())
    ]
    header = [
        *("workers", "environments in a job", "`controller.overlap`", "generations/hour"),
        *("doing jobs", "last job", "communication, update", "what limits"),
    ]
    return markdown_table(header, rows)


def _first(row: dict[str, Any]) -> str:
    """What keeps the workers from computing, or that nothing does for more than a tenth."""
    if row["process_use"] > ENOUGH:
        return "the process of the search"
    if row["network_use"] > ENOUGH:
        return "its network connection"
    if row["last_job"] > 0.1:
        return "the end of a generation"
    return "computing"


def overlap(record: dict[str, Any]) -> str:
    """``benchmarks/overlap.py``: scores on the selection seeds, with and without overlap."""
    generations = list(record["runs"][0]["scores"])
    rows = []
    for value in (False, True):
        runs = [run for run in record["runs"] if run["overlap"] is value]
        cells = [
            ", ".join(f"{run['scores'][generation]:.0f}" for run in runs)
            + f" (mean {statistics.mean(run['scores'][generation] for run in runs):.0f})"
            for generation in generations
        ]
        rows.append((f"`{str(value).lower()}`", *cells))
    header = ("`controller.overlap`", *(f"generation {number}" for number in generations))
    return markdown_table(header, rows) + f"\nCommit {record['commit']}.\n"
