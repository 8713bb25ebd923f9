"""The process that copies a run to a store while the run goes on, and fetches it before.

A process and not a thread: it shares neither the interpreter's lock nor the memory of the stage. It
uses a share of one core only (`worldmodels.store.budget`); a lower priority would starve the start
and the end, for which the run waits. It ends with the process that started it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from worldmodels.errors import ArtifactError, ConfigError, WorldModelsError, system_error
from worldmodels.files.untrusted import printable
from worldmodels.store.budget import Budget
from worldmodels.store.copier import Copier, Missing, check_empty, read_record
from worldmodels.store.index import Index, read_index, record_path
from worldmodels.store.lease import REFRESH_SECONDS, InUse, Lease
from worldmodels.store.location import Location, connect
from worldmodels.store.restore import restore
from worldmodels.store.snapshot import Changing

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
"""Seconds between attempts to reach a store, doubled after each."""
_PAUSE_AT_THE_END, _PAUSE_WHILE_CHANGING = 5.0, 0.2
_LONGEST_REASON = 300


@dataclass(frozen=True)
class Work:
    """What the process does.

    Args:
        root: the folder of the run.
        name: of the run.
        store: address to copy to, if any.
        resume: address to fetch the run from before, if any.
        interval: least seconds between two looks at the folder.
        cpu_share: of one core.
        token: names the lease on the store; a process that replaces another has the same.
    """

    root: Path
    name: str
    store: str | None
    resume: str | None
    interval: float
    cpu_share: float
    token: str


class Said(NamedTuple):
    """A line to print while the process works."""

    line: str


class Ready(NamedTuple):
    """The run can begin."""


class Failed(NamedTuple):
    """The process cannot work: the line of an error."""

    line: str


class State(NamedTuple):
    """Near the end: what the store lacks, why, what it has, and whether that is the end."""

    missing: Missing
    reason: str = ""
    has: Missing = Missing(0, 0)
    final: bool = False


class Finish(NamedTuple):
    """Asks to bring the store to the state of the folder and end."""


def serve(connection: Connection, parent: int, work: Work) -> None:
    """Do `work`; the main function of the process.

    Args:
        connection: to the process that started it.
        parent: the number of that process.
        work: what to do.
    """
    for number in (signal.SIGINT, signal.SIGTERM):  # sent to the group; the parent decides
        signal.signal(number, signal.SIG_IGN)
    # It prints tracebacks of requests whose connection was lost, which are repeated.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    finish = threading.Event()
    threading.Thread(target=_listen, args=(connection, finish), daemon=True).start()
    say = _Speaker(connection)
    lease: Lease | None = None
    try:
        try:
            location, lease = _begin(work, parent, say)
        except WorldModelsError as error:
            say.send(Failed(str(error)))
            return
        say.send(Ready())
        if location is not None and lease is not None:
            say.send(_Loop(location, lease, work, finish, say).run())
    finally:
        if lease is not None:
            with contextlib.suppress(Exception):
                lease.release()


def _listen(connection: Connection, finish: threading.Event) -> None:
    """Wait for what the parent asks; end with it."""
    try:
        while True:
            connection.recv()
            finish.set()
    except (EOFError, OSError):
        os._exit(0)


class _Speaker:
    """Sends messages from several threads."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._lock = connection, threading.Lock()

    def send(self, message: Said | Ready | Failed | State) -> None:
        with self._lock:
            self._connection.send(message)

    def __call__(self, line: str) -> None:
        self.send(Said(line))


def _begin(work: Work, parent: int, say: _Speaker) -> tuple[Location | None, Lease | None]:
    """Claim the store and fetch the run."""
    location, lease = None, None
    continues = work.store is not None and work.store == work.resume
    if work.store is not None:
        with _reaching("store", work.store):
            location = connect("store", work.store)
            index = read_index(location, f"store={work.store}")
            if index is None:
                check_empty(location, f"store={work.store}")
            if not continues:
                _check_own(work, index)
            location.prepare()
            lease = Lease(location, f"store={work.store}", parent, work.token)
            lease.claim(say)
            # From now on: fetching a run may take longer than a lease lasts.
            threading.Thread(target=_refresh, args=(lease,), daemon=True).start()
    try:
        if work.resume is not None:
            with _reaching("resume", work.resume):
                source = connect("resume", work.resume)
                restore(work.root, work.resume, source, continues, say)
        if location is not None and work.store is not None:
            with _reaching("store", work.store):
                _check_own(work, read_index(location, f"store={work.store}"))
                assert lease is not None
                lease.check()
    except BaseException:
        if lease is not None:
            with contextlib.suppress(Exception):
                lease.release()
        raise
    return location, lease


