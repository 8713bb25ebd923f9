"""On what the wall time of this process goes: seconds by activity, for `Meter`.

A training loop that waits for data, and a controller that waits for its simulator, use the device
less than they could. Each place where that happens adds the seconds to a total of the process; a
worker sends its totals to the process that started it.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

ACTIVITIES = ("reading", "simulating", "encoding", "predicting")
"""Waiting for data from disk; stepping the environment; the encoder on frames; the dynamics model
in a world."""
WORKING, WAITING = "working", "waiting"
"""Of workers: doing jobs, which contains the activities; waiting for the next job."""

_seconds: defaultdict[str, float] = defaultdict(float)
_worker_peak = 0


@contextmanager
def spending(activity: str) -> Iterator[None]:
    """Add the time of the block to the total of `activity`; it costs two microseconds."""
    began = time.perf_counter()
    try:
        yield
    finally:
        _seconds[activity] += time.perf_counter() - began


def spent() -> dict[str, float]:
    """Seconds by activity since this process began, with those of its workers' finished jobs."""
    return dict(_seconds)


def drain() -> dict[str, float]:
    """Seconds by activity since the last call, for a worker to send."""
    taken = dict(_seconds)
    _seconds.clear()
    return taken


def add(seconds: Mapping[str, float], peak_bytes: int) -> None:
    """Add what a worker spent, and its largest memory so far."""
    global _worker_peak
    for activity, more in seconds.items():
        _seconds[activity] += more
    _worker_peak = max(_worker_peak, peak_bytes)


def reset_worker_peak() -> None:
    """Let `worker_peak` begin anew."""
    global _worker_peak
    _worker_peak = 0


def worker_peak() -> int:
    """The largest memory of a worker in bytes, as workers report it; 0 where there was none."""
    return _worker_peak
