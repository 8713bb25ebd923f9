"""Standard streams that may be closed, or whose reader is gone."""

from __future__ import annotations

import os
import sys

from worldmodels.errors import system_error

OUTPUT = "standard output"


def open_closed() -> None:
    """Give each standard stream that is closed (``>&-``) the null device.

    Otherwise the next file that is opened gets its descriptor, and receives what libraries print.
    """
    while True:
        descriptor = os.open(os.devnull, os.O_RDWR)
        if descriptor > 2:
            os.close(descriptor)
            break
        os.set_inheritable(descriptor, True)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115, it stays open to the end


_silent = False


def silence() -> None:
    """Let `print_error` do nothing from now on: another process prints the line."""
    global _silent
    _silent = True


def print_error(line: str) -> None:
    """Write a line to standard error; does nothing where that is closed."""
    if _silent:
        return
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:
        _to_nowhere(2)


def flush_output() -> bool:
    """Flush standard output; returns False, after an error line, where that fails."""
    try:
        sys.stdout.flush()
    except OSError as error:
        close_output()
        print_error(f"error: {system_error(error, OUTPUT)}")
        return False
    return True


def close_output() -> None:
    """Drop what could not be written, or the interpreter would try again at its exit."""
    _to_nowhere(1)


def _to_nowhere(descriptor: int) -> None:
    """Let what is written to a stream from now on go to the null device."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)
