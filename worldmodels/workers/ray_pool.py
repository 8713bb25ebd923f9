"""Workers on the machines of a Ray cluster.

Ray starts the processes, carries messages and detects machines that are lost. This pool decides
what is done again: Ray's own restarts and retries are off, because a job whose worker is lost is
done soonest by another worker that is free, and because only the pool can distinguish a job that
kills its workers from a machine that was taken away.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from worldmodels.errors import WorkerError
from worldmodels.system import interrupts
from worldmodels.workers.jobs import Heartbeat, Pool, Setup, ToolT
from worldmodels.workers.queue import ATTEMPTS, Batch, Task
from worldmodels.workers.ray_worker import ANSWERS, RayWorker, versions
from worldmodels.workers.transfer import inputs_of, read_tree, write_outputs

_POLL_SECONDS = 0.2
_LOOK_SECONDS = 1.0
"""Between two looks at how many cores the cluster has."""
_BEAT_SECONDS = 1.0
_BEATS_A_SECOND = 200
"""Answers of all workers together that this process takes at most."""
_WORKING_SECONDS = 0.02
"""Of computing between two answers; what answers computes less."""
_STARTING_SECONDS = 600.0
"""Patience with a worker that answers and does not come to its first job."""
_CLOSING_SECONDS = 3.0
_WAITING_SECONDS = 60.0
"""After so long without any worker, a warning is logged."""

log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Worker:
    """An actor, what it was asked, and when it answered last."""

    actor: Any
    work: Any
    """Reference to the result of the job, or of the building of the tool."""
    steps: Any
    """Reference to its next answer about steps."""
    node: str = ""
    """Of the cluster; empty until it has started there."""
    ready: bool = False
    task: Task | None = None
    number: int = -1
    """Of the job among all that this pool has handed out."""
    began: float = field(default_factory=time.monotonic)
    """When it started, or got its job."""
    answered: float = 0.0
    """When it answered last; 0 before it is known to have started."""
    heard: float = 0.0
    """When it reported progress last."""
    stepped: bool = False
    """Whether it has ever reported steps."""
    computed: float = 0.0
    """Seconds that its process had computed when it answered last."""

    def hang(self, now: float, timeout: float) -> str | None:
        """What shows that this worker hangs, or None. One that waits for a core does not. Its
        answers up to `now` are taken."""
        if not self.answered or (self.ready and self.task is None):
            return None
        if now - self.answered > timeout + _BEAT_SECONDS:
            return f"did not answer for {now - self.answered:.0f} s"
        if self.ready and now - self.heard > timeout:
            return f"was silent for {now - self.heard:.0f} s"
        if not self.ready and now - self.began > _STARTING_SECONDS:
            return f"had not started after {now - self.began:.0f} s"
        return None


class RayPool(Pool[ToolT]):
    """Processes of a Ray cluster that share out jobs; see `Pool`. This process is connected to it.

    Args:
        setup: builds a worker's tool.
        processes: how many workers, each on a core of its own; they start as there are cores for
            them. None is one for each core of the cluster, also of machines that join it later.
        timeout: see `Pool`.
        on_steps: see `Pool`.

    Raises:
        ArtifactError: a file that the setup reads cannot be read.
    """

    def __init__(
        self,
        setup: Setup[ToolT],
        processes: int | None,
        timeout: float,
        on_steps: Heartbeat = lambda steps: None,
    ) -> None:
        super().__init__(timeout, on_steps)
        self._size = processes
        self._workers: list[_Worker] = []
        self._owners: dict[Any, _Worker] = {}
        """Reference that is waited for -> the worker that it is of."""
        self._files: dict[Path, Any] = {}
        """Path -> reference to its content, which is sent once."""
        self._numbers = itertools.count()
        self._failed_starts, self._failed_at = 0, 0.0
        self._look_at = 0.0
        self._waits_since = time.monotonic()
        self._setup = [ray.put(setup), *self._references(setup)]
        self._actors = ray.remote(
            num_cpus=1,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy="SPREAD",
            concurrency_groups={ANSWERS: 2},
        )(RayWorker)

    def finish(self, batch: Batch) -> Iterator[tuple[int, Any]]:
        """Yield (job number, result) of a batch as its jobs are done; see `Pool`.

        Raises:
            ArtifactError: what a worker has written cannot be written on this machine.
        """
        now = time.monotonic()
        for worker in self._workers:  # whose answers were not read meanwhile
            worker.answered = worker.answered and now
        while batch.missing:
            interrupts.check()
            try:
                self._work()
            except ConnectionError as error:
                raise WorkerError(
                    f"workers.address: the connection to the Ray cluster is lost ({error}); run the"
                    " same command again when it is back"
                ) from error
            yield from batch.take()
        yield from batch.take()

    def close(self) -> None:
        """End the workers; see `Pool`."""
        closing = []
        for worker in self._workers:
            if worker.ready:
                with contextlib.suppress(RayError, ConnectionError):
                    worker.actor.abandon.remote(worker.number)
                    closing.append(worker.actor.close.remote())
        with contextlib.suppress(RayError, ConnectionError):
            if closing:
                ray.wait(closing, num_returns=len(closing), timeout=_CLOSING_SECONDS)
        for worker in self._workers:
            self._kill(worker)
        self._workers, self._owners = [], {}

    def _references(self, value: Any) -> list[Any]:
        """References to the content of the paths that a setup or a job reads."""
        for path in inputs_of(value):
            if path not in self._files:
                self._files[path] = ray.put({path: read_tree(path)})
        return [self._files[path] for path in inputs_of(value)]

    def _work(self) -> None:
        """Hand jobs to the workers that have none, and wait for answers of all of them."""
        self._start_missing()
        for worker in self._workers:
            if worker.ready and worker.task is None and not self._assign(worker):
                break
        now = time.monotonic()  # what was answered before is read below, however long that takes
        for reference in self._answers():
            worker = self._owners.pop(reference)
            if worker not in self._workers:
                continue
            try:
                answer = ray.get(reference)
            except RayTaskError as error:
                raise WorkerError(" ".join(str(error).split())) from error
            except RayError as error:
                self._replace(worker, "died", error)
                continue
            worker.answered = time.monotonic()
            if reference == worker.steps:
                self._progress(worker, *answer)
            elif worker.task is None:
                self._started(worker, *answer)
            else:
                self._done(worker, *answer)
        for worker in list(self._workers):
            what = worker.hang(now, self._timeout)
            if what is not None:
                self._replace(worker, what, None)

    def _start_missing(self) -> None:
        """Start workers where there are jobs and cores for more; from time to time."""
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + _LOOK_SECONDS
        size = self._size
        if size is None:
            size = int(ray.cluster_resources().get("CPU", 0))
        for _ in range(min(size, self._queue.open) - len(self._workers)):
            actor = self._actors.remote()
            worker = _Worker(actor, actor.build.remote(self._setup, versions(), sys.path), None)
            self._owners[worker.work] = worker
            self._ask(worker, 0.0)
            self._workers.append(worker)
        if any(worker.answered for worker in self._workers):
            self._waits_since = now
        elif now - self._waits_since > _WAITING_SECONDS:
            self._waits_since = now
            log.warning("workers=ray: no core of the cluster is free; waiting for one")

    def _ask(self, worker: _Worker, wait: float) -> None:
        worker.steps = worker.actor.steps.remote(wait)
        self._owners[worker.steps] = worker

    def _assign(self, worker: _Worker) -> bool:
        """Give a worker a job that waits, or that another worker has had for too long, if any."""
        now = time.monotonic()
        task = self._queue.next(now) or self._queue.late(now)
        if task is None:
            return False
        worker.task, worker.number, worker.heard = task, next(self._numbers), now
        worker.work = worker.actor.do.remote(worker.number, task.job, self._references(task.job))
        self._owners[worker.work] = worker
        return True

    def _answers(self) -> list[Any]:
        """The references that are ready, once there are some or some time has passed."""
        waiting = list(self._owners)
        if not waiting:
            time.sleep(_POLL_SECONDS)
            return []
        ready, _ = ray.wait(waiting, num_returns=1, timeout=_POLL_SECONDS)
        if ready and len(waiting) > 1:
            ready, _ = ray.wait(waiting, num_returns=len(waiting), timeout=0)
        return list(ready)

    def _progress(self, worker: _Worker, node: str, steps: int, computed: float) -> None:
        if not worker.node:
            worker.node, worker.began = node, worker.answered
        # Before its first step a worker imports modules: computing is a sign of life until then.
        works = not worker.stepped and computed - worker.computed > _WORKING_SECONDS
        if steps or works:
            worker.heard = worker.answered
        if steps:
            worker.stepped = True
            self._on_steps(steps)
        worker.computed = computed
        self._ask(worker, max(_BEAT_SECONDS, len(self._workers) / _BEATS_A_SECOND))

    def _started(self, worker: _Worker, kind: str, line: str) -> None:
        if kind == "error":
            raise WorkerError(line)
        worker.ready, self._failed_starts = True, 0

    def _done(self, worker: _Worker, kind: str, content: Any, outputs: dict[Path, bytes]) -> None:
        """Take the result of a job; another worker that is at the same one may stop."""
        if kind == "error":
            raise WorkerError(content)
        task, worker.task = worker.task, None
        assert task is not None
        if not task.done:
            write_outputs(outputs)
        self._queue.finish(task, content, time.monotonic())
        for other in self._workers:
            if other.task is task:
                other.actor.abandon.remote(other.number)

    def _replace(self, worker: _Worker, what: str, error: RayError | None) -> None:
        """Remove a worker that is lost, whose job is done again; another is started in its place.

        Args:
            worker: that is dead or to be killed.
            what: it did.
            error: of Ray; None where this pool decided.
        """
        self._workers.remove(worker)
        self._kill(worker)
        self.replaced += 1
        reason = "" if error is None else f" ({_first_line(error)})"
        if worker.task is not None:
            gone = worker.node not in {node["NodeID"] for node in ray.nodes() if node["Alive"]}
            self._queue.lose(worker.task, f"{what}{reason}", blamed=not gone)
        elif not worker.ready and time.monotonic() - self._failed_at > _LOOK_SECONDS:
            # Those that are lost at once are lost with one machine.
            self._failed_starts, self._failed_at = self._failed_starts + 1, time.monotonic()
            if self._failed_starts >= ATTEMPTS:
                raise WorkerError(
                    f"workers.address: workers {what} while they started{reason}; install this"
                    " program, with the same packages, on all machines of the cluster"
                )

    def _kill(self, worker: _Worker) -> None:
        with contextlib.suppress(RayError, ConnectionError):
            ray.kill(worker.actor, no_restart=True)


def _first_line(error: RayError) -> str:
    """Why a worker was lost, without the lines about where its logs are."""
    if isinstance(error, RayActorError):
        lines = str(error).splitlines()
        causes = [line for line in lines if "Error" in line or "exit" in line.lower()]
        return (causes or lines or [type(error).__name__])[-1].strip()
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
