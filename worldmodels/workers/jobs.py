"""Jobs, the pools that do them, and the files that jobs and setups name.

The result of a job depends on the job alone, so the number of workers, their machines, their order
and their deaths change nothing but the time it takes, and a job may be done twice.
"""

from __future__ import annotations

import os
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, Protocol, Self, TypeVar

from worldmodels.errors import WorldModelsError, system_error
from worldmodels.workers.queue import Batch, JobQueue

Heartbeat = Callable[[int], None]
ToolT = TypeVar("ToolT")
ToolT_co = TypeVar("ToolT_co", covariant=True)
ToolT_contra = TypeVar("ToolT_contra", contravariant=True)

READ: Mapping[str, str] = {"path": "read"}
"""Metadata of a field of a job or a setup: a file or a folder that it reads. A worker on another
machine gets a copy of it."""
WRITTEN: Mapping[str, str] = {"path": "written"}
"""Metadata of a field of a job: the file that it writes. What a worker on another machine wrote is
moved to that place on this one."""

# Read when a library is imported, PyTorch's as well. Numba's pool would raise OpenMP's number for
# PyTorch too, and threads that wait on each other's cores cost more than half of the throughput.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
"""Environment variables of a worker."""


class Setup(Protocol[ToolT_co]):
    """A picklable dataclass that a worker builds its tool (a world) from."""

    def build(self) -> ToolT_co:
        """Build the tool."""
        ...


class Job(Protocol[ToolT_contra]):
    """A piece of work that a worker does with its tool; sent to other processes."""

    def __call__(self, tool: ToolT_contra, heartbeat: Heartbeat) -> Any:
        """Do it.

        Args:
            tool: that the worker has built; its jobs share it.
            heartbeat: to be called with the number of steps done since the last call, often: a
                worker that is silent is replaced.
        """
        ...


class Pool(ABC, Generic[ToolT_co]):
    """Workers that share out jobs.

    Args:
        timeout: seconds of silence after which a busy worker is replaced.
        on_steps: called with the steps that workers report.
    """

    def __init__(self, timeout: float, on_steps: Heartbeat) -> None:
        self._timeout, self._on_steps = timeout, on_steps
        self._queue = JobQueue()
        self.replaced = 0
        """Workers that died or hung and were replaced."""

    def submit(self, jobs: Sequence[Job[ToolT_co]]) -> Batch:
        """Queue jobs. They are done in this order while one of the batches is waited for."""
        return self._queue.submit(jobs)

    @abstractmethod
    def finish(self, batch: Batch) -> Iterator[tuple[int, Any]]:
        """Yield (job number, result) of a batch as its jobs are done, until all are.

        Workers that find no job of this batch do those of batches submitted later.

        Raises:
            WorkerError: a job failed, or its worker died or hung on each of its attempts.
            Stopped: the process was asked to stop; what was yielded is done, the rest is not.
        """

    def results(self, batch: Batch) -> list[Any]:
        """The results of a batch in the order of its jobs; see `finish`."""
        return [result for _, result in sorted(self.finish(batch), key=lambda done: done[0])]

    def run(self, jobs: Sequence[Job[ToolT_co]]) -> Iterator[tuple[int, Any]]:
        """Submit jobs and yield (job number, result) as they are done; see `finish`."""
        yield from self.finish(self.submit(jobs))

    def map(self, jobs: Sequence[Job[ToolT_co]]) -> list[Any]:
        """The results of all jobs, in the order of the jobs; see `finish`."""
        return self.results(self.submit(jobs))

    @abstractmethod
    def close(self) -> None:
        """End the workers: they are let close what they have, but not for long."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def line_of(error: Exception) -> str:
    """What is said of an error in a worker, in one line."""
    if isinstance(error, WorldModelsError):
        return str(error)
    if isinstance(error, OSError) and error.errno and error.filename is not None:
        return system_error(error, os.fsdecode(error.filename))
    last = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{os.path.basename(last.filename)}:{last.lineno}"
    return f"{type(error).__name__} in a worker ({place}): {error}".replace("\n", " ")
