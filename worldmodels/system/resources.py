"""Resource use: CPU seconds and peak memory of the process, its workers and its GPU."""

from __future__ import annotations

import contextlib
import resource
import sys
from pathlib import Path
from typing import Any


class Meter:
    """Measures from when it is made.

    The peak of this process is the stretch's own where Linux lets it be reset, and the process's
    so far elsewhere; that of the workers is the largest of all that have ended so far.
    """

    def __init__(self) -> None:
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM, see proc(5)
        if (cuda := _cuda()) is not None:
            cuda.reset_peak_memory_stats()
        self._own, self._workers = _cpu(resource.RUSAGE_SELF), _cpu(resource.RUSAGE_CHILDREN)

    def read(self) -> dict[str, Any]:
        """``{"cpu_s": 12.3, "peak_bytes": {"process": 456, "worker": 789, "gpu": 1234}}``.

        Workers and GPU are left out where there was none.
        """
        own = _cpu(resource.RUSAGE_SELF) - self._own
        workers = _cpu(resource.RUSAGE_CHILDREN) - self._workers
        peak = {"process": _own_peak()}
        if workers > 1:
            peak["worker"] = _peak(resource.RUSAGE_CHILDREN)
        if (cuda := _cuda()) is not None:
            peak["gpu"] = cuda.max_memory_allocated()
        return {"cpu_s": round(own + workers, 3), "peak_bytes": peak}


def _cpu(who: int) -> float:
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def _own_peak() -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return _peak(resource.RUSAGE_SELF)


def _peak(who: int) -> int:
    """The largest resident memory in bytes, in which macOS counts; others count in kilobytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(who).ru_maxrss * unit


def _cuda() -> Any:
    """``torch.cuda`` if this process uses it already; must not initialise it."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None
