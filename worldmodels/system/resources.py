"""Resource use: CPU seconds, peak memory and waiting; of the process, its workers and its GPU."""

from __future__ import annotations

import contextlib
import math
import resource
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from worldmodels.system.spent import reset_worker_peak, spent, worker_peak


class Meter:
    """Measures from when it is made.

    The peak of this process is that since then where Linux lets it be reset, and that since the
    process began elsewhere. That of the workers is what they report with their jobs: the system's
    figure for children that have ended contains that of this process, from before they started
    Python.
    """

    def __init__(self) -> None:
        reset_peak()
        reset_worker_peak()
        if (cuda := _cuda()) is not None:
            cuda.reset_peak_memory_stats()
        self._own, self._workers = _cpu(resource.RUSAGE_SELF), _cpu(resource.RUSAGE_CHILDREN)
        self._spent, self._gpu = spent(), _gpu_sampler()
        self._gpu_before = (0.0, 0) if self._gpu is None else self._gpu.total

    def read(self) -> dict[str, Any]:
        """What was used since: ``{"cpu_s": 12.3, "peak_bytes": {"process": 456, "worker": 789,
        "gpu": 1234}, "spent_s": {"reading": 0.1}, "gpu_samples": [53.0, 60]}``.

        Workers and GPU are left out where there was none. ``spent_s`` is seconds by activity (see
        `worldmodels.system.spent`); those of several workers are added. ``gpu_samples`` is the sum
        and the number of readings of the GPU's utilisation, each between 0 and 1.
        """
        own = _cpu(resource.RUSAGE_SELF) - self._own
        workers = _cpu(resource.RUSAGE_CHILDREN) - self._workers
        peak = {"process": own_peak()}
        if worker_peak():
            peak["worker"] = worker_peak()
        if (cuda := _cuda()) is not None:
            peak["gpu"] = cuda.max_memory_allocated()
        passed = {name: total - self._spent.get(name, 0.0) for name, total in spent().items()}
        used: dict[str, Any] = {"cpu_s": round(own + workers, 3), "peak_bytes": peak}
        used["spent_s"] = {name: round(seconds, 3) for name, seconds in passed.items() if seconds}
        if self._gpu is not None:
            total, count = self._gpu.total
            if count > self._gpu_before[1]:
                sampled = [round(total - self._gpu_before[0], 3), count - self._gpu_before[1]]
                used["gpu_samples"] = sampled
        return used


class Gauge:
    """Present use of memory and devices by this process and its workers.

    Args:
        seconds: least time between two readings.
    """

    def __init__(self, seconds: float) -> None:
        self._pause, self._read = seconds, -math.inf
        self._process, self._gpu = psutil.Process(), _gpu_sampler()
        self._cpu = self._gpu_before = (0.0, 0.0)

    def read(self) -> dict[str, float]:
        """``system/memory_gb`` and, from the second reading on, ``system/cpu_cores``, the mean
        number of busy cores since the last one; on a GPU ``system/gpu_memory_gb`` and
        ``system/gpu_share``. Empty where the last reading is not long ago.
        """
        now = time.monotonic()
        if now - self._read < self._pause:
            return {}
        self._read = now
        memory, cpu = 0, 0.0
        for process in (self._process, *self._process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):  # one that has ended
                memory += process.memory_info().rss
                times = process.cpu_times()
                cpu += times.user + times.system
        values = {"system/memory_gb": memory / 1e9}
        before, self._cpu = self._cpu, (now, cpu)
        if before[0]:  # below 0 where a worker has ended meanwhile
            values["system/cpu_cores"] = max(0.0, (cpu - before[1]) / (now - before[0]))
        if (cuda := _cuda()) is not None:
            values["system/gpu_memory_gb"] = cuda.memory_allocated() / 1e9
        if self._gpu is not None:
            (total, count), earlier = self._gpu.total, self._gpu_before
            self._gpu_before = (total, count)
            if count > earlier[1]:
                values["system/gpu_share"] = (total - earlier[0]) / (count - earlier[1])
        return values


class Sampler:
    """Reads a number now and then in a thread of its own, which ends when reading fails.

    Args:
        read: the number, or None where there is nothing to read yet.
        seconds: between two readings.
    """

    def __init__(self, read: Callable[[], float | None], seconds: float) -> None:
        self._read, self._pause = read, seconds
        self.total = (0.0, 0)
        """Sum and number of the readings so far."""
        threading.Thread(target=self._run, name="sampler", daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                value = self._read()
            except Exception:  # of a driver, or of the package that asks it
                return
            if value is not None:
                self.total = (self.total[0] + value, self.total[1] + 1)
            time.sleep(self._pause)


def _cpu(who: int) -> float:
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def reset_peak() -> None:
    """Let `own_peak` begin anew, where the system can: on Linux."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM, see proc(5)


def own_peak() -> int:
    """The largest resident memory of this process in bytes, since the last `reset_peak`."""
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


_GPU_SECONDS = 1.0
_gpu: Sampler | None = None


def _gpu_sampler() -> Sampler | None:
    """The sampler of the GPU's utilisation, one for the process; None where torch has no CUDA.

    It needs the package nvidia-ml-py; without it nothing is sampled.
    """
    global _gpu
    torch = sys.modules.get("torch")
    if _gpu is None and torch is not None and torch.version.cuda is not None:
        _gpu = Sampler(_gpu_utilisation, _GPU_SECONDS)
    return _gpu


def _gpu_utilisation() -> float | None:
    cuda = _cuda()
    return None if cuda is None else cuda.utilization() / 100
