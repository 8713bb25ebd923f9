"""Processes that do jobs, and that may die or hang without harm.

A pool hands jobs to worker processes, each of which has built its own tool (a world) once. The
result of a job depends on the job alone, so the number of workers, their order and their deaths
change nothing but the time it takes.
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
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from typing import Any, Generic, Protocol, TypeVar

import psutil

from worldmodels.errors import WorkerError, WorldModelsError, system_error
from worldmodels.system import interrupts
from worldmodels.system.resources import own_peak
from worldmodels.system.spent import WAITING, WORKING, add, drain, spending
from worldmodels.workers.channel import BlockingEnd, PollingEnd, Reporter

ToolT_contra = TypeVar("ToolT_contra", contravariant=True)
ToolT = TypeVar("ToolT")
Heartbeat = Callable[[int], None]
ATTEMPTS = 3
_CLOSING_SECONDS = 3.0
_POLL_SECONDS = 0.2
_STARTING_SECONDS = 600.0
"""Patience with a worker that is busy and does not come to its first job."""
# Read when a library is imported, PyTorch's as well. Numba's pool would raise OpenMP's number for
# PyTorch too, and threads that wait on each other's cores cost more than half of the throughput.
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
_GROUPS = hasattr(os, "setpgid") and hasattr(os, "killpg")
_SPAWN = multiprocessing.get_context("spawn")


class Job(Protocol[ToolT_contra]):
    """A piece of work that a worker does with its tool; sent to other processes."""

    def __call__(self, tool: ToolT_contra, heartbeat: Heartbeat) -> Any:
        """Do it. Call `heartbeat` with the steps done, often: silence is taken for a hang."""
        ...


@dataclass
class _Worker:
    """A process, and how long it has been silent.

    One that starts cannot report: it imports modules, perhaps from a slow file system, and builds
    its tool. Until then its computing and reading count as signs of life, which a process that is
    stopped or blocked does not give.
    """

    process: BaseProcess
    end: PollingEnd
    job: int | None = None
    heard: float = field(default_factory=time.monotonic)
    began: float = field(default_factory=time.monotonic)
    started: bool = False
    _work: tuple[float, ...] = ()
    _looked: float = 0.0

    def hang(self, timeout: float) -> str | None:
        """What shows that this worker hangs, or None."""
        if self.job is None:
            return None
        now = time.monotonic()
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


class Pool(Generic[ToolT]):
    """Worker processes that share out jobs.

    Args:
        setup: builds a worker's tool; must be picklable.
        processes: how many; 0 does the jobs in this process.
        timeout: seconds of silence after which a busy worker is replaced; one that starts is
            silent while it neither computes nor reads.
        on_steps: told of the steps that workers report.
    """

    def __init__(
        self,
        setup: Callable[[], ToolT],
        processes: int,
        timeout: float,
        on_steps: Heartbeat = lambda steps: None,
    ) -> None:
        self._setup = setup
        self._timeout = timeout
        self._on_steps = on_steps
        self._size = processes
        self._workers: list[_Worker] = []
        self._selector = selectors.DefaultSelector()
        self._tool: ToolT | None = None
        self.replaced = 0

    def run(self, jobs: Sequence[Job[ToolT]]) -> Iterator[tuple[int, Any]]:
        """Yield (job number, result) as jobs are done.

        Raises:
            WorkerError: a job failed, or its worker died or hung on each of its attempts.
            Stopped: the process was asked to stop; what was yielded is done, the rest is not.
        """
        if self._size == 0:
            yield from self._run_here(jobs)
            return
        queue = deque(range(len(jobs)))
        attempts = [0] * len(jobs)
        done = 0
        while len(self._workers) < min(self._size, len(jobs)):
            self._workers.append(self._start())
        while done < len(jobs):
            interrupts.check()
            for worker in self._workers:
                if worker.job is None and queue:
                    self._assign(worker, queue.popleft(), jobs)
            results: list[tuple[int, Any]] = []
            for worker, ready in self._ready():
                results += self._serve_worker(worker, ready, queue, attempts)
            # Now, for what they have said since has been read, however long the results below take.
            for worker in list(self._workers):
                what = worker.hang(self._timeout)
                if what is not None:
                    self._retry(worker, queue, attempts, what)
            done += len(results)
            yield from results

    def map(self, jobs: Sequence[Job[ToolT]]) -> list[Any]:
        """The results of all jobs, in the order of the jobs."""
        results: list[Any] = [None] * len(jobs)
        for number, result in self.run(jobs):
            results[number] = result
        return results

    def close(self) -> None:
        """End the workers: they are let close what they have, but not for long."""
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

    def __enter__(self) -> Pool[ToolT]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run_here(self, jobs: Sequence[Job[ToolT]]) -> Iterator[tuple[int, Any]]:
        if self._tool is None:
            self._tool = self._setup()
        for number, job in enumerate(jobs):
            interrupts.check()
            with spending(WORKING):
                result = job(self._tool, self._beat_here)
            yield number, result

    def _beat_here(self, steps: int) -> None:
        interrupts.check()
        self._on_steps(steps)

    def _start(self) -> _Worker:
        ours, theirs = socket.socketpair()
        process = _SPAWN.Process(target=_serve, args=(theirs, self._setup), daemon=False)
        resource_tracker.ensure_running()  # or the start does it, and unblocks signals
        with _environment(_ONE_THREAD), _interrupt_blocked():
            process.start()
        theirs.close()
        worker = _Worker(process, PollingEnd(ours))
        self._selector.register(worker.end, selectors.EVENT_READ, worker)
        return worker

    def _assign(self, worker: _Worker, number: int, jobs: Sequence[Job[ToolT]]) -> None:
        worker.job, worker.heard = number, time.monotonic()
        worker.end.post(jobs[number])
        self._await(worker)

    def _await(self, worker: _Worker) -> None:
        """Look out for what the worker says and, while it is to get more, for room for it."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if worker.end.unsent else 0)
        if self._selector.get_key(worker.end).events != events:
            self._selector.modify(worker.end, events, worker)

    def _ready(self) -> list[tuple[_Worker, int]]:
        return [(key.data, ready) for key, ready in self._selector.select(_POLL_SECONDS)]

    def _serve_worker(
        self, worker: _Worker, ready: int, queue: deque[int], attempts: list[int]
    ) -> list[tuple[int, Any]]:
        """Give a worker more of its job, and take what it says; a result, if it has one."""
        if ready & selectors.EVENT_WRITE:
            if worker.end.flush():
                worker.heard = time.monotonic()
            self._await(worker)
        if not ready & selectors.EVENT_READ:
            return []
        worker.heard = time.monotonic()
        try:
            messages = worker.end.take()
        except EOFError:
            self._retry(worker, queue, attempts, "died")
            return []
        results = []
        for kind, content in messages:
            worker.started = True
            if kind == "beat":
                self._on_steps(content)
            elif kind == "spent":
                add(*content)
            elif kind == "error":
                raise WorkerError(content)
            else:
                assert worker.job is not None
                results.append((worker.job, content))
                worker.job = None
        return results

    def _retry(self, worker: _Worker, queue: deque[int], attempts: list[int], what: str) -> None:
        """Replace a worker and put its job back at the head of the queue."""
        self._selector.unregister(worker.end)
        self._workers.remove(worker)
        worker.kill()
        self.replaced += 1
        if worker.job is not None:
            attempts[worker.job] += 1
            if attempts[worker.job] >= ATTEMPTS:
                raise WorkerError(
                    f"a worker {what} on each of {ATTEMPTS} attempts at job {worker.job} (exit code"
                    f" {worker.process.exitcode}; -9 is often a lack of memory: try fewer"
                    " workers.processes or env.num_envs; silence may be slowness: try a longer"
                    " workers.timeout)"
                )
            queue.appendleft(worker.job)
        self._workers.append(self._start())


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Set environment variables for a while."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


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


def _serve(theirs: socket.socket, setup: Callable[[], Any]) -> None:
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
        tool = setup()
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
            end.send(("error", _line_of(error)))
    finally:
        if hasattr(tool, "close"):
            tool.close()


def _line_of(error: Exception) -> str:
    """What the parent says of an error in a worker."""
    if isinstance(error, WorldModelsError):
        return str(error)
    if isinstance(error, OSError) and error.errno and error.filename is not None:
        return system_error(error, os.fsdecode(error.filename))
    last = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{os.path.basename(last.filename)}:{last.lineno}"
    return f"{type(error).__name__} in a worker ({place}): {error}".replace("\n", " ")


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
