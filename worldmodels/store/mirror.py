"""``store=`` and ``resume=`` of a command: the copying process as the run has it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
import time
import uuid
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Self

from worldmodels.config.schema import Config
from worldmodels.config.stores import protocol
from worldmodels.errors import ConfigError, StoreError
from worldmodels.runs.locks import FolderLock
from worldmodels.runs.tracking import say
from worldmodels.store.copier import Missing, lacking, read_record
from worldmodels.store.index import record_path
from worldmodels.store.process import Failed, Finish, Ready, Said, State, Work, serve
from worldmodels.system import interrupts, streams

_SPAWN = multiprocessing.get_context("spawn")
_LOOK_SECONDS = 0.2
_RESTARTS = 3
_CLOSING_SECONDS = 3.0


class Mirror:
    """Copies a run to a store while stages run within its context, having fetched it before.

    When the context ends, it waits until the store has everything: ``mirror.timeout`` after a run
    that is finished, ``mirror.stop_timeout`` after one that was stopped or failed.

    Args:
        config: the whole configuration; it has a ``store`` or a ``resume``.
        root: the folder of the run.

    Raises:
        ConfigError: a store cannot be reached, is in use, or has no run.
        Stopped: the process was asked to stop meanwhile.
        StoreError: at the end of a run that is finished, the store lacks files.
    """

    def __init__(self, config: Config, root: Path) -> None:
        store = _without_slash(config.store)
        _check_outside(store, root)
        self._config = config
        self._work = Work(
            root.absolute(),
            config.run,
            store,
            _without_slash(config.resume),
            config.mirror.interval,
            config.mirror.cpu_share,
            uuid.uuid4().hex,
        )
        self._where = f"store={store}"
        self._state: State | None = None
        self._ended = threading.Event()
        self._finishing, self._closed = False, False
        self._process: BaseProcess
        self._connection: Connection

    def __enter__(self) -> Self:
        lock = None
        if self._work.resume is not None:
            lock = FolderLock(self._work.root, self._config.stage.name)
        self._start()
        try:
            self._await_ready()
        except BaseException:
            self._kill()
            raise
        finally:
            if lock is not None:
                lock.release()
        if self._work.store is None:
            self._kill()
        else:
            threading.Thread(target=self._listen, daemon=True).start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._work.store is None:
            return
        mirror = self._config.mirror
        try:
            lacks = None
            if error is None or isinstance(error, Exception):
                lacks = self._finish(mirror.timeout if error is None else mirror.stop_timeout)
        finally:
            self._kill()
        if lacks is None:
            return
        if error is None:
            raise StoreError(f"{lacks}; the run is finished: repeat the command to copy the rest")
        streams.print_error(f"{lacks}; repeat the command to copy the rest")

    def _start(self) -> None:
        ours, theirs = _SPAWN.Pipe()
        process = _SPAWN.Process(target=serve, args=(theirs, os.getpid(), self._work), daemon=True)
        process.start()
        theirs.close()
        self._process, self._connection = process, ours

    def _await_ready(self) -> None:
        """Wait until the run can begin, and print the lines that arrive meanwhile."""
        while True:
            interrupts.check()
            if not self._connection.poll(_LOOK_SECONDS):
                continue
            try:
                message = self._connection.recv()
            except EOFError:
                self._process.join(_CLOSING_SECONDS)
                key = self._where if self._work.store else f"resume={self._work.resume}"
                raise ConfigError(
                    f"{key}: the copying process ended (exit code {self._process.exitcode}) before"
                    " it began; run the same command again"
                ) from None
            if isinstance(message, Ready):
                return
            if isinstance(message, Failed):
                raise ConfigError(message.line)
            if isinstance(message, Said):
                say(message.line)

    def _listen(self) -> None:
        """Print the lines of the process, and start it again if it ends unasked; a thread."""
        restarts = 0
        while True:
            try:
                message = self._connection.recv()
            except (EOFError, OSError):
                if self._closed or restarts == _RESTARTS:
                    self._ended.set()
                    return
                restarts += 1
                self._process.join(_CLOSING_SECONDS)
                code = self._process.exitcode
                say(
                    f"{self._where}: the copying process ended (exit code {code}), a new one begins"
                )
                self._work = replace(self._work, resume=None)
                self._start()
                if self._finishing:
                    self._ask()
                continue
            if isinstance(message, Said):
                say(message.line)
            elif isinstance(message, Failed):  # of a process that was started again
                self._state = State(Missing(0, 0), message.line.partition(": ")[2])
            elif isinstance(message, State):
                self._state = message
                if message.final:
                    if message.reason and not self._finishing:
                        say(f"{self._where}: {message.reason}; the run goes on without copies")
                    self._ended.set()
                    return

    def _finish(self, patience: float) -> str | None:
        """Wait until the store has everything; what it lacks, or None."""
        deadline = time.monotonic() + patience
        self._finishing = True
        self._ask()
        hurried = interrupts.requested()
        while not self._ended.wait(_LOOK_SECONDS) and time.monotonic() < deadline:
            if interrupts.requested() and not hurried:
                hurried = True
                bound = self._config.mirror.stop_timeout
                deadline = min(deadline, time.monotonic() + bound)
                say(f"{self._where}: asked to stop: copying goes on for up to {bound:g} s")
        state = self._state
        if state is not None and state.final and not state.reason and not state.missing.files:
            say(f"{self._where}: has all {state.has}")
            return None
        why = "" if state is None else state.reason
        why = why or ("no answer" if self._ended.is_set() else "time is up")
        missing = self._missing()
        lacks = f"lacks {missing}" if missing.files else "may lack files"
        return f"{self._where}: {lacks} ({why})"

    def _missing(self) -> Missing:
        """What the process says that the store lacks; by its record while it does not answer."""
        if self._state is not None and self._state.missing.files:
            return self._state.missing
        root, url = self._work.root, self._work.store
        assert url is not None
        return lacking(root, read_record(record_path(root, url))[1])

    def _ask(self) -> None:
        """Ask the process to finish; `_listen` handles one that has ended."""
        with contextlib.suppress(OSError):
            self._connection.send(Finish())

    def _kill(self) -> None:
        self._closed = True
        if self._ended.is_set() or self._work.store is None:
            self._process.join(_CLOSING_SECONDS)  # it gives the store back
        self._process.kill()
        self._process.join(_CLOSING_SECONDS)
        self._connection.close()


def _check_outside(store: str | None, root: Path) -> None:
    """Raise `ConfigError` for a store in the folder of the run, where copies would be copied."""
    if store is None or protocol("store", store) != "file":
        return
    path, run = Path(store.removeprefix("file://")).resolve(), root.resolve()
    if path == run or run in path.parents:
        raise ConfigError(
            f"store={store}: is in the folder of the run, {root}; choose another place"
        )


def _without_slash(url: str | None) -> str | None:
    """An address, so that equal ones are equal texts."""
    return None if url is None else url.rstrip("/") or url
