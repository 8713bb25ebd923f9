"""A cluster of any size, simulated from what was measured on a small one.

Jobs are shared out by the queue that the pools use. The process of the search is one server: it
hands out jobs, takes results and updates the search, one thing after another, and all messages go
over its network connection. A machine is as fast as the one that was measured.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from worldmodels.workers.queue import Batch, JobQueue, Task


@dataclass(frozen=True)
class Costs:
    """What was measured, and one assumption.

    Args:
        handling: seconds of the search's process for handing out a job and taking its result.
        latency: seconds that a job and its result are under way, both together, without load.
        message: bytes of a job and its result.
        update: seconds to ask for and tell a generation.
        bandwidth: bytes a second of the process's network connection; assumed.
    """

    handling: float
    latency: float
    message: float
    update: float
    bandwidth: float = 125e6  # 1 Gbit/s


@dataclass
class Shares:
    """Where the time of the workers went, each a share of it; and the use of what they share.

    Args:
        generations_per_hour: generations an hour.
        computing: doing jobs.
        last_job: nothing to do because a generation has not ended.
        update: nothing to do because the search is being updated.
        messages: waiting for a job or a result under way, or for the process that handles them.
        process_use: share of the time in which the search's process is busy.
        network_use: share of the time in which its connection is.
    """

    generations_per_hour: float
    computing: float
    last_job: float
    update: float
    messages: float
    process_use: float
    network_use: float


@dataclass
class _Cluster:
    """The state of a simulation."""

    costs: Costs
    idle: list[float]
    """Since when workers have nothing to do."""
    queue: JobQueue = field(default_factory=JobQueue)
    events: list[tuple[float, int, Task]] = field(default_factory=list)
    """When the jobs are done that workers have; the number of each; the job."""
    number: int = 0
    process_free: float = 0.0
    receiving_free: float = 0.0
    sending_free: float = 0.0
    computing: float = 0.0
    waiting: float = 0.0
    updating: float = 0.0
    process_busy: float = 0.0
    network_busy: float = 0.0

    def share_out(self, now: float) -> None:
        """Hand waiting jobs to workers that have nothing to do."""
        while self.idle and (task := self.queue.next(now)) is not None:
            self.waiting += now - self.idle.pop()
            self.computing += task.job
            self.number += 1
            heapq.heappush(self.events, (self.send(now) + task.job, self.number, task))

    def next_result(self) -> float:
        """Take the result of the job that is done first; when that is done."""
        done, _, task = heapq.heappop(self.events)
        now = self.receive(done)
        self.queue.finish(task, None, now)
        self.idle.append(now)
        self.share_out(now)
        return now

    def update(self, now: float) -> float:
        """Update the search; when that is done."""
        seconds = self.costs.update
        self.updating += seconds * len(self.idle)
        self.process_busy += seconds
        self.process_free = max(now, self.process_free) + seconds
        return self.process_free

    def shares(self, workers: int, over: float, generations: int) -> Shares:
        """Where the time up to `over` went."""
        waiting = self.waiting + sum(over - since for since in self.idle)
        total = over * workers
        return Shares(
            generations_per_hour=3600 * generations / over,
            computing=self.computing / total,
            last_job=max(0.0, waiting - self.updating) / total,
            update=self.updating / total,
            messages=max(0.0, total - self.computing - waiting) / total,
            process_use=self.process_busy / over,
            network_use=self.network_busy / over,
        )

    def send(self, now: float) -> float:
        """Hand out a job; when it is at its worker."""
        self._handle(now)
        self.sending_free = max(self.process_free, self.sending_free) + self._transfer()
        return self.sending_free + self.costs.latency / 2

    def receive(self, now: float) -> float:
        """Take a result that a worker has at `now`; when that is done."""
        arrives = max(now + self.costs.latency / 2, self.receiving_free) + self._transfer()
        self.receiving_free = arrives
        self._handle(arrives)
        return self.process_free

    def _handle(self, now: float) -> None:
        half = self.costs.handling / 2
        self.process_free = max(now, self.process_free) + half
        self.process_busy += half

    def _transfer(self) -> float:
        """Seconds that half of a message takes: there, or back. Both ways can be used at once."""
        seconds = self.costs.message / 2 / self.costs.bandwidth
        self.network_busy += seconds / 2
        return seconds


def simulate(
    workers: int,
    generations: Sequence[Sequence[float]],
    costs: Costs,
    overlap: bool,
) -> Shares:
    """Run a search.

    Args:
        workers: number of workers.
        generations: seconds of each job of each generation.
        costs: of everything else.
        overlap: begin each generation before the one before ends.
    """
    cluster = _Cluster(costs, [0.0] * workers)
    ahead = iter(generations)
    submitted: list[Batch] = []

    def submit(now: float) -> None:
        if (jobs := next(ahead, None)) is not None:
            submitted.append(cluster.queue.submit(jobs))
        cluster.share_out(now)

    for _ in range(1 + overlap):
        submit(0.0)
    while submitted:
        now = cluster.next_result()
        while submitted and submitted[0].missing == 0:
            submitted.pop(0)
            now = cluster.update(now)
            submit(now)
    return cluster.shares(workers, now, len(generations))


def drawn(
    seconds: Sequence[float], jobs: int, generations: int, seed: int = 0
) -> list[list[float]]:
    """Durations for the jobs of some generations, from those that were measured.

    Args:
        seconds: of measured jobs.
        jobs: of a generation.
        generations: how many.
        seed: of the draw.
    """
    chosen = np.random.default_rng(seed).choice(np.asarray(seconds), (generations, jobs))
    return [[float(value) for value in row] for row in chosen]
