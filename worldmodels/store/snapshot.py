"""The files of a run's folder as of one instant, while other processes write there.

Finished files are put in place by renaming and logs are only appended to. Two looks at the whole
folder that find the same inodes, sizes and times have seen one state, which was there between them.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple

from worldmodels.store.index import is_name, wanted

LOGS = (".jsonl", ".csv")
"""Files that are appended to, line by line."""
_LOOKS = 50
_PAUSE_SECONDS = 0.02
_OPEN_FILES = 256


class Changing(Exception):
    """The folder changes too often for a state to be seen."""


class Stamp(NamedTuple):
    """What changes when a file does."""

    inode: int
    size: int
    mtime_ns: int


class Snapshot(NamedTuple):
    """The files of a folder.

    Args:
        stamps: of all files, by name.
        opened: the changed files, open; the rest of them, if they are too many, by `open_same`.
    """

    stamps: dict[str, Stamp]
    opened: dict[str, BufferedReader]


def scan(root: Path) -> dict[str, Stamp]:
    """The regular files below a folder, by name; without links, locks, temporary files, and files
    whose names an index cannot have.

    Raises:
        FileNotFoundError: the folder itself is gone.
    """
    found: dict[str, Stamp] = {}
    folders = [""]
    while folders:
        prefix = folders.pop()
        try:
            entries = list(os.scandir(root / prefix))
        except (FileNotFoundError, NotADirectoryError):
            if not prefix:
                raise
            continue  # removed meanwhile
        for entry in entries:
            folder = entry.is_dir(follow_symlinks=False)
            name = f"{prefix}{entry.name}"
            if folder and wanted(entry.name, folder):
                folders.append(f"{name}/")
            elif folder or not is_name(name):
                continue  # such as one with a backslash, which an index cannot have
            elif entry.is_file(follow_symlinks=False):
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                found[name] = Stamp(status.st_ino, status.st_size, status.st_mtime_ns)
    return found


@contextmanager
def snapshot(root: Path, known: Mapping[str, Stamp]) -> Iterator[Snapshot]:
    """The files of a folder, those open that are not `known`.

    Raises:
        Changing: it was never the same in two looks.
        FileNotFoundError: the folder is gone.
    """
    stamps = scan(root)
    for _ in range(_LOOKS):
        with ExitStack() as stack:
            opened = _open(root, stamps, known, stack)
            again = scan(root)
            if opened is not None and again == stamps:
                yield Snapshot(stamps, opened)
                return
        stamps = again
        time.sleep(_PAUSE_SECONDS)
    raise Changing


def _open(
    root: Path, stamps: dict[str, Stamp], known: Mapping[str, Stamp], stack: ExitStack
) -> dict[str, BufferedReader] | None:
    """The changed files, the newest ones if they are too many; None if one is another by now."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = min(_OPEN_FILES, max(limit // 4, 16))
    changed = [name for name, stamp in stamps.items() if known.get(name) != stamp]
    changed.sort(key=lambda name: stamps[name].mtime_ns, reverse=True)
    opened = {}
    for name in changed[:most]:
        file = open_same(root, name, stamps[name])
        if file is None:
            return None
        opened[name] = stack.enter_context(file)
    return opened


def open_same(root: Path, name: str, stamp: Stamp) -> BufferedReader | None:
    """A file that is still the one with this stamp; None if it is not."""
    try:
        descriptor = os.open(root / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    file = os.fdopen(descriptor, "rb")
    if not same(file, stamp):
        file.close()
        return None
    return file


def same(file: BufferedReader, stamp: Stamp) -> bool:
    """Whether an open file is, unchanged, the one with this stamp."""
    status = os.fstat(file.fileno())
    return Stamp(status.st_ino, status.st_size, status.st_mtime_ns) == stamp


def whole_lines(file: BufferedReader, size: int) -> bytes:
    """The first `size` bytes of a log, to the end of the last line that is complete."""
    file.seek(0)
    content = file.read(size)
    return content[: content.rfind(b"\n") + 1]
