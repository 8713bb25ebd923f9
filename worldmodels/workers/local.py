"""Worker processes of this machine, which may die or hang without harm.

Each of them has built its own tool (a world) once.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import selectors
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from typing import Any

import psutil
import torch

from worldmodels.errors import WorkerError
from worldmodels.system import interrupts
from worldmodels.system.environment import variables
from worldmodels.system.resources import own_peak
from worldmodels.system.spent import WAITING, WORKING, add, drain, spending
from worldmodels.workers.channel import BlockingEnd, PollingEnd, Reporter
from worldmodels.workers.jobs import ONE_THREAD, Heartbeat, Pool, Setup, ToolT, line_of
from worldmodels.workers.queue import Batch, Task

_CLOSING_SECONDS = 3.0
_POLL_SECONDS = 0.2
_STARTING_SECONDS = 600.0
"""Patience with a worker that is busy and does not come to its first job."""
_GROUPS = hasattr(os, "setpgid") and hasattr(os, "killpg")
_SPAWN = multiprocessing.get_context("spawn")


@dataclass
class _Worker:
    """A process, and how long it has been silent.

    One that starts cannot report: it imports modules, perhaps from a slow file system, and builds
    its tool. Until then its computing and reading count as signs of life, which a process that is
    stopped or blocked does not give.
    """

    process: BaseProcess
    end: PollingEnd
    task: Task | None = None
    heard: float = field(default_factory=time.monotonic)
    began: float = field(default_factory=time.monotonic)
    started: bool = False
    _work: tuple[float, ...] = ()
    _looked: float = 0.0

    def hang(self, now: float, timeout: float) -> str | None:
        """What shows that this worker hangs, or None. Its messages up to `now` are taken."""
        if self.task is None:
            return None
        if not self.started and now - self._looked > _POLL_SECONDS:
            work, self._looked = _work_of(self.process.pid), now
            if work != self._work:
                self._work, self.heard = work, now
        if now - self.heard > timeout:
            return f"was silent for {now - self.heard:.0f} s"
        if not self.started and now - self.began > _STARTING_SECONDS:
            return f"had not started after {now - self.began:.0f} s"
        return None

    def kill(self) -> None:
        """End the worker, and what it has started: an environment may be a process of its own."""
        assert self.process.pid is not None
        _kill_group(self.process.pid)
        self.process.kill()  # should it not have come to lead its group yet
        # With a limit: the kernel cannot end a process that waits for a file server that is gone.
        self.process.join(_CLOSING_SECONDS)
        self.end.close()


class LocalPool(Pool[ToolT]):
    """Processes that share out jobs; see `Pool`.

    Args:
        setup: builds a worker's tool.
        processes: how many; 0 does the jobs in this process.
        timeout: seconds of silence after which a busy worker is replaced; one that starts is
            silent while it neither computes nor reads.
        on_steps: see `Pool`.
    """

    def __init__(
        self,
        setup: Setup[ToolT],
        processes: int,
        timeout: float,
        on_steps: Heartbeat = lambda steps: None,
    ) -> None:
        super().__init__(timeout, on_steps)
        self._setup, self._size = setup, processes
        self._workers: list[_Worker] = []
        self._selector = selectors.DefaultSelector()
        self._tool: ToolT | None = None

    def finish(self, batch: Batch) -> Iterator[tuple[int, Any]]:
        """Yield (job number, result) of a batch as its jobs are done; see `Pool`."""
        while batch.missing:
            interrupts.check()
            if self._size == 0:
                self._work_here()
            else:
                self._work()
            yield from batch.take()
        yield from batch.take()

    def close(self) -> None:
        """End the workers; see `Pool`."""
        started = [one for worker in self._workers for one in _started_by(worker.process.pid)]
        for worker in self._workers:
            self._selector.unregister(worker.end)
            worker.end.close()
        patience = time.monotonic() + _CLOSING_SECONDS
        for worker in self._workers:
            worker.process.join(max(0.0, patience - time.monotonic()))
            worker.kill()
        _kill(started)
        self._workers = []
        if self._tool is not None and hasattr(self._tool, "close"):
            self._tool.close()
        self._tool = None

    def _work_here(self) -> None:
        """Do one job in this process."""
        if self._tool is None:
            self._tool = self._setup.build()
        task = self._queue.next(time.monotonic())
        assert task is not None
        with spending(WORKING), _as_a_worker():
            result = task.job(self._tool, self._beat_here)
        self._queue.finish(task, result, time.monotonic())

    def _beat_here(self, steps: int) -> None:
        interrupts.check()
        self._on_steps(steps)

    def _start(self) -> _Worker:
        ours, theirs = socket.socketpair()
        process = _SPAWN.Process(target=_serve, args=(theirs, self._setup), daemon=False)
        resource_tracker.ensure_running()  # or the start does it, and unblocks signals
        with variables(**ONE_THREAD), _interrupt_blocked():
            process.start()
        theirs.close()
        worker = _Worker(process, PollingEnd(ours))
        self._selector.register(worker.end, selectors.EVENT_READ, worker)
        return worker

    def _work(self) -> None:
        """Hand jobs to the workers that have none, and wait for messages of all of them."""
        while len(self._workers) < min(self._size, self._queue.open):
            self._workers.append(self._start())
        for worker in self._workers:
            if worker.task is None and (task := self._queue.next(time.monotonic())) is not None:
                worker.task, worker.heard = task, time.monotonic()
                worker.end.post(task.job)
                self._await(worker)
        # What came before this moment is read below, however long the caller took before it or this
        # process is stopped after it.
        now = time.monotonic()
        for worker, ready in self._ready():
            self._serve_worker(worker, ready)
        for worker in list(self._workers):
            what = worker.hang(now, self._timeout)
            if what is not None:
                self._replace(worker, what)

    def _await(self, worker: _Worker) -> None:
        """Select messages of a worker and, while there is more to send to it, room for that."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if worker.end.unsent else 0)
        if self._selector.get_key(worker.end).events != events:
            self._selector.modify(worker.end, events, worker)

    def _ready(self) -> list[tuple[_Worker, int]]:
        return [(key.data, ready) for key, ready in self._selector.select(_POLL_SECONDS)]

    def _serve_worker(self, worker: _Worker, ready: int) -> None:
        """Send a worker more of its job, and take its messages."""
        if ready & selectors.EVENT_WRITE:
            if worker.end.flush():
                worker.heard = time.monotonic()
            self._await(worker)
        if not ready & selectors.EVENT_READ:
            return
        worker.heard = time.monotonic()
        try:
            messages = worker.end.take()
        except EOFError:
            self._replace(worker, None)
            return
        for kind, content in messages:
            worker.started = True
            if kind == "beat":
                self._on_steps(content)
            elif kind == "spent":
                add(*content)
            elif kind == "error":
                raise WorkerError(content)
            else:
                assert worker.task is not None
                self._queue.finish(worker.task, content, time.monotonic())
                worker.task = None

    def _replace(self, worker: _Worker, what: str | None) -> None:
        """Replace a worker, whose job is done again.

        Args:
            worker: that is dead or to be killed.
            what: it did; None where it died.
        """
        self._selector.unregister(worker.end)
        self._workers.remove(worker)
        worker.kill()
        self.replaced += 1
        if worker.task is not None:
            what = what or f"died (exit code {worker.process.exitcode})"
            self._queue.lose(worker.task, what)
        self._workers.append(self._start())


