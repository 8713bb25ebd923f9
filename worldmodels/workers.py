"""Processes that do jobs, and that may die or hang without harm.

A pool hands jobs to worker processes, each of which has built its own tool (a world) once. The
result of a job depends on the job alone, so the number of workers, their order and their deaths
change nothing but the time it takes.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, Protocol, TypeVar

import psutil

from worldmodels import interrupts
from worldmodels.errors import WorkerError, WorldModelsError

ToolT_contra = TypeVar("ToolT_contra", contravariant=True)
ToolT = TypeVar("ToolT")
Heartbeat = Callable[[int], None]
ATTEMPTS = 3
_BEAT_SECONDS = 0.5
_CLOSING_SECONDS = 3.0
_STARTING_SECONDS = 600.0
"""Patience with a worker that has not said a word: its imports may come from a slow file system."""
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
    process: BaseProcess
    connection: Connection
    job: int | None = None
    heard: float = field(default_factory=time.monotonic)
    started: bool = False

    def kill(self) -> None:
        """End the worker, and what it has started: a game may be a process of its own."""
        assert self.process.pid is not None
        _kill_group(self.process.pid)
        self.process.kill()  # should it not have come to lead its group yet
        self.process.join()
        self.connection.close()


class Pool(Generic[ToolT]):
    """Worker processes that share out jobs.

    Args:
        setup: builds a worker's tool; must be picklable.
        processes: how many; 0 does the jobs in this process.
        timeout: seconds of silence after which a busy worker is replaced, once it has started.
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
            for worker in self._ready():
                message = self._receive(worker)
                if message is None:
                    self._retry(worker, queue, attempts, "died")
                elif message[0] == "done":
                    number, worker.job = worker.job, None
                    done += 1
                    assert number is not None
                    yield number, message[1]
            for worker in self._workers:
                silent = time.monotonic() - worker.heard
                patience = self._timeout if worker.started else _STARTING_SECONDS
                if worker.job is not None and silent > patience:
                    self._retry(worker, queue, attempts, f"was silent for {silent:.0f} s")

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
            worker.connection.close()
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
            yield number, job(self._tool, self._beat_here)

    def _beat_here(self, steps: int) -> None:
        interrupts.check()
        self._on_steps(steps)

    def _start(self) -> _Worker:
        ours, theirs = _SPAWN.Pipe()
        process = _SPAWN.Process(target=_serve, args=(theirs, self._setup), daemon=False)
        with _environment(_ONE_THREAD):
            process.start()
        theirs.close()
        return _Worker(process, ours)

    def _assign(self, worker: _Worker, number: int, jobs: Sequence[Job[ToolT]]) -> None:
        worker.job, worker.heard = number, time.monotonic()
        # A worker that died while idle is noticed by its closed pipe at the next look.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            worker.connection.send(jobs[number])

    def _ready(self) -> list[_Worker]:
        connections = {worker.connection: worker for worker in self._workers}
        return [connections[c] for c in wait(list(connections), timeout=0.2)]  # type: ignore[index]

    def _receive(self, worker: _Worker) -> tuple[str, Any] | None:
        """A worker's message, or None when it is dead; heartbeats are taken note of here."""
        try:
            kind, content = worker.connection.recv()
        except (EOFError, ConnectionResetError):
            return None
        worker.heard, worker.started = time.monotonic(), True
        if kind == "beat":
            self._on_steps(content)
        elif kind == "error":
            raise WorkerError(content)
        return kind, content

    def _retry(self, worker: _Worker, queue: deque[int], attempts: list[int], what: str) -> None:
        """Replace a worker and put its job back at the head of the queue."""
        worker.kill()
        self.replaced += 1
        if worker.job is not None:
            attempts[worker.job] += 1
            if attempts[worker.job] >= ATTEMPTS:
                raise WorkerError(
                    f"a worker {what} on each of {ATTEMPTS} attempts at job {worker.job} (exit code"
                    f" {worker.process.exitcode}; -9 is often a lack of memory: try fewer"
                    " workers.processes or env.lanes)"
                )
            queue.appendleft(worker.job)
        self._workers[self._workers.index(worker)] = self._start()


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


def _serve(connection: Connection, setup: Callable[[], Any]) -> None:
    """The life of a worker: build the tool, then do jobs until the pipe closes."""
    if _GROUPS:
        os.setpgid(0, 0)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    # Ctrl-C reaches the whole process group; the parent alone decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    reporter = _Reporter(connection)
    tool: Any = None
    try:
        reporter.flush()  # it has started
        tool = setup()
        while True:
            job = connection.recv()
            result = job(tool, reporter.beat)
            reporter.flush()
            connection.send(("done", result))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the pool has closed
    except Exception as error:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.send(("error", _line_of(error)))
    finally:
        if hasattr(tool, "close"):
            tool.close()


def _line_of(error: Exception) -> str:
    """What the parent says of an error in a worker."""
    if isinstance(error, WorldModelsError):
        return str(error)
    last = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{os.path.basename(last.filename)}:{last.lineno}"
    return f"{type(error).__name__} in a worker ({place}): {error}".replace("\n", " ")


def _die_with_parent() -> None:
    """Wait for the parent's death, by whatever it dies, and take all of this group along."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    _kill_group(os.getpid())


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


class _Reporter:
    """Sends the steps done, at most once in a while."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._steps, self._sent = 0, time.monotonic()

    def beat(self, steps: int) -> None:
        self._steps += steps
        if time.monotonic() - self._sent > _BEAT_SECONDS:
            self.flush()

    def flush(self) -> None:
        self._connection.send(("beat", self._steps))
        self._steps, self._sent = 0, time.monotonic()
