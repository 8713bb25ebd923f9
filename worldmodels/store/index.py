"""The index of a store: which files the run has, as of one instant, and how they are known again.

The object ``.store/index.json`` is replaced as a whole once all files that it names are in the
store. A reader therefore gets a state that the run's folder had at one moment, even if the copying
process was killed.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from worldmodels.errors import ArtifactError
from worldmodels.files.untrusted import printable
from worldmodels.store.location import PRIVATE, Location

INDEX = f"{PRIVATE}/index.json"
INCOMING = f"{PRIVATE}/incoming"
"""Contents by their SHA-256, before they come under the names of the files."""
FORMAT = 1
_INDEX_BYTES = 256 * 2**20
_FILES = 1_000_000
_FILE_BYTES = 2**42
_NAME, _PART, _DEPTH = 1024, 255, 16
"""Bytes of a name and of each of its parts, and parts, at most."""
_SUCCESSION = re.compile(r"\.[^.].*\.(replaced|unfinished)")
"""What `worldmodels.runs.succession` calls a stage's folder beside its successor."""


class Entry(NamedTuple):
    """A file as the index lists it: its size in bytes, and the SHA-256 of its content."""

    size: int
    sha256: str

    @property
    def incoming(self) -> str:
        """The name of its content before it comes under the name of the file."""
        return f"{INCOMING}/{self.sha256}"


def new_version() -> str:
    """What no other index has as its version."""
    return uuid.uuid4().hex


@dataclass(frozen=True)
class Index:
    """The files of a run in a store.

    Args:
        version: differs in every index that is written.
        run: what the run is called where it is made, for messages.
        files: name -> size and content.
        removed: names that the index before had; those objects may still be there.
    """

    version: str
    run: str
    files: Mapping[str, Entry]
    removed: tuple[str, ...] = field(default=())

    def dump(self) -> bytes:
        """As JSON."""
        files = {name: {"size": e.size, "sha256": e.sha256} for name, e in self.files.items()}
        content = {"format": FORMAT, "version": self.version, "run": self.run}
        return json.dumps(content | {"files": files, "removed": self.removed}, indent=1).encode()


def read_index(location: Location, where: str) -> Index | None:
    """The index of a store, checked; None if there is none.

    Args:
        location: the store.
        where: key and address, for messages.

    Raises:
        ArtifactError: it is damaged, or names what no run has.
    """
    content = location.read(INDEX, _INDEX_BYTES)
    if content is None:
        return None
    try:
        record: Any = json.loads(content)
        if record["format"] != FORMAT:
            raise ValueError(f"its format is {record['format']}, here {FORMAT}")
        version, run = record["version"], record["run"]
        if not isinstance(version, str) or not isinstance(run, str):
            raise ValueError("version or run is not text")
        files = {_name(name): _entry(entry) for name, entry in record["files"].items()}
        removed = tuple(_name(name) for name in record["removed"])
        if len(files) > _FILES:
            raise ValueError(f"it names more than {_FILES:,} files")
        folders = {str(parent) for name in files for parent in PurePosixPath(name).parents}
        if both := sorted(folders & files.keys()):
            raise ValueError(f"{both[0]} is a file and a folder")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ArtifactError(
            f"{where}: its {INDEX} is damaged ({printable(str(error), 200)}); choose another store"
        ) from None
    return Index(version, printable(run, 200), files, removed)


def wanted(part: str, folder: bool) -> bool:
    """Whether a part of a path is of the run's content: no lock, no temporary or removed one."""
    if not part.startswith("."):
        return True
    return folder and _SUCCESSION.fullmatch(part) is not None


def is_name(name: Any) -> bool:
    """Whether an index may have this name of a file below a run's folder."""
    parts = name.split("/") if isinstance(name, str) else []
    return (
        0 < len(parts) <= _DEPTH
        and name.isprintable()
        and len(name.encode()) <= _NAME
        and "\\" not in name
        and all(0 < len(part.encode()) <= _PART for part in parts)
        and all(wanted(part, folder=True) for part in parts[:-1])
        and wanted(parts[-1], folder=False)
    )


def _name(name: Any) -> str:
    if not is_name(name):
        raise ValueError(f"{name!r} is not a name of a file of a run")
    return str(name)


def _entry(entry: Any) -> Entry:
    size, sha256 = entry["size"], entry["sha256"]
    if type(size) is not int or not 0 <= size <= _FILE_BYTES:
        raise ValueError(f"{size!r} is not a size")
    if not isinstance(sha256, str) or re.fullmatch("[0-9a-f]{64}", sha256) is None:
        raise ValueError(f"{sha256!r} is no SHA-256")
    return Entry(size, sha256)


def record_path(root: Path, url: str) -> Path:
    """The file in a run's folder that records its copy at `url`."""
    name = uuid.uuid5(uuid.NAMESPACE_URL, url).hex[:12]
    return root / f".store-{name}.json"
