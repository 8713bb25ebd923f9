"""Which files a stage made, and whether they are still what it made.

A manifest lists the SHA-256 of each file that later stages read (``files``), and a hash of the
configuration and inputs that made them (``made_by``). The first shows damage
before HDF5 or safetensors opens a file, once a command; the second shows that a file is of another
artifact, also while the stage is not finished. Neither protects against a manifest and
files that are both made by an attacker: untrusted content is checked where it is opened.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from worldmodels.errors import ArtifactError, DataError, system_error
from worldmodels.runs.manifests import MANIFEST, read_manifest

REMEDIES = {
    "rollouts": "run stage=rollouts again, which collects it anew",
    "import": "run stage=import again, which makes it anew",
}
"""What to do about a damaged file, by stage; of other stages the artifact is made again."""
IMPORTED = "imported"
"""The value of rollouts.policy in the manifest of episodes that stage=import made."""
SHARDS = "set of shards"
"""The input that says which damaged shards the training of a model left out, if any."""
_FORMAT = (None, errno.EINVAL, errno.EOVERFLOW)
"""What a read at an address that a damaged file names may end with; the rest is not the file's."""


class Listed(NamedTuple):
    """A file as the manifest of its stage lists it.

    Args:
        path: of the file.
        sha256: of its content; None where no manifest has it.
        made_by: hash of what made it, which an HDF5 file repeats; None where no manifest has it.
        remedy: what to do where it is damaged.
    """

    path: Path
    sha256: str | None = None
    made_by: str | None = None
    remedy: str = REMEDIES["rollouts"]


def fingerprint_file(path: Path) -> str:
    """Short SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def fingerprint_arrays(arrays: Mapping[str, np.ndarray]) -> str:
    """Short SHA-256 over names, types, shapes and values, independent of the file format."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()[:16]


def origin(
    stage: str, config: Mapping[str, Any], inputs: Mapping[str, str], growable: Iterable[str] = ()
) -> str:
    """Hash of what determines a stage's files: inputs and configuration without `growable` keys."""
    kept = {key: value for key, value in config.items() if key not in growable}
    content = json.dumps([stage, kept, dict(inputs)], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def require_made_by(path: Path, found: Iterable[object], expected: str) -> None:
    """Raise `ArtifactError` naming `path` unless everything `found` in it is `expected`."""
    if any(value != expected for value in found):
        raise ArtifactError(
            f"{path}: made with another configuration or from other inputs than {MANIFEST} says;"
            " move it away, or make the stage again with overwrite=true"
        )


def sha256(path: Path) -> str:
    """SHA-256 of a regular file's bytes.

    Raises:
        DataError: it is missing, no regular file, or outside its folder.
        ArtifactError: it cannot be read.
    """
    require_regular(path)
    with reading(path, "make it again with overwrite=true"), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """SHA-256 by name of some files of `folder`, for its manifest."""
    return {name: sha256(folder / name) for name in sorted(names)}


def listed(folder: Path, pattern: str) -> list[Listed]:
    """The files of a finished artifact that match `pattern`, by name, as its manifest lists them.

    Raises:
        ArtifactError: the manifest is missing, damaged, or lists no files in its folder.
    """
    manifest = read_manifest(folder)
    imported = manifest["config"].get("rollouts.policy") == IMPORTED
    stage = "import" if imported else folder.name
    remedy = REMEDIES.get(stage, f"make it again with stage={folder.name} overwrite=true")
    files = manifest.get("files")
    if files is None:
        logging.getLogger(__name__).warning(
            "%s: it lists no SHA-256, being of an older version: files are used unverified",
            folder / MANIFEST,
        )
        return [Listed(path, remedy=remedy) for path in sorted(folder.glob(pattern))]
    if not isinstance(files, dict) or not all(map(_is_entry, files.items())):
        raise ArtifactError(
            f"{folder / MANIFEST}: files is not a table of names and SHA-256; {remedy}"
        )
    names = sorted(name for name in files if fnmatch(name, pattern))
    return [Listed(folder / name, files[name], manifest.get("made_by"), remedy) for name in names]


def entry(folder: Path, name: str) -> Listed:
    """One file of a finished artifact; raises `ArtifactError` if the manifest does not list it."""
    found = listed(folder, name)
    if not found:
        raise ArtifactError(
            f"{folder / name}: {MANIFEST} does not list it; make it again with"
            f" stage={folder.name} overwrite=true"
        )
    return found[0]


def verified(folder: Path, name: str) -> Path:
    """A file of a finished artifact, after its content was compared with the manifest.

    Raises:
        DataError: it is missing or damaged.
        ArtifactError: it cannot be read, or the manifest does not list it.
    """
    file = entry(folder, name)
    verify(file)
    return file.path


_verified: set[tuple[Path, int, int, int, str]] = set()


def verify(file: Listed) -> None:
    """Compare a file's content with its SHA-256, unless this process did so before.

    Raises:
        DataError: it is missing, no regular file, or its content is another.
        ArtifactError: it cannot be read.
    """
    require_regular(file.path, file.remedy)
    if file.sha256 is None:
        return
    with reading(file.path, file.remedy):
        info = file.path.stat()
        key = (file.path.resolve(), info.st_ino, info.st_size, info.st_mtime_ns, file.sha256)
        if key in _verified:
            return
        with file.path.open("rb") as content:
            found = hashlib.file_digest(content, "sha256").hexdigest()
    if found != file.sha256:
        raise DataError(
            f"{file.path} is damaged (its SHA-256 is not that of {MANIFEST}); {file.remedy}"
        )
    _verified.add(key)


def require_regular(path: Path, remedy: str = "make it again with overwrite=true") -> None:
    """Raise `DataError` unless `path` is a regular file, and no link that leads out of its folder.

    Opening a FIFO blocks, and reading a device may not end.
    """
    with reading(path, remedy):
        if not path.resolve(strict=True).is_relative_to(path.parent.resolve()):
            raise DataError(f"{path}: a link that leads out of its folder; copy the file there")
        if not stat.S_ISREG(path.stat().st_mode):
            raise DataError(f"{path}: not a regular file; remove it, and {remedy}")


def set_aside_damaged(path: Path) -> str:
    """Rename a damaged file, so that it can be made again; returns a sentence with its new name."""
    place = path.with_name(f"{path.name}.damaged")
    number = 1
    while os.path.lexists(place):
        number += 1
        place = path.with_name(f"{path.name}.damaged-{number}")
    path.rename(place)
    return f"moved to {place.name}"


@contextmanager
def reading(path: Path, remedy: str) -> Iterator[None]:
    """Distinguish damage of a file from errors of the operating system.

    Raises:
        DataError: the file is missing, or its format is damaged; the message ends with `remedy`.
        ArtifactError: the operating system could not read it.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing; {remedy}") from error
    except OSError as error:
        if error.errno in _FORMAT:
            raise damaged(path, error, remedy) from error
        raise ArtifactError(system_error(error, path)) from error
    except (LookupError, RuntimeError, ValueError, TypeError, ArithmeticError) as error:
        raise damaged(path, error, remedy) from error


def damaged(path: Path, what: object, remedy: str) -> DataError:
    """The error of a file whose content is not what it should be."""
    return DataError(f"{path} is damaged ({' '.join(str(what).split())[:200]}); {remedy}")


def _is_entry(entry: tuple[object, object]) -> bool:
    name, value = entry
    if not isinstance(name, str) or not isinstance(value, str):
        return False
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and len(value) == 64
