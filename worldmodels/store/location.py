"""Where copies of runs are kept: a folder, or a prefix in a bucket, which fsspec reaches.

Both put an object whole under its name or not at all. In a folder it is written under a temporary
name, forced to the disk and renamed. S3 and Google Cloud Storage show it when it is complete.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from worldmodels.config.stores import protocol
from worldmodels.errors import ArtifactError
from worldmodels.files.atomic import atomic_path
from worldmodels.files.untrusted import open_regular

PRIVATE = ".store"
"""What a store holds beside the files of the run is below this name."""
_PIECE = 16 * 2**20
"""Bytes that are read at once."""
_NO_CACHE = {"use_listings_cache": False, "skip_instance_cache": True}
_ATTEMPTS = 2
"""Of s3fs for one request: the copier has retries of its own, with longer pauses."""


class Location(Protocol):
    """The objects of one store by name: relative, with ``/`` between its parts.

    Every method may raise `OSError` or an exception of the store's package.
    """

    def prepare(self) -> None:
        """Make the place, if it can be made; before the first write."""
        ...

    def read(self, name: str, most: int) -> bytes | None:
        """The content of an object of at most `most` bytes; None if there is none."""
        ...

    def write(self, name: str, content: bytes) -> None:
        """Put a small object."""
        ...

    def upload(self, name: str, file: BufferedReader) -> None:
        """Put the content of an open file, from its beginning to its end."""
        ...

    def download(self, name: str, size: int, target: BinaryIO) -> str | None:
        """Write an object of exactly `size` bytes to `target`; its SHA-256.

        None if there is no such object, or it has another size.
        """
        ...

    def copy(self, name: str, target: str) -> None:
        """Put an object under a second name, without sending its content."""
        ...

    def move(self, name: str, target: str) -> None:
        """Put an object under another name instead."""
        ...

    def remove(self, name: str) -> None:
        """Remove an object, if it is there."""
        ...

    def names(self) -> set[str]:
        """The names of all objects."""
        ...

    def written(self, name: str) -> float | None:
        """When an object was put, in seconds by the store's clock; None if there is none."""
        ...


def connect(key: str, url: str) -> Location:
    """The store at an address; raises `ConfigError`, naming `key`, for an unknown protocol."""
    kind = protocol(key, url)
    if kind == "file":
        return Folder(Path(url.removeprefix("file://")))
    return Bucket(kind, url.partition("://")[2].strip("/"))


