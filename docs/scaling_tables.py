"""The tables of docs/ray.md, from what ``benchmarks/scaling.py`` and ``overlap.py`` wrote."""

from __future__ import annotations

import statistics
from typing import Any

from tables import _table


def measured(record: dict[str, Any]) -> str:
    """Generations an hour of each pool and number of workers, and where the time went."""
    rows = [
        [
            pool["backend"],
            str(pool["workers"]),
            f"{pool['generations_per_hour']:,.0f}",
            *(f"{100 * pool[share]:.0f} %" for share in ("computing", "last_job", "messages")),
        ]
        for pool in record["pools"]
    ]
    header = ["workers", "number", "generations/h", "computing", "waiting for the last job"]
    return _table([*header, "messages and the rest"], rows)


def simulated(record: dict[str, Any]) -> str:
    """Generations an hour and shares of the workers' time, by cluster and size of jobs."""
    rows = []
    for one in record["simulated"]:
        shares = ("computing", "last_job", "update", "messages", "process_use", "network_use")
        rows.append(
            [
                f"{one['workers']:,}",
                str(one["num_envs"]),
                "overlap" if one["overlap"] else "wait",
                f"{one['generations_per_hour']:,.0f}",
                *(f"{100 * one[share]:.0f} %" for share in shares),
            ]
        )
    header = ["workers", "environments in a job", "generations", "generations/h", "computing"]
    header += ["waiting for the last job", "waiting for CMA-ES", "messages"]
    return _table([*header, "use of the process", "use of its network"], rows)


def overlap(record: dict[str, Any]) -> str:
    """Scores on the selection seeds, with and without overlapping generations."""
    rows = []
    for chosen in (False, True):
        runs = [run for run in record["runs"] if run["overlap"] is chosen]
        scores = {
            generation: [run["scores"][generation] for run in runs]
            for generation in runs[0]["scores"]
        }
        rows.append(
            [
                str(chosen).lower(),
                *(
                    f"**{statistics.mean(values):.0f}** ({', '.join(f'{v:.0f}' for v in values)})"
                    for values in scores.values()
                ),
            ]
        )
    generations = record["runs"][0]["scores"]
    return _table(["`controller.overlap`", *(f"generation {g}" for g in generations)], rows)
