"""The stages of ``benchmarks/model_comparison.py``, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from tempfile import TemporaryFile
from typing import IO

from worldmodels.system import interrupts

_NOT_FINITE = "lower the learning rate"
"""In the line of a stage whose loss is not finite."""
_POLL = 0.2
"""Seconds between two looks at a running stage and for a signal."""


class Diverged(Exception):
    """The line of a stage whose loss is not finite."""


def execute(command: list[str]) -> None:
    """Run a stage to its end.

    Raises:
        Stopped: this process was asked to stop; the stage has saved its progress.
        SystemExit: the stage failed.
    """
    _execute(command, None)


def train(command: list[str]) -> None:
    """Run a stage that trains with settings of which it is not known whether they work; its
    standard error is shown at its end.

    Raises:
        Diverged: a loss is not finite.
        Stopped, SystemExit: as of `execute`.
    """
    with TemporaryFile("w+") as errors:
        try:
            _execute(command, errors)
        except SystemExit:
            if _NOT_FINITE in (text := _text(errors)):
                raise Diverged(text.strip()) from None
            raise
        finally:
            sys.stderr.write(_text(errors))


def _text(file: IO[str]) -> str:
    """What another process wrote to a file."""
    file.seek(0)
    return file.read()


def _execute(command: list[str], errors: IO[str] | None) -> None:
    with subprocess.Popen([sys.executable, *command[1:]], stderr=errors) as process:
        while True:
            try:
                code = process.wait(_POLL)
                break
            except subprocess.TimeoutExpired:
                if interrupts.requested():
                    process.terminate()
    interrupts.check()
    if code:
        raise SystemExit(code)
