"""Commands of a benchmark, each in a process of its own."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence


def run_all(commands: Iterable[Sequence[str]], listed: bool = False) -> None:
    """Run commands one after another; a finished stage among them takes a second or two.

    Args:
        commands: of ``python``; this interpreter runs them.
        listed: print them instead, one a line.

    Raises:
        SystemExit: one of them failed; with its exit code.
    """
    for command in commands:
        if listed:
            print(shlex.join(command))
            continue
        done = subprocess.run([sys.executable, *command[1:]], check=False)
        if done.returncode:
            raise SystemExit(done.returncode)