@contextlib.contextmanager
def _as_a_worker() -> Iterator[None]:
    """Compute as in a worker, with one thread and denormal numbers: both change rounding.

    Training before may have set either, and numba raises PyTorch's threads above OMP_NUM_THREADS.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_flush_denormal(False)  # training sets it anew
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextlib.contextmanager
def _interrupt_blocked() -> Iterator[None]:
    """Start a child that Ctrl-C, which reaches the whole process group, does not interrupt while it
    has not come to ignore it. Children inherit the mask."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(theirs: socket.socket, setup: Setup[Any]) -> None:
    """The life of a worker: build the tool, then do jobs until the socket closes."""
    if _GROUPS:
        os.setpgid(0, 0)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    # Ctrl-C reaches the whole process group; the parent alone decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    end = BlockingEnd(theirs)
    reporter = Reporter(end)
    tool: Any = None
    try:
        tool = setup.build()
        reporter.flush()  # it has started
        while True:
            with spending(WAITING):
                job = end.receive()
            with spending(WORKING):
                result = job(tool, reporter.beat)
            reporter.flush()
            end.send(("spent", (drain(), own_peak())))
            end.send(("done", result))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the pool has closed
    except Exception as error:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            end.send(("error", line_of(error)))
    finally:
        if hasattr(tool, "close"):
            tool.close()


def _die_with_parent() -> None:
    """Wait for the parent's death, by whatever it dies, and take all of this group along."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    _kill_group(os.getpid())


def _work_of(pid: int | None) -> tuple[float, ...]:
    """What a process has computed and read so far, as far as the system tells."""
    with contextlib.suppress(psutil.Error, OSError):
        process = psutil.Process(pid)
        times = process.cpu_times()
        counters = process.io_counters() if hasattr(process, "io_counters") else ()
        return (*times[:4], *counters)
    return ()


def _kill_group(leader: int) -> None:
    """Kill a worker and what it has started: its process group, where there are such groups."""
    if _GROUPS:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(leader, signal.SIGKILL)
        return
    _kill(_started_by(leader))
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(leader).kill()


def _started_by(worker: int | None) -> list[psutil.Process]:
    """The processes below a living worker, where no process group holds them together."""
    if _GROUPS or worker is None:
        return []
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(worker).children(recursive=True)
    return []


def _kill(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
