"""A run's folder from its copy in a store.

The content of a store is not trusted: names are checked when the index is read, every file is made
anew below a folder of this process, no larger than declared, and compared with its SHA-256.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from worldmodels.errors import ArtifactError
from worldmodels.files.untrusted import sha256
from worldmodels.store.copier import Known, read_record, write_record
from worldmodels.store.index import Entry, Index, read_index, record_path
from worldmodels.store.location import Location
from worldmodels.store.snapshot import scan
from worldmodels.system.disk import existing

_TOGETHER = 8
"""Files that are fetched at once: of small ones, most of the time is waiting."""
_ATTEMPTS = 5
"""A store that is written to meanwhile has another index each time."""


class _Moved(Exception):
    """A content is neither under its file's name nor incoming."""


def restore(
    root: Path, url: str, location: Location, empty: bool, say: Callable[[str], None]
) -> None:
    """Make the folder of a run from a store, or leave it if it is that run already.

    Killed before its end, it leaves a folder of another name, from which the next call goes on.

    Args:
        root: the folder.
        url: address of the store, for messages and the folder's record.
        location: the store.
        empty: whether a store without a run is no error; then nothing is made.
        say: called with lines about progress.

    Raises:
        ArtifactError: there is no run, it is damaged or does not fit on the disk, or the folder has
            files of something else.
    """
    where = f"resume={url}"
    index = read_index(location, where)
    if root.is_dir() and scan(root):
        if index is not None and index.version in read_record(record_path(root, url))[0]:
            say(f"{where}: {root} is this run and as new: it is continued")
            return
        if index is None and empty:
            return
        raise ArtifactError(
            f"{where}: {root} has files that are not from there; move it away, or choose another"
            " run=<name>"
        )
    if index is None or not index.files:
        if empty:
            say(f"{where}: there is no run yet: it begins here")
            return
        raise ArtifactError(f"{where}: there is no copy of a run; check the address")
    place = root.with_name(f".{root.name}.restored")
    for _ in range(_ATTEMPTS):
        total = sum(entry.size for entry in index.files.values())
        _check_room(place, total, where)
        say(f"{where}: fetching {len(index.files):,} files, {total / 1e6:,.1f} MB, into {root}")
        try:
            _fetch_all(place, index, location)
            break
        except _Moved as moved:
            newer = read_index(location, where)
            if newer is None or newer.version == index.version:
                raise ArtifactError(
                    f"{where}: {moved} is damaged or missing there; choose another copy"
                ) from None
            index = newer
    else:
        raise ArtifactError(f"{where}: changes all the time; wait for the run that copies to it")
    stamps = scan(place)
    known = {name: Known(stamps[name], entry) for name, entry in index.files.items()}
    write_record(record_path(place, url), [index.version], known)
    _put_in_place(place, root)


def _fetch_all(place: Path, index: Index, location: Location) -> None:
    """Fetch what is missing of an index into `place`, and remove what it does not name."""
    place.mkdir(parents=True, exist_ok=True)
    for name in scan(place).keys() - index.files.keys():
        (place / name).unlink()
    for name in index.files:
        if (place / name).is_dir():  # of an older state
            shutil.rmtree(place / name)
        (place / name).parent.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(_TOGETHER) as pool:
        waiting = [
            pool.submit(_fetch, place / name, name, entry, location)
            for name, entry in index.files.items()
        ]
        try:
            for one in waiting:
                one.result()
        finally:
            for one in waiting:
                one.cancel()


def _fetch(path: Path, name: str, entry: Entry, location: Location) -> None:
    """Fetch one file, unless it is there."""
    if path.is_file() and path.stat().st_size == entry.size:
        if sha256(path, entry.size) == entry.sha256:
            return
        path.unlink()
    temporary = path.with_name(f".{path.name[:200]}.fetched.tmp")
    # Under its name there may be the content of an earlier index, if a newer one is incoming.
    for source in (name, entry.incoming, name):
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        with temporary.open("xb") as target:
            found = location.download(source, entry.size, target)
            target.flush()
            os.fsync(target.fileno())
        if found == entry.sha256:
            temporary.replace(path)
            return
    temporary.unlink()
    raise _Moved(name)


def _check_room(place: Path, total: int, where: str) -> None:
    free = shutil.disk_usage(existing(place.parent)).free
    there = 0
    if place.is_dir():
        there = sum(stamp.size for stamp in scan(place).values())
    if total > free + there:
        raise ArtifactError(
            f"{where}: the run has {total:,} bytes, {place.parent} has room for {free + there:,};"
            " choose another data=<folder>"
        )


def _put_in_place(place: Path, root: Path) -> None:
    if root.is_dir():  # it has no files of a run, perhaps locks
        for path in root.iterdir():
            if path.is_file():
                path.unlink()
            else:
                shutil.rmtree(path)
        root.rmdir()
    place.rename(root)
