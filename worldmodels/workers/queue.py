"""Which job a worker does next: first come, first served, one at a time; a lost one again.

A pool decides when a worker is free, late or lost. This module has neither a clock nor processes of
its own, so that the simulation of `benchmarks/scaling.py` shares jobs out as the pools do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from worldmodels.errors import WorkerError

ATTEMPTS = 3
"""How often a job is tried whose worker dies or hangs."""
LATE = 1.5
"""A second worker may do a job that has been running for so many times the median of its kind."""
_REMEMBERED = 100
"""Jobs whose durations give that median."""


class Batch:
    """Jobs that were submitted together.

    Args:
        size: the number of jobs.
    """

    def __init__(self, size: int) -> None:
        self.missing = size
        """Jobs that are not done."""
        self._results: deque[tuple[int, Any]] = deque()

    def put(self, number: int, result: Any) -> None:
        """Add the result of a job."""
        self.missing -= 1
        self._results.append((number, result))

    def take(self) -> Iterator[tuple[int, Any]]:
        """Yield the results that have not been taken."""
        while self._results:
            yield self._results.popleft()


@dataclass(eq=False)
class Task:
    """A job in a queue.

    Args:
        job: to be done.
        batch: that it belongs to.
        number: in the batch.
    """

    job: Any
    batch: Batch
    number: int
    attempts: int = 0
    """How often it was lost by its own fault."""
    workers: int = 0
    """How many have it now."""
    began: float = 0.0
    """When the first of them began."""
    done: bool = False


class JobQueue:
    """The jobs that are waiting and those that are being done."""

    def __init__(self) -> None:
        self._waiting: deque[Task] = deque()
        self._running: dict[Task, None] = {}  # in the order in which they began
        self._durations: deque[float] = deque(maxlen=_REMEMBERED)

    @property
    def open(self) -> int:
        """Jobs that are not done."""
        return len(self._waiting) + len(self._running)

    def submit(self, jobs: Sequence[Any]) -> Batch:
        """Add jobs at the end."""
        batch = Batch(len(jobs))
        self._waiting.extend(Task(job, batch, number) for number, job in enumerate(jobs))
        return batch

    def next(self, now: float) -> Task | None:
        """The next job for a free worker, if one is waiting.

        Args:
            now: seconds of any clock, the same for all calls.
        """
        if not self._waiting:
            return None
        task = self._waiting.popleft()
        task.workers, task.began = 1, now
        self._running[task] = None
        return task

    def late(self, now: float) -> Task | None:
        """A job for a worker that is free while none is waiting: one that takes unusually long.

        It may be on a slow or overloaded machine. The first of its two workers to be done decides,
        and because the results are equal it does not matter which.
        """
        if self._waiting or not self._durations:
            return None
        limit = LATE * median(self._durations)
        for task in self._running:
            if task.workers == 1 and now - task.began > limit:
                task.workers = 2
                return task
        return None

    def finish(self, task: Task, result: Any, now: float) -> None:
        """Note the result of a job; of two workers that do the same one, the first's counts."""
        task.workers -= 1
        if task.done:
            return
        task.done = True
        del self._running[task]
        self._durations.append(now - task.began)
        task.batch.put(task.number, result)

    def lose(self, task: Task, what: str, blamed: bool = True) -> None:
        """Give a job back whose worker is lost: it is the next one, unless another worker has it.

        Args:
            task: the job.
            what: its worker did, in words.
            blamed: whether the job may be why.

        Raises:
            WorkerError: it was lost by its own fault on each of its attempts.
        """
        task.workers -= 1
        task.attempts += blamed
        if task.done:
            return
        if task.attempts >= ATTEMPTS:
            raise WorkerError(
                f"a worker {what} on each of {ATTEMPTS} attempts at job {task.number}"
                " (exit code -9 is often a lack of memory: try fewer workers.processes or"
                " env.num_envs; silence may be slowness: try a longer workers.timeout)"
            )
        if not task.workers:
            del self._running[task]
            self._waiting.appendleft(task)
