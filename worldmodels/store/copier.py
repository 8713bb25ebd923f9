"""The copy of a run's folder in a store, brought up to date step by step.

A step sees the folder as of one instant and puts each new content into the store by its SHA-256
(``.store/incoming/``). Then it replaces the index, and last it gives contents the names of their
files and removes what the folder does not have any more. A step that is cut off leaves the old
index, or the new one with contents that are still incoming: both restore a state of the run.

What a step that was cut off has left to do is done after another look at the lease: meanwhile the
store may be another machine's.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple

from worldmodels.errors import ArtifactError
from worldmodels.files.atomic import write_json
from worldmodels.files.untrusted import read_json
from worldmodels.runs.manifests import MANIFEST
from worldmodels.store.budget import Budget
from worldmodels.store.index import (
    INCOMING,
    INDEX,
    Entry,
    Index,
    new_version,
    read_index,
    record_path,
)
from worldmodels.store.lease import Lease
from worldmodels.store.location import PRIVATE, Location
from worldmodels.store.snapshot import (
    LOGS,
    Changing,
    Snapshot,
    Stamp,
    open_same,
    same,
    scan,
    snapshot,
    whole_lines,
)

_RECORD_BYTES = 512 * 2**20
_SHARD = re.compile(r"(.*/)?rollouts/shard-\d+\.h5")
_STEP_BYTES = 64 * 2**20
"""Of new shards in one step; a larger one has a step of its own."""


class Known(NamedTuple):
    """A file of the folder that was read: its state then, and its content."""

    stamp: Stamp
    entry: Entry


class Missing(NamedTuple):
    """What a store lacks: the number of files, and their size in bytes."""

    files: int
    size: int

    def __str__(self) -> str:
        noun = "file" if self.files == 1 else "files"
        return f"{self.files:,} {noun} ({self.size / 1e6:,.1f} MB)"


class Copier:
    """The copy of one run in one store.

    Args:
        root: the folder of the run.
        name: of the run, for messages.
        url: address of the store.
        location: the store.
        lease: this process's right to write there, already claimed.
        budget: how much of a core it may use.
    """

    def __init__(
        self, root: Path, name: str, url: str, location: Location, lease: Lease, budget: Budget
    ) -> None:
        self._root, self._name, self._location = root, name, location
        self._lease, self._budget = lease, budget
        self._record = record_path(root, url)
        found = read_index(location, f"store={url}")
        self._index = found or Index("", name, {})
        # Killed before the index was replaced, the record has files that are not in it.
        self._read = read_record(self._record)[1]
        files = self._index.files
        self._known = {n: known for n, known in self._read.items() if files.get(n) == known.entry}
        names = location.names()
        self._incoming = {name for name in names if name.startswith(f"{INCOMING}/")}
        self._unsettled = [n for n, e in self._index.files.items() if e.incoming in self._incoming]
        self._removed = [name for name in self._index.removed if name in names]
        # Versions of the index that were sent and not acknowledged: the store may have one of them.
        self._sent: list[str] = []

    def step(self) -> bool:
        """Bring the store to the state of the folder; whether it was there already.

        Raises:
            Changing: no state of the folder could be seen, as often as it changes.
            InUse: another process has taken the store.
            OSError: or another exception of the store: it was not reached.
        """
        if not self._root.is_dir():
            if not self._index.files:
                return True  # the first stage has not begun
            raise FileNotFoundError(f"{self._root} is gone")
        self._settle()
        known = {name: file.stamp for name, file in self._known.items()}
        indexed = known.keys() == self._index.files.keys() and not self._sent
        if indexed and scan(self._root) == known:
            return True
        with snapshot(self._root, known) as seen:
            taken = self._within(seen.stamps)
            files = {name: self._file(name, seen) for name in _in_order(taken)}
        entries = {name: file.entry for name, file in files.items()}
        if entries == self._index.files and not self._sent:
            self._known = files
            write_record(self._record, [self._index.version], files)
            self._clean()
            return True
        self._publish(files)
        self._settle()
        self._clean()
        self._read = {}
        return False

    def missing(self) -> Missing:
        """What of the folder's files is not in the index as it is."""
        missing = lacking(self._root, self._known)
        return Missing(missing.files + len(self._unsettled), missing.size)

    def count(self) -> Missing:
        """How many files the index has, and their size."""
        return Missing(len(self._index.files), sum(e.size for e in self._index.files.values()))

    def _within(self, stamps: Mapping[str, Stamp]) -> list[str]:
        """The files of this step: all, or on a slow line some of the shards that are new.

        Shards of an unfinished data set are independent: any number of them is a state that the
        stage continues from.
        """
        size, taken = 0, []
        for name in sorted(stamps, key=lambda name: stamps[name].mtime_ns):
            manifest = name.rpartition("/")[0] + f"/{MANIFEST}"
            if name not in self._known and _SHARD.fullmatch(name):
                others, size = size, size + stamps[name].size
                known = self._known.get(manifest)
                unfinished = known is not None and known.stamp == stamps.get(manifest)
                if unfinished and others and size > _STEP_BYTES:
                    continue
            taken.append(name)
        return taken

    def _file(self, name: str, seen: Snapshot) -> Known:
        """A file of the folder, its content in the store."""
        stamp = seen.stamps[name]
        known = self._read.get(name) or self._known.get(name)
        if known is not None and known.stamp == stamp and self._has(name, known.entry):
            return known
        with self._opened(name, seen) as file:
            if name.endswith(LOGS):
                content = whole_lines(file, stamp.size)
                entry = Entry(len(content), hashlib.sha256(content).hexdigest())
                self._put(name, entry, lambda: self._location.write(entry.incoming, content))
            else:
                file.seek(0)
                entry = Entry(stamp.size, hashlib.file_digest(file, "sha256").hexdigest())
                self._put(name, entry, lambda: self._location.upload(entry.incoming, file))
                if not same(file, stamp):  # written to in place
                    self._location.remove(entry.incoming)
                    self._incoming.discard(entry.incoming)
                    raise Changing
        self._read[name] = Known(stamp, entry)
        self._budget.rest()
        return self._read[name]

    def _has(self, name: str, entry: Entry) -> bool:
        """Whether the store has a content, incoming or under this name."""
        return entry.incoming in self._incoming or self._index.files.get(name) == entry

    def _opened(self, name: str, seen: Snapshot) -> BufferedReader:
        file = seen.opened.get(name) or open_same(self._root, name, seen.stamps[name])
        if file is None:
            raise Changing
        return file

    def _put(self, name: str, entry: Entry, send: Callable[[], None]) -> None:
        """Have a content in the store: by `send`, unless it is there under whatever name."""
        if self._has(name, entry):
            return
        twin = next((other for other, e in self._index.files.items() if e == entry), None)
        if twin is None:
            send()
        else:  # of a folder that was renamed
            self._location.copy(twin, entry.incoming)
        self._incoming.add(entry.incoming)

    def _publish(self, files: dict[str, Known]) -> None:
        """Replace the index: from here on the store has this state."""
        before = self._index
        removed = sorted({*before.files, *self._removed} - files.keys())
        entries = {name: file.entry for name, file in files.items()}
        after = Index(new_version(), self._name, entries, tuple(removed))
        self._lease.check()
        # First: killed here, the folder must know either version as its own.
        self._sent.append(after.version)
        write_record(self._record, [before.version, *self._sent], files)
        self._location.write(INDEX, after.dump())
        self._sent.clear()
        changed = [name for name, entry in entries.items() if before.files.get(name) != entry]
        self._unsettled = [*dict.fromkeys([*self._unsettled, *changed])]
        self._unsettled = [name for name in self._unsettled if name in entries]
        self._removed, self._index, self._known = removed, after, files

    def _settle(self) -> None:
        """Remove what no file has any more, and give contents the names of their files."""
        if self._removed or self._unsettled:
            self._lease.check()
        while self._removed:
            self._location.remove(self._removed[-1])
            self._removed.pop()
        waiting = Counter(self._index.files[name].incoming for name in self._unsettled)
        for name in _in_order(self._unsettled):
            content = self._index.files[name].incoming
            waiting[content] -= 1
            if waiting[content]:
                self._location.copy(content, name)
            else:
                self._move(content, name)
                self._incoming.discard(content)
            self._unsettled.remove(name)

    def _move(self, content: str, name: str) -> None:
        """Give a content the name of its file, unless an attempt whose answer was lost did it."""
        try:
            self._location.move(content, name)
        except FileNotFoundError:
            entry = self._index.files[name]
            with open(os.devnull, "wb") as nowhere:
                if self._location.download(name, entry.size, nowhere) != entry.sha256:
                    raise

    def _clean(self) -> None:
        """Remove contents of states that never were complete."""
        if self._incoming:
            self._lease.check()
        for content in sorted(self._incoming):
            self._location.remove(content)
            self._incoming.discard(content)


