"""Variants of the later rounds of ``preset=dream-rounds``, three seeds: hours a seed on one core.

    python benchmarks/round_variants.py                     # every row, seed by seed
    python benchmarks/round_variants.py --seed 2            # one seed
    python benchmarks/round_variants.py horizon-5 --seed 2  # one row of it
    python benchmarks/round_variants.py --list              # the commands, one a line

Rounds 1 to 8 are those of the preset and are run once for each seed. Each row continues them with
rounds 9 to 12, in which some keys have other values, so that rows of one seed differ in these
rounds alone. Two rows have an ensemble in all rounds, and the first eight of their own in common.
Agents are evaluated on the same 100 tracks, on which no choice is made. Finished rounds are
skipped, so that the script can be stopped and started again; it then writes what is finished to
``round_variants.json``, with the rows that are there already. Once the first rounds of a seed are
finished, its rows can run beside each other.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from commands import changed, run_all

from worldmodels.files.atomic import read_json
from worldmodels.reporting.rounds import ROUNDS
from worldmodels.runs.provenance import provenance
from worldmodels.runs.tracking import say

SEEDS = (1, 2, 3)
COMMON, LAST = 8, 12
"""The last round that rows have in common, and the last of all."""
BEGINNINGS: dict[str, tuple[str, ...]] = {"common": (), "members": ("rnn.members=3",)}
"""Names of the rounds that rows have in common, with the overrides of all rounds of these rows."""
EVALUATION = {"episodes": 100, "first_seed": 43_000}
PRESET = Path(__file__).resolve().parents[1] / "conf" / "preset" / "dream-rounds.yaml"


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Args:
        name: on the command line, and of its runs.
        what: its first cell.
        changes: keys of rounds 9 to 12 that differ from those of rounds 1 to 8 or from the
            preset, as nested mappings.
        beginning: of `BEGINNINGS`.
    """

    name: str
    what: str
    changes: dict[str, Any] = field(default_factory=dict)
    beginning: str = "common"


ROWS = (
    Row("preset", "the preset"),
    Row(
        "random-data",
        "episodes of random actions in place of the controller's",
        {"rollouts": {"policy": "action_noise", "action_noise": 0.6}},
    ),
    Row("failure-share", "`rnn.failure_share=0.3`", {"rnn": {"failure_share": 0.3}}),
    Row(
        "branches",
        "two branches of each failure, `rollouts.noise=0.05`, without mirrored episodes",
        {"rollouts": {"branches": 2, "branch_steps": 12, "noise": 0.05, "mirrored_share": 0}},
    ),
    Row("one-sided", "without mirrored episodes", {"rollouts": {"mirrored_share": 0}}),
    Row(
        "failure-starts", "`controller.failure_starts=0.3`", {"controller": {"failure_starts": 0.3}}
    ),
    Row("horizon-5", "horizon of 5 steps", {"actor_critic": {"horizon": 5}}),
    Row("horizon-30", "horizon of 30 steps", {"actor_critic": {"horizon": 30}}),
    Row("no-noise", "episodes without action noise", {"rollouts": {"action_noise": 0}}),
    Row("three", "`rnn.members=3` in all rounds", {}, "members"),
    Row(
        "pessimism",
        "`rnn.members=3` in all rounds, `controller.pessimism=1`",
        {"controller": {"pessimism": 1}},
        "members",
    ),
)


def schedule(changes: dict[str, Any]) -> list[dict[str, Any]]:
    """The preset's schedule up to the last round, and what a row changes.

    Args:
        changes: of `Row`.
    """
    kept = [
        one
        for one in yaml.safe_load(PRESET.read_text())["iterate"]["schedule"]
        if one["round"] <= LAST
    ]
    kept.append({"round": COMMON + 1, **changes, "evaluate": EVALUATION})
    return sorted(kept, key=lambda one: one["round"])


def run_name(name: str, seed: int) -> str:
    """The run of a row, or of the rounds that rows have in common.

    Args:
        name: of the row, or of `BEGINNINGS`.
        seed: of the run.
    """
    return f"round-variants/{name}-{seed}"


def first_rounds(beginning: str, seed: int, data: Path) -> list[str]:
    """The command of the rounds that rows have in common.

    Args:
        beginning: of `BEGINNINGS`.
        seed: of the run.
        data: folder of the runs.
    """
    return _command(beginning, BEGINNINGS[beginning], COMMON, {}, seed, data)


def command(row: Row, seed: int, data: Path) -> list[str]:
    """The command of a row.

    Args:
        row: the row.
        seed: of the run.
        data: folder of the runs.
    """
    return _command(row.name, BEGINNINGS[row.beginning], LAST, row.changes, seed, data)


