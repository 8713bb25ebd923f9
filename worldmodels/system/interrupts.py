"""SIGTERM and SIGINT as a request to stop, which long work handles at its next safe point."""

from __future__ import annotations

import signal
from types import FrameType

from worldmodels.errors import Stopped

_received: int | None = None
_installed = False


def install(*more: signal.Signals) -> None:
    """Turn SIGTERM, SIGINT and `more` into a request; a second SIGINT interrupts at once."""
    global _installed
    _installed = True
    for number in (signal.SIGTERM, signal.SIGINT, *more):
        signal.signal(number, _note)


def installed() -> bool:
    """Whether this process answers signals so."""
    return _installed


def _note(number: int, frame: FrameType | None) -> None:
    global _received
    if _received == signal.SIGINT == number:
        raise KeyboardInterrupt
    _received = number


def requested() -> bool:
    """Whether a signal has requested the process to stop."""
    return _received is not None


def received() -> int:
    """The number of the signal by which the process was asked to stop; 0 for none."""
    return int(_received or 0)


def check() -> None:
    """Raise `Stopped` if a signal has requested it. Call where all progress is saved."""
    if _received is not None:
        raise Stopped(signal.Signals(_received).name)