def _in_order(names: Iterable[str]) -> list[str]:
    """Names with those of manifests last: they name other files."""
    return sorted(names, key=lambda name: (name.rpartition("/")[2] == MANIFEST, name))


def lacking(root: Path, known: Mapping[str, Known]) -> Missing:
    """How the files of a folder differ from `known` ones, by their stamps."""
    if not root.is_dir():
        return Missing(0, 0)
    stamps = scan(root)
    sizes = [
        stamp.size
        for name, stamp in stamps.items()
        if name not in known or known[name].stamp != stamp
    ]
    return Missing(len(sizes) + len(known.keys() - stamps.keys()), sum(sizes))


def check_empty(location: Location, where: str) -> None:
    """Raise `ArtifactError` where a store without an index has objects of others."""
    others = sorted(n for n in location.names() if not n.startswith(f"{PRIVATE}/"))
    if others:
        raise ArtifactError(
            f"{where}: contains {others[0]} and is not a copy of a run; choose an empty place"
        )


def read_record(path: Path) -> tuple[list[str], dict[str, Known]]:
    """The versions of the index that a run's folder has had, and its files as they were copied.

    Both are empty where there is no record or a damaged one.
    """
    try:
        record: Any = read_json(path, _RECORD_BYTES)
        files = {
            str(name): Known(Stamp(*map(int, line[:3])), Entry(int(line[3]), str(line[4])))
            for name, line in record["files"].items()
        }
        return [str(version) for version in record["versions"]], files
    except (ArtifactError, ValueError, KeyError, TypeError, AttributeError, IndexError):
        return [], {}


def write_record(path: Path, versions: list[str], files: dict[str, Known]) -> None:
    """Note what `read_record` reads."""
    lines = {name: [*known.stamp, *known.entry] for name, known in files.items()}
    write_json(path, {"versions": [v for v in versions if v], "files": lines})