def _command(
    name: str,
    overrides: tuple[str, ...],
    rounds: int,
    changes: dict[str, Any],
    seed: int,
    data: Path,
) -> list[str]:
    return [
        *("python", "-m", "worldmodels", "stage=iterate", "preset=dream-rounds"),
        *(f"seed={seed}", f"run={run_name(name, seed)}", f"data={data}", *overrides),
        f"iterate.rounds={rounds}",
        f"iterate.schedule={_flow(schedule(changes))}",
    ]


def _flow(value: Any) -> str:
    """A value in the grammar of Hydra's command line."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_flow(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_flow, value)) + "]"
    return json.dumps(value)


def begin(row: Row, seed: int, data: Path) -> None:
    """Give a row its first rounds.

    They are hard links, since no stage changes a file in place; but for lock files, which would be
    those of all rows.

    Args:
        row: the row.
        seed: of the run.
        data: folder of the runs.
    """
    common, own = data / run_name(row.beginning, seed), data / run_name(row.name, seed)
    for number in range(1, COMMON + 1):
        target = own / f"round-{number}"
        if not target.exists():
            part = own / f"round-{number}.part"
            shutil.rmtree(part, ignore_errors=True)
            locks = shutil.ignore_patterns(".*.lock")
            shutil.copytree(common / f"round-{number}", part, ignore=locks, copy_function=os.link)
            part.rename(target)


def finished(name: str, seed: int, data: Path) -> list[dict[str, Any]]:
    """The finished rounds of a run; see `run_name`."""
    path = data / run_name(name, seed) / ROUNDS
    rounds: list[dict[str, Any]] = read_json(path)["rounds"] if path.exists() else []
    return rounds


def measure(row: Row, seed: int, data: Path) -> dict[str, Any] | None:
    """Rounds 9 to 12 of a run, or None where they are not finished.

    Args:
        row: the row.
        seed: of the run.
        data: folder of the runs.
    """
    entries = finished(row.name, seed, data)[COMMON:]
    if len(entries) < LAST - COMMON:
        return None
    folders = [data / run_name(row.name, seed) / entry["name"] for entry in entries]
    scores = [read_json(folder / "evaluate" / "scores.json")["agent"] for folder in folders]
    manifests = [
        read_json(folder / stage / "manifest.json")
        for folder in folders
        for stage in ("rollouts", "vae", "rnn", "controller")
    ]
    return {
        "row": row.name,
        "what": row.what,
        "changes": row.changes,
        "overrides": BEGINNINGS[row.beginning],
        "seed": seed,
        "earned": [score["mean"] for score in scores],
        "interval": scores[-1]["interval"],
        "by_horizon": [entry["by_horizon"] for entry in entries],
        "predicted": [entry["predicted"]["mean"] for entry in entries],
        "frames": entries[-1]["frames"]["total"],
        "cpu_s": sum(manifest["resources"]["cpu_s"] for manifest in manifests),
        "commit": manifests[-1]["commit"],
    }


def main() -> None:
    """Run what is missing of the rows that are named, and write what is finished."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = {row.name: row for row in ROWS}
    parser.add_argument("rows", nargs="*", help=f"of {', '.join(names)}; all without")
    parser.add_argument("--seed", type=int, action="append", help="one or more; 1, 2 and 3 without")
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--list", action="store_true", help="print the commands instead")
    options = parser.parse_args()
    if unknown := sorted(set(options.rows) - set(names)):
        parser.error(f"{unknown[0]}: the rows are {', '.join(names)}")
    rows = [names[name] for name in options.rows or names]
    for seed in options.seed or SEEDS:
        for beginning in dict.fromkeys(row.beginning for row in rows):
            words = first_rounds(beginning, seed, options.data)
            # A process that runs other rows may be reading finished ones.
            if options.list or len(finished(beginning, seed, options.data)) < COMMON:
                run_all([words], options.list)
        for row in rows:
            if not options.list:
                begin(row, seed, options.data)
            run_all([command(row, seed, options.data)], options.list)
            if not options.list:
                keep(options.data)


def keep(data: Path) -> None:
    """Write the finished rows; those of ``round_variants.json`` whose runs are gone stay.

    Args:
        data: folder of the runs and of the file.
    """
    path, about = data / "round_variants.json", provenance()
    measured = [measure(row, seed, data) for seed in SEEDS for row in ROWS]
    with changed(path) as record:
        rows = [*record.get("rows", []), *(row for row in measured if row is not None)]
        found = {(row["row"], row["seed"]): row for row in rows}
        record |= {**about, "rounds": [COMMON + 1, LAST], **EVALUATION, "rows": [*found.values()]}
    say(f"round_variants: {len(found)} rows in {path}")


if __name__ == "__main__":
    main()
