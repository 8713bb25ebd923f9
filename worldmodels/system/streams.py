"""Standard streams that may be closed, or that nobody reads."""

from __future__ import annotations

import os
import sys

from worldmodels.errors import system_error

OUTPUT = "standard output"


def open_closed() -> None:
    """Give each standard stream that is closed (``>&-``) the null device.

    Or the next file that is opened would get its number, and what libraries print with it.
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
    """Let `tell` do nothing from now on: another process says it."""
    global _silent
    _silent = True


def tell(line: str) -> None:
    """Write a line to standard error, if it takes any."""
    if _silent:
        return
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:
        _to_nowhere(2)


def flush_output() -> bool:
    """Write what is pending to standard output; whether it took it. Tells if it did not."""
    try:
        sys.stdout.flush()
    except OSError as error:
        close_output()
        tell(f"error: {system_error(error, OUTPUT)}")
        return False
    return True


def close_output() -> None:
    """Drop what standard output did not take, or the interpreter tries again when it ends."""
    _to_nowhere(1)


def _to_nowhere(descriptor: int) -> None:
    """Let what is written to a stream from now on go to the null device."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)
