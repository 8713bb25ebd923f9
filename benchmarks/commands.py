"""What benchmarks whose rows are runs have in common: options, commands, returns."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from worldmodels.files.atomic import read_json, write_json


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


def command_line(
    description: str | None, rows: Sequence[R], seeds: Sequence[int]
) -> tuple[argparse.Namespace, list[R]]:
    """The options of a benchmark, and the rows that are named.

    Args:
        description: for ``--help``.
        rows: to choose from.
        seeds: to choose from; the option ``seeds`` has the chosen ones.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="*", help="tables or table/row to fill; all without")
    parser.add_argument("--seed", type=int, choices=seeds, help="one seed; all without")
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--list", action="store_true", help="print the commands instead")
    parser.add_argument("--smoke", action="store_true", help="next to no data, for a test")
    options = parser.parse_args()
    options.seeds = seeds if options.seed is None else [options.seed]
    return options, rows_named(options.rows, rows, parser)


def finished(runs: Iterable[Mapping[str, Any]], row: Row, seed: int) -> bool:
    """Whether the results of a benchmark have a row with a seed."""
    own = (row.table, row.name, seed)
    return any((run["table"], run["name"], run["seed"]) == own for run in runs)


@contextlib.contextmanager
def changed(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the content of a file of results; as the block leaves it, it is written.

    Other processes that change the file wait meanwhile, so that none loses what another has added.

    Args:
        path: of the file; without it the content is empty.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.lock").open("w") as lock:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        record: dict[str, Any] = read_json(path) if path.exists() else {}
        yield record
        write_json(path, record)


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


def returns_of(scores: Mapping[str, Any], policies: Mapping[str, str]) -> dict[str, list[float]]:
    """The returns of some policies, those that were evaluated, to two digits.

    Args:
        scores: content of ``scores.json``.
        policies: name -> the policy's name in it.
    """
    return {
        name: [round(value, 2) for value in scores[policy]["returns"]]
        for name, policy in policies.items()
        if policy in scores
    }