@contextlib.contextmanager
def _reaching(key: str, url: str) -> Iterator[None]:
    """Raise what goes wrong with a store as a `ConfigError` that names its key."""
    try:
        yield
    except WorldModelsError:
        raise
    except Exception as error:
        raise ConfigError(f"{key}={url}: {reason(error)}; check address and permissions") from error


def _check_own(work: Work, index: Index | None) -> None:
    """Raise `ArtifactError` unless the store's newest state came from this folder."""
    assert work.store is not None
    if index is None:
        return
    versions = read_record(record_path(work.root, work.store))[0]
    if index.version in versions:
        return
    if versions:
        raise ArtifactError(
            f"store={work.store}: another folder has continued this run there; to go on from that"
            f" state, move {work.root} away and add resume={work.store}"
        )
    raise ArtifactError(
        f"store={work.store}: is in use by another run ({index.run}); choose another place, or"
        f" continue that run with resume={work.store}"
    )


def _refresh(lease: Lease) -> None:
    """Refresh a lease, also during a long transfer; the next check raises if it is lost."""
    while True:
        time.sleep(REFRESH_SECONDS)
        with contextlib.suppress(Exception):
            lease.refresh()


class _Loop:
    """Step after step until the parent asks to finish, then until nothing is missing."""

    def __init__(
        self,
        location: Location,
        lease: Lease,
        work: Work,
        finish: threading.Event,
        say: _Speaker,
    ) -> None:
        assert work.store is not None
        self._lease, self._work, self._finish, self._say = lease, work, finish, say
        self._budget = Budget(work.cpu_share, finish)
        self._location = location
        self._failures = 0
        self._announced = False

    def run(self) -> State:
        """Copy; returns when the store is equal to the folder, or another process has it."""
        work = self._work
        assert work.store is not None
        copier: Copier | None = None
        while True:
            finishing = self._finish.is_set()
            try:
                if copier is None:
                    copier = Copier(
                        work.root, work.name, work.store, self._location, self._lease, self._budget
                    )
                if finishing:
                    self._announce(copier)
                equal = copier.step()
                if finishing and equal:
                    self._lease.check()
                    return State(copier.missing(), has=copier.count(), final=True)
            except InUse as error:
                missing = Missing(0, 0) if copier is None else copier.missing()
                return State(missing, str(error).partition(": ")[2], final=True)
            except Changing:
                self._budget.rest(work.interval)
                if finishing:  # which cuts that pause short
                    time.sleep(_PAUSE_WHILE_CHANGING)
                continue
            except Exception as error:
                self._failed(error, copier)
                continue
            if self._failures:
                self._say(f"store={work.store}: is reached again")
                self._failures = 0
            self._budget.rest(work.interval)

    def _announce(self, copier: Copier) -> None:
        """Send what is left to copy at the end of the run, the first time as a line too."""
        missing = copier.missing()
        if missing.files and not self._announced:
            self._say(f"store={self._work.store}: copying {missing} before the end")
            self._announced = True
        self._say.send(State(missing))

    def _failed(self, error: Exception, copier: Copier | None) -> None:
        """Report the first of several failures, and pause."""
        self._failures += 1
        why, store = reason(error), self._work.store
        if self._failures == 1:
            self._say(f"store={store}: {why}; the run goes on, and copying is tried again")
        pause = min(_FIRST_PAUSE * 2 ** (self._failures - 1), _LONGEST_PAUSE)
        if self._finish.is_set():  # which cuts the other pauses short
            if copier is not None:
                self._say.send(State(copier.missing(), why))
            time.sleep(min(pause, _PAUSE_AT_THE_END))
        else:
            self._budget.rest(pause)


def reason(error: BaseException) -> str:
    """What is wrong with a store, in one line."""
    if isinstance(error, OSError) and type(error).__module__ == "builtins" and error.filename:
        return system_error(error, error.filename).partition(";")[0]
    text = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    if isinstance(error, PermissionError):
        text = f"permission denied ({text})"
    return printable(text, _LONGEST_REASON)
