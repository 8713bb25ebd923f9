"""The files that a setup or a job names, for workers that do not share a file system.

The pool reads what is read and sends its content; a worker puts it into a temporary folder, does
the job there and sends back what it wrote, which the pool writes to its place.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from worldmodels.files.atomic import atomic_path
from worldmodels.files.untrusted import read_bytes
from worldmodels.workers.jobs import READ, WRITTEN

LARGEST = 2**32
"""Bytes of a file that is sent, at most: far more than any model or shard has."""

Tree = dict[str, bytes]
"""The files at a path: their names in a folder, or the empty one where the path is a file."""


def paths(value: Any, kind: Mapping[str, str]) -> list[Path]:
    """The paths in the fields of a dataclass, and of dataclasses in it, that have this metadata.

    Args:
        value: a setup or a job; other values have no paths.
        kind: `READ` or `WRITTEN`.
    """
    if not is_dataclass(value) or isinstance(value, type):
        return []
    found = []
    for field in fields(value):
        content = getattr(value, field.name)
        if isinstance(content, Path):
            found += [content] * (field.metadata.get("path") == kind["path"])
        else:
            found += paths(content, kind)
    return found


def moved(value: Any, places: Mapping[Path, Path]) -> Any:
    """A setup or a job whose files are in other places.

    Args:
        value: a dataclass; other values are returned as they are.
        places: path -> the path that replaces it.
    """
    if not is_dataclass(value) or isinstance(value, type):
        return value
    changed = {}
    for field in fields(value):
        content = getattr(value, field.name)
        new = places.get(content, content) if isinstance(content, Path) else moved(content, places)
        if new is not content:
            changed[field.name] = new
    return replace(value, **changed) if changed else value


def read_tree(path: Path) -> Tree:
    """The files at a path, which may be a file or a folder.

    A path that does not exist has none: the job that reads it raises the error.

    Raises:
        ArtifactError: a file cannot be read, or is none.
    """
    if path.is_dir():
        names = sorted(file.relative_to(path).as_posix() for file in path.rglob("*"))
        return {name: read_bytes(path / name, LARGEST) for name in names if (path / name).is_file()}
    return {"": read_bytes(path, LARGEST)} if path.exists() else {}


def done_elsewhere(
    value: Any, trees: Iterable[Mapping[Path, Tree]], do: Callable[[Any], Any]
) -> tuple[Any, dict[Path, bytes]]:
    """Call `do` with a copy of a setup or job whose files are in a temporary folder.

    Args:
        value: the setup or job.
        trees: the content of the paths that it reads.
        do: what is done with it. In the text of its exceptions are the places of the copies;
            see `Misplaced`.

    Returns:
        what `do` returned, and the content of the files that it wrote: path -> content.

    Raises:
        Misplaced: `do` raised an exception.
    """
    with tempfile.TemporaryDirectory(prefix="worldmodels-") as folder:
        places: dict[Path, Path] = {}
        distinct = {path: tree for some in trees for path, tree in some.items()}
        for path, tree in distinct.items():
            places[path] = Path(folder, str(len(places)), path.name)
            places[path].parent.mkdir()
            for name, content in tree.items():
                place = places[path] / name if name else places[path]
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(content)
        outputs: dict[Path, Path] = {}
        for path in paths(value, WRITTEN):
            outputs[path] = Path(folder, str(len(places) + len(outputs)), path.name)
            outputs[path].parent.mkdir()
        try:
            result = do(moved(value, {**places, **outputs}))
        except Exception as error:
            raise Misplaced(error, {**places, **outputs}) from error
        return result, {path: place.read_bytes() for path, place in outputs.items()}


class Misplaced(Exception):
    """An exception in which paths are those of copies.

    Args:
        error: the exception.
        places: path -> that of its copy.
    """

    def __init__(self, error: Exception, places: Mapping[Path, Path]) -> None:
        super().__init__(str(error))
        self.error, self.places = error, dict(places)

    def corrected(self, line: str) -> str:
        """A line about the exception, with the original paths in place of those of the copies.

        So are paths beside them: a file has another name while it is written.
        """
        for path, place in self.places.items():
            original = str(path.parent).replace("\\", r"\\")
            line = re.sub(rf"{re.escape(str(place.parent))}(?!\d)", original, line)
        return line


def write_outputs(outputs: Mapping[Path, bytes]) -> None:
    """Write what a worker has written to its places on this machine, each file atomically.

    Raises:
        ArtifactError: the disk is full or not writable.
    """
    for path, content in outputs.items():
        with atomic_path(path) as temporary:
            temporary.write_bytes(content)


def inputs_of(value: Any) -> list[Path]:
    """The paths that a setup or a job reads."""
    return paths(value, READ)
