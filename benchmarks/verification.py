"""What it costs to check the files of a run: time of hashes and locks, and of the run's stages.

    python benchmarks/verification.py data/quick

Every file is hashed once for each stage that reads it, from the page cache and again after asking
the kernel to forget it; each stage takes one lock.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import sys
import time
from pathlib import Path

from worldmodels.files.atomic import read_json
from worldmodels.runs.tracking import say

READ_BY = {"rollouts": 3, "vae": 3, "rnn": 2, "controller": 1, "evaluate": 1}
"""How many stages read the files of a stage: vae, rnn and report read the episodes, for one."""

LOCKS = 100
"""Locks taken to time one."""


def seconds_to_hash(folder: Path, forget: bool) -> tuple[float, int]:
    """Time to hash all files of a folder, and their bytes.

    Args:
        folder: with its folders.
        forget: drop the files from the page cache first, as far as the system allows.
    """
    paths = [path for path in folder.rglob("*") if path.is_file()]
    if forget and hasattr(os, "posix_fadvise"):
        for path in paths:
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    began = time.perf_counter()
    for path in paths:
        with path.open("rb") as file:
            hashlib.file_digest(file, "sha256")
    return time.perf_counter() - began, sum(path.stat().st_size for path in paths)


def seconds_to_lock(folder: Path) -> float:
    """Time to open, lock and close a file in a folder."""
    path = folder / f".lock-timing-{os.getpid()}"
    try:
        began = time.perf_counter()
        for _ in range(LOCKS):
            with path.open("a") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return (time.perf_counter() - began) / LOCKS
    finally:
        path.unlink(missing_ok=True)


def main() -> int:
    """Time it, and print the percentage."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="a finished run, for example data/quick")
    run = parser.parse_args().run
    stages = [stage for stage in READ_BY if (run / stage / "manifest.json").exists()]
    if not stages:
        print(f"error: {run}: it has no finished stage; give the folder of a run", file=sys.stderr)
        return 1
    wall = sum(float(read_json(run / stage / "manifest.json")["wall_s"]) for stage in stages)
    for forget in (False, True):
        cost = len(stages) * seconds_to_lock(run)
        total = 0
        for stage in stages:
            seconds, size = seconds_to_hash(run / stage, forget)
            cost += READ_BY[stage] * seconds
            total += READ_BY[stage] * size
        where = "from the disk" if forget else "from memory"
        say(
            f"{total / 1e6:,.0f} MB hashed {where} and {len(stages)} locks: {cost:.3f} s,"
            f" {cost / wall:.3%} of {wall:,.1f} s"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