class Folder:
    """A store in a folder, perhaps of a file server.

    Args:
        root: the folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()

    def prepare(self) -> None:
        """See `Location`."""
        (self.root / PRIVATE).mkdir(parents=True, exist_ok=True)

    def read(self, name: str, most: int) -> bytes | None:
        """See `Location`."""
        path = self._inside(name)
        if not os.path.lexists(path):
            return None
        with open_regular(path, most) as file:
            return file.read(most)

    def write(self, name: str, content: bytes) -> None:
        """See `Location`."""
        with self._writing(name) as temporary:
            temporary.write_bytes(content)

    def upload(self, name: str, file: BufferedReader) -> None:
        """See `Location`."""
        file.seek(0)
        with self._writing(name) as temporary, temporary.open("wb") as target:
            shutil.copyfileobj(file, target, _PIECE)

    def download(self, name: str, size: int, target: BinaryIO) -> str | None:
        """See `Location`."""
        path = self._inside(name)
        if not os.path.lexists(path):
            return None
        digest = hashlib.sha256()
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_size != size:
                return None
            while size > 0 and (piece := file.read(min(size, _PIECE))):
                size -= len(piece)
                digest.update(piece)
                target.write(piece)
        return digest.hexdigest()

    def copy(self, name: str, target: str) -> None:
        """See `Location`."""
        with open_regular(self._inside(name)) as file:
            self.upload(target, file)

    def move(self, name: str, target: str) -> None:
        """See `Location`."""
        self._require()
        path = self._inside(target)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._inside(name).replace(path)

    def remove(self, name: str) -> None:
        """See `Location`; folders that are empty then go as well."""
        path = self._inside(name)
        path.unlink(missing_ok=True)
        for folder in path.parents:
            if folder in (self.root, self.root / PRIVATE):
                break
            try:
                folder.rmdir()
            except OSError:
                break

    def names(self) -> set[str]:
        """See `Location`; without temporary files of processes that were killed."""
        files = (path for path in self.root.rglob("*") if path.is_symlink() or path.is_file())
        names = {path.relative_to(self.root).as_posix() for path in files}
        return {name for name in names if not name.endswith(".tmp")}

    def written(self, name: str) -> float | None:
        """See `Location`."""
        try:
            return self._inside(name).lstat().st_mtime
        except FileNotFoundError:
            return None

    def _inside(self, name: str) -> Path:
        """The path of an object; raises `ArtifactError` where a link leads out of the folder."""
        path = self.root / name
        if not path.parent.resolve().is_relative_to(self.root.resolve()):
            raise ArtifactError(f"{path}: leads out of the store; remove the link")
        return path

    def _require(self) -> None:
        """Raise `FileNotFoundError` where the folder is gone: it must not be made anew, perhaps
        below a file system that is not mounted any more."""
        if not (self.root / PRIVATE).is_dir():
            raise FileNotFoundError(f"{self.root} is gone")

    @contextlib.contextmanager
    def _writing(self, name: str) -> Iterator[Path]:
        self._require()
        try:
            with atomic_path(self._inside(name)) as temporary:
                yield temporary
        except ArtifactError as error:
            if isinstance(error.__cause__, OSError):  # its remedy would be about data=
                raise error.__cause__ from None
            raise


class Bucket:
    """A store below a prefix in a bucket.

    Args:
        kind: the protocol.
        prefix: bucket, and the path in it.
    """

    def __init__(self, kind: str, prefix: str) -> None:
        # Imported here: folders do without, and the command that has no store as well.
        import fsspec

        options: dict[str, Any] = dict(_NO_CACHE)
        if kind == "s3":
            limits = {"connect_timeout": 10, "read_timeout": 30, "retries": {"max_attempts": 1}}
            options |= {"config_kwargs": limits, "max_concurrency": 2}
        self._files = fsspec.filesystem(kind, **options)
        self._files.retries = _ATTEMPTS
        self._prefix = prefix

    def prepare(self) -> None:
        """See `Location`; a bucket is made by its owner."""

    def read(self, name: str, most: int) -> bytes | None:
        """See `Location`."""
        try:
            if int(self._files.info(self._path(name))["size"]) > most:
                raise ArtifactError(f"{name}: is larger than {most:,} bytes; it is something else")
            content = self._files.cat_file(self._path(name))
        except FileNotFoundError:
            return None
        return bytes(content)

    def write(self, name: str, content: bytes) -> None:
        """See `Location`."""
        self._files.pipe_file(self._path(name), content)

    def upload(self, name: str, file: BufferedReader) -> None:
        """See `Location`."""
        file.seek(0)
        if os.fstat(file.fileno()).st_size <= _PIECE:
            self.write(name, file.read())
        else:
            # By its descriptor: the path may have another file by now. Sent in parts, which are
            # dropped if one of them fails.
            descriptor = f"/dev/fd/{file.fileno()}"
            self._files.put_file(descriptor, self._path(name), chunksize=_PIECE)

    def download(self, name: str, size: int, target: BinaryIO) -> str | None:
        """See `Location`."""
        digest = hashlib.sha256()
        try:
            if int(self._files.info(self._path(name))["size"]) != size:
                return None
            for start in range(0, size, _PIECE):
                end = min(start + _PIECE, size)
                piece = self._files.cat_file(self._path(name), start=start, end=end)
                if len(piece) != end - start:
                    return None
                digest.update(piece)
                target.write(piece)
        except FileNotFoundError:
            return None
        return digest.hexdigest()

    def copy(self, name: str, target: str) -> None:
        """See `Location`."""
        self._files.cp_file(self._path(name), self._path(target))

    def move(self, name: str, target: str) -> None:
        """See `Location`."""
        self.copy(name, target)
        self.remove(name)

    def remove(self, name: str) -> None:
        """See `Location`."""
        with contextlib.suppress(FileNotFoundError):
            self._files.rm_file(self._path(name))

    def names(self) -> set[str]:
        """See `Location`."""
        try:
            found = self._files.find(self._prefix)
        except FileNotFoundError:
            return set()
        return {path.removeprefix(f"{self._prefix}/") for path in found}

    def written(self, name: str) -> float | None:
        """See `Location`."""
        try:
            return float(self._files.modified(self._path(name)).timestamp())
        except FileNotFoundError:
            return None

    def _path(self, name: str) -> str:
        return f"{self._prefix}/{name}"
