"""Who copies to a store: one process at a time, also of different machines.

The object ``.store/lease.json`` names the process, and is written anew every `REFRESH_SECONDS`. A
process that ends removes it. That of a machine that is lost is ignored once it is older than
`LEASE_SECONDS` by the store's clock. Object stores have no locks: of two machines that begin in the
same second, one finds the other's lease before its next index and stops copying.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from worldmodels.errors import ArtifactError
from worldmodels.files.untrusted import printable
from worldmodels.store.location import PRIVATE, Location

LEASE = f"{PRIVATE}/lease.json"
REFRESH_SECONDS = 20.0
LEASE_SECONDS = 75.0
_LEASE_BYTES = 10_000
_LOOK_SECONDS = 1.0


class InUse(ArtifactError):
    """Another process copies to this store."""


class Lease:
    """The right to copy to one store.

    Args:
        location: the store.
        where: key and address, for messages.
        process: the process whose run is copied; it is alive as long as the copying one is.
        token: names the lease of that process.
    """

    def __init__(self, location: Location, where: str, process: int, token: str) -> None:
        self._location, self._where, self._token = location, where, token
        self._owner = {
            "token": self._token,
            "machine": _machine(),
            "host": socket.gethostname(),
            "process": process,
            "began": psutil.Process(process).create_time(),
        }

    def claim(self, say: Callable[[str], None]) -> None:
        """Take the lease; waits for one to expire whose process may be gone.

        Raises:
            InUse: another process has it.
        """
        found = self._read()
        if found is not None and not self._own(found) and not _ended(found):
            self._wait(found, say)
        self.refresh(new=True)

    def refresh(self, new: bool = False) -> None:
        """Write the lease again.

        Args:
            new: it is another's, which has expired, or there is none.

        Raises:
            InUse: another process has taken it.
        """
        if not new:
            self.check()
        content = json.dumps(self._owner | {"refreshed": uuid.uuid4().hex})
        self._location.write(LEASE, content.encode())

    def check(self) -> None:
        """Raise `InUse` if it is another's by now, and `FileNotFoundError` if it is gone."""
        found = self._read()
        if found is None:
            raise FileNotFoundError(f"{LEASE} is gone from the store")
        if found.get("token") != self._token:
            raise InUse(f"{self._where}: is in use by {_holder(found)}; choose another store")

    def release(self) -> None:
        """Remove the lease, if it is this one."""
        found = self._read()
        if found is not None and found.get("token") == self._token:
            self._location.remove(LEASE)

    def _own(self, found: dict[str, Any]) -> bool:
        """Whether a lease is of the same process, perhaps of a run before this one."""
        return all(found.get(key) == self._owner[key] for key in ("machine", "process", "began"))

    def _read(self) -> dict[str, Any] | None:
        content = self._location.read(LEASE, _LEASE_BYTES)
        if content is None:
            return None
        try:
            found = json.loads(content)
        except (ValueError, RecursionError):
            found = None
        return found if isinstance(found, dict) else {}

    def _wait(self, found: dict[str, Any], say: Callable[[str], None]) -> None:
        """Return when the lease has expired; raises `InUse` when it is refreshed."""
        if found.get("machine") == self._owner["machine"]:
            raise InUse(f"{self._where}: is in use by {_holder(found)}; choose another store")
        age = self._age()
        if age < LEASE_SECONDS:
            say(
                f"{self._where}: {_holder(found)} copied to it {age:.0f} s ago; waiting up to"
                f" {LEASE_SECONDS - age:.0f} s to see whether that machine is gone"
            )
        deadline = time.monotonic() + LEASE_SECONDS - age
        while time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
            now = self._read()
            if now is None:
                return
            if now != found:
                raise InUse(f"{self._where}: is in use by {_holder(now)}; choose another store")

    def _age(self) -> float:
        """Seconds since the lease was written, by the store's clock: that of an object put now."""
        probe = f"{PRIVATE}/probe-{self._token}"
        self._location.write(probe, b"")
        now, then = self._location.written(probe), self._location.written(LEASE)
        self._location.remove(probe)
        return 0.0 if now is None or then is None else max(0.0, now - then)


def _machine() -> str:
    """Names this machine, and in a container its space of process numbers."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):  # of Linux alone
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def _ended(found: dict[str, Any]) -> bool:
    """Whether the lease is of a process of this machine that has ended."""
    if found.get("machine") != _machine():
        return False
    try:
        began = psutil.Process(int(found["process"])).create_time()
        return abs(began - float(found["began"])) > 1.0
    except psutil.NoSuchProcess:
        return True
    except (psutil.Error, ValueError, KeyError, TypeError):
        return False


def _holder(found: dict[str, Any]) -> str:
    host, process = found.get("host"), found.get("process")
    return printable(f"process {process} on host {host}", 200)
