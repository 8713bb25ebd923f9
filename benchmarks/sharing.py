"""Training beside busy processes, with the threads of PyTorch and with the program's own.

    make sharing    # a quarter of an hour

"before" is PyTorch as it comes: every operation is shared by all threads, which spin while they
wait for one another (GNU OpenMP's default). "sleeping" is the same with threads that sleep while
they wait (``worldmodels/system/threads.py``). "after" is the program: it computes two parts of a
batch side by side as well (``worldmodels/training/parts.py``). Each measurement is a process of its
own, and they take turns. The busy processes are endless loops.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pipeline
from throughput import measure

from worldmodels.files.atomic import write_json
from worldmodels.runs.provenance import provenance
from worldmodels.runs.tracking import say
from worldmodels.system.cores import available_cores

PARTS = {"vae": "VAE training, images/s", "rnn": "MDN-RNN training, transitions/s"}
SETTINGS: dict[str, tuple[str, dict[str, str]]] = {
    "before": ("_whole", {"GOMP_SPINCOUNT": "300000"}),
    "sleeping": ("_whole", {}),
    "after": ("", {}),
}
"""By name of the setting: what the name of the function ends with, and environment variables."""
NEIGHBOURS = (0, 1, 2)


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """So many endless loops run beside the block."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def main() -> None:
    """Measure, print each figure, and write them as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="length of a measurement")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each pair")
    parser.add_argument("--out", type=Path, default=Path("data/sharing.json"))
    options = parser.parse_args()
    figures = []
    with tempfile.TemporaryDirectory() as name:
        say("sharing: recording the episodes that are trained on")
        pipeline.prepare(Path(name))
        for part, what in PARTS.items():
            for neighbours in NEIGHBOURS:
                turns: dict[str, list[float]] = {setting: [] for setting in SETTINGS}
                for number in range(options.rounds):
                    for setting, (suffix, variables) in SETTINGS.items():
                        with busy(neighbours):
                            rate, _ = measure(
                                "pipeline", part + suffix, Path(name), options.seconds, variables
                            )
                        turns[setting].append(rate)
                        say(
                            f"sharing: {what}, {neighbours} busy processes, {setting}, turn"
                            f" {number + 1} of {options.rounds}: {rate:,.0f}"
                        )
                figures.append({"what": what, "busy": neighbours, "turns": turns})
    record = {**provenance(), "cores": available_cores(), "figures": figures}
    write_json(options.out, record)
    say(f"wrote {options.out}; python docs/render.py {options.out} puts it into the documentation")


if __name__ == "__main__":
    main()
