"""The tables of rounds, from what ``stage=iterate`` wrote."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tables
from over_seeds import with_interval, with_range

from worldmodels.files.atomic import read_json
from worldmodels.reporting.progress import progress_of
from worldmodels.reporting.rounds import ROUNDS, STAGES, round_folders
from worldmodels.reporting.scores import SCORE_HEADER, score_rows
from worldmodels.runs.manifests import MANIFEST


def taken(folder: Path) -> dict[str, Any]:
    """What the pages need of a run of ``stage=iterate``: its rounds, and its last agent.

    Args:
        folder: of the run, in that of all runs, where the base of its first round is.

    Returns:
        ``rounds``, as `worldmodels.reporting.rounds.round_record` has them; ``wall_s``
        and ``cpu_s`` of all their stages; ``points``, as
        `worldmodels.reporting.progress.progress_of` has them; ``scores`` of the last agent, and the
        manifests of its ``stages``.

    Raises:
        SystemExit: a round is not finished.
    """
    entries = read_json(folder / ROUNDS)["rounds"]
    begun = folder / f"round-{len(entries) + 1}"
    if begun.exists():
        raise SystemExit(f"{begun}: not finished; run the same command again before")
    newest = entries[-1]["name"]
    folders = round_folders(folder / newest, folder.parent)
    stages = [
        {stage: read_json(folders[f"{entry['name']}/{stage}"] / MANIFEST) for stage in STAGES}
        for entry in entries
    ]
    return {
        "rounds": entries,
        "wall_s": sum(manifest["wall_s"] for found in stages for manifest in found.values()),
        "cpu_s": sum(m["resources"]["cpu_s"] for found in stages for m in found.values()),
        "steps": sum(found["controller"]["summary"]["steps"] for found in stages),
        "points": progress_of(folders).points,
        "scores": read_json(folders[f"{newest}/evaluate"] / "scores.json"),
        "stages": stages[-1],
    }


def scores(record: dict[str, Any]) -> str:
    """The agents of the rounds, in the environment and in the dream."""
    policies = [tables.score_of(name, one) for name, one in record["scores"].items()]
    return tables.markdown_table(SCORE_HEADER, score_rows(policies, []))


def by_round(runs: Sequence[dict[str, Any]]) -> str:
    """What the agents of all rounds earned, and in brackets what the model predicted; frames are
    the least and the greatest number over the seeds, in thousands.

    Args:
        runs: as `taken` returns them.
    """
    rows = []
    for number in range(max(len(run["rounds"]) for run in runs)):
        entries = [run["rounds"][number] if number < len(run["rounds"]) else None for run in runs]
        returns = [
            f"{entry['earned']['mean']:.0f} ({entry['predicted']['mean']:.0f})" if entry else ""
            for entry in entries
        ]
        frames = [entry["frames"]["total"] for entry in entries if entry]
        ends = dict.fromkeys(f"{round(one, -3):,}" for one in (min(frames), max(frames)))
        rows.append((str(number + 1), " to ".join(ends), *returns))
    seeds = [f"seed {run['seed']}" for run in runs]
    return tables.markdown_table(("round", "frames so far", *seeds), rows)


def variants(record: dict[str, Any]) -> str:
    """Variants of later rounds, each beside the preset's own with the same seed.

    A value is the mean over seeds, with the least and the greatest of them in brackets; the
    difference from the preset has its 95 % interval by Student's t, from three seeds on.

    Args:
        record: of ``benchmarks/round_variants.py``.
    """
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for row in record["rows"]:
        found.setdefault(row["row"], {})[row["seed"]] = row
    preset = found["preset"]
    rows = []
    for name, by_seed in found.items():
        runs = list(by_seed.values())
        paired = [_all_rounds(run) - _all_rounds(preset[run["seed"]]) for run in runs]
        longest = [run["by_horizon"][-1][-1] for run in runs]
        rows.append(
            (
                runs[0]["what"],
                str(len(runs)),
                with_range([_all_rounds(run) for run in runs], ".0f"),
                "" if name == "preset" else with_interval(paired, "+.0f"),
                with_range([run["earned"][-1] for run in runs], ".0f"),
                with_range([one["predicted"] - one["earned"] for one in longest], ".0f"),
                with_range([run["frames"] for run in runs], ",.0f"),
                f"{statistics.mean(run['cpu_s'] for run in runs) / 60:.0f}",
            )
        )
    steps = {run["by_horizon"][-1][-1]["steps"] for row in found.values() for run in row.values()}
    first, last = record["rounds"]
    header = (
        f"rounds {first} to {last}",
        "seeds",
        "mean return",
        "difference from the preset",
        f"round {last}",
        f"predicted minus real return, {'/'.join(map(str, sorted(steps)))} steps",
        f"frames, rounds 1 to {last}",
        "CPU minutes",
    )
    return tables.markdown_table(header, rows)


def _all_rounds(run: dict[str, Any]) -> float:
    return float(statistics.mean(run["earned"]))
