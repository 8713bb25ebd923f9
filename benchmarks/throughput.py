"""Throughput of every part beside the plain loops of ``plain.py``.

    make bench                     # every row: 20 minutes
    make bench rows="vae dream"    # some of them

Each measurement is a process of its own. The plain loop and ours take turns, so that other load
of the machine affects both; a ratio is the median of the ratios of the turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pipeline
import plain
from rich.table import Table

from worldmodels.envs.envpool_engine import envpool_has
from worldmodels.files.atomic import write_json
from worldmodels.runs.provenance import provenance
from worldmodels.runs.tracking import console, say
from worldmodels.system.cores import available_cores
from worldmodels.system.resources import Meter


@dataclass(frozen=True)
class Figure:
    """One line of the table.

    Args:
        what: is measured.
        ours: function of ``pipeline.py``; also the name of the line on the command line.
        plain: function of ``plain.py``.
        a_core: the plain loop uses one core where ours uses all: compare by the core.
    """

    what: str
    unit: str
    ours: str
    plain: str
    a_core: bool = False


FIGURES = (
    Figure("driving, Gymnasium", "frames/s", "rollouts_gymnasium", "rollouts", True),
    Figure("driving, EnvPool", "frames/s", "rollouts_envpool", "rollouts", True),
    Figure("driving, native", "frames/s", "rollouts_native", "rollouts", True),
    Figure("VAE training", "images/s", "vae", "vae"),
    Figure("MDN-RNN training", "transitions/s", "rnn", "rnn"),
    Figure("control, EnvPool", "steps/s", "real_control_envpool", "real_control", True),
    Figure("control, native", "steps/s", "real_control", "real_control", True),
    Figure("control in the dream", "steps/s", "dream", "dream"),
    Figure("control in Doom's dream", "steps/s", "dream_doom", "dream_doom"),
)


def measure(
    module: str,
    function: str,
    folder: Path,
    seconds: float,
    variables: Mapping[str, str] | None = None,
) -> tuple[float, int]:
    """Rate and peak memory in bytes (of the largest process) of one function, in a new process.

    `variables` are added to its environment.
    """
    command = [sys.executable, __file__, f"--measure={module}.{function}"]
    command += [f"--folder={folder}", f"--seconds={seconds}"]
    environment = {**os.environ, **(variables or {})}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise SystemExit(f"{module}.{function} failed:\n{done.stderr}")
    record = json.loads(done.stdout.splitlines()[-1])
    return record["rate"], record["peak_bytes"]


def measure_here(name: str, folder: Path, seconds: float) -> None:
    """Run in the new process: print the rate and the peak as JSON."""
    module, function = name.split(".")
    meter = Meter()
    rate = getattr({"plain": plain, "pipeline": pipeline}[module], function)(folder, seconds)
    print(json.dumps({"rate": rate, "peak_bytes": max(meter.read()["peak_bytes"].values())}))


def main() -> None:
    """Measure, print the table, and write it as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = [figure.ours for figure in FIGURES]
    parser.add_argument("rows", nargs="*", help=f"of {', '.join(known)}; none is all of them")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of a measurement")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each pair")
    parser.add_argument("--out", type=Path, default=Path("data/throughput.json"))
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure_here(options.measure, options.folder, options.seconds)
        return
    if unknown := set(options.rows) - set(known):
        parser.error(f"rows: {', '.join(sorted(unknown))}: choose from {', '.join(known)}")
    figures = [f for f in FIGURES if f.ours in options.rows or not options.rows]
    figures = [f for f in figures if "EnvPool" not in f.what or envpool_has("CarRacing-v3")]
    records = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        say("bench: recording the episodes that every row starts from")
        pipeline.prepare(folder)
        for figure in figures:
            turns = []
            for number in range(options.rounds):
                pair = (("plain", figure.plain), ("pipeline", figure.ours))
                turn = [measure(*loop, folder, options.seconds) for loop in pair]
                say(
                    f"bench: {figure.what} ({figure.ours}), turn {number + 1} of {options.rounds}:"
                    f" plain loop {turn[0][0]:,.0f}, here {turn[1][0]:,.0f} {figure.unit}"
                )
                turns.append(turn)
            records.append(summary(figure, turns))
    write_json(options.out, {**provenance(), "cores": available_cores(), "figures": records})
    console.print(table(records))
    console.print(f"wrote {options.out}")


def summary(figure: Figure, turns: list[list[tuple[float, int]]]) -> dict[str, object]:
    """Medians over the turns of (plain, ours)."""
    cores = available_cores() if figure.a_core else 1
    return {
        "what": figure.what,
        "unit": figure.unit,
        "plain": statistics.median(turn[0][0] for turn in turns),
        "ours": statistics.median(turn[1][0] for turn in turns),
        "plain_cores": 1 if figure.a_core else available_cores(),
        "ratio": statistics.median(turn[1][0] / cores / turn[0][0] for turn in turns),
        "plain_peak_bytes": max(turn[0][1] for turn in turns),
        "peak_bytes": max(turn[1][1] for turn in turns),
    }


def table(records: list[dict[str, object]]) -> Table:
    """The figures for a terminal."""
    printed = Table("", "unit", "plain loop", "here", "ratio", "peak memory, plain and here")
    for r in records:
        by = " a core" if r["plain_cores"] == 1 else ""
        peaks = [f"{float(str(r[key])) / 1e9:.2f}" for key in ("plain_peak_bytes", "peak_bytes")]
        printed.add_row(
            str(r["what"]),
            str(r["unit"]),
            f"{r['plain']:,.0f}",
            f"{r['ours']:,.0f}",
            f"{r['ratio']:.1f}{by}",
            " and ".join(peaks) + " GB",
        )
    return printed


if __name__ == "__main__":
    main()
