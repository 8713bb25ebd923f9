"""What benchmarks whose rows are runs have in common: the choice of rows, and their commands."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar


class Row(Protocol):
    """A row of one of several tables."""

    @property
    def table(self) -> str:
        """The name of the table."""

    @property
    def name(self) -> str:
        """The name of the row in it."""


R = TypeVar("R", bound=Row)


def rows_named(names: Sequence[str], rows: Sequence[R], parser: argparse.ArgumentParser) -> list[R]:
    """The rows that are named on the command line; all of them without names.

    Args:
        names: ``table`` or ``table/row``.
        rows: to choose from.
        parser: ends the process with an error that names an unknown one.
    """
    of = {(row.table, row.name): {row.table, f"{row.table}/{row.name}"} for row in rows}
    known = set().union(*of.values())
    if unknown := sorted(set(names) - known):
        parser.error(f"{unknown[0]}: there are {', '.join(sorted(known))}")
    return [row for row in rows if not names or of[row.table, row.name] & set(names)]


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
