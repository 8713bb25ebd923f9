"""SIGTERM and SIGINT as a request to stop, which long work handles at its next safe point."""

from __future__ import annotations

import signal
from types import FrameType

from worldmodels.errors import Stopped

_received: int | None = None


def install() -> None:
    """Turn SIGTERM and SIGINT into a request; a second SIGINT interrupts at once."""
    signal.signal(signal.SIGTERM, _note)
    signal.signal(signal.SIGINT, _note)


def _note(number: int, frame: FrameType | None) -> None:
    global _received
    if _received == signal.SIGINT == number:
        raise KeyboardInterrupt
    _received = number


def requested() -> bool:
    """Whether a signal has requested the process to stop."""
    return _received is not None


def check() -> None:
    """Raise `Stopped` if a signal has requested it. Call where all progress is saved."""
    if _received is not None:
        raise Stopped(signal.Signals(_received).name)
