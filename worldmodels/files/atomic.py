"""Files that a killed process cannot leave half-written, and JSON in them."""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from worldmodels.errors import ArtifactError, system_error
from worldmodels.files.untrusted import read_bytes

_JSON_BYTES = 64 * 2**20
"""Far more than any JSON file of this program; a larger one is refused before it is in memory."""
_LINES_BYTES = 2**30
"""The same for a log: the longest search of the paper writes 40 MB."""


@contextlib.contextmanager
def writing(path: Path, temporary: Path | None = None) -> Iterator[None]:
    """Raise an `OSError` of the block as an `ArtifactError` of one line about `path`.

    An error that names another file, one that the block reads, passes unchanged. The error of a
    write to an open file names no file, hence the arguments.

    Args:
        path: of the file that the block writes.
        temporary: under which name it is written, if under another.
    """
    try:
        yield
    except OSError as error:
        ours = (None, str(path), str(temporary), str(path.parent))
        named = None if error.filename is None else os.fspath(error.filename)
        if error.errno is None or named not in ours:
            raise
        where = path.parent if named == str(path.parent) else path
        raise ArtifactError(system_error(error, where)) from error


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path` that takes its place when the block ends well.

    A killed process leaves either the old file or the new one. Raises `ArtifactError` when the
    system refuses (a full disk or quota, a limit on file sizes, a folder that is not writable);
    the temporary file is removed then.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with writing(path, temporary):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temporary
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            with contextlib.suppress(OSError):  # keeps the first error
                temporary.unlink(missing_ok=True)


def remove_temporary(folder: Path) -> None:
    """Remove temporary files of killed processes from `folder`; the caller holds its lock."""
    for path in folder.rglob(".*.tmp"):
        path.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2, allow_nan=True) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        ArtifactError: it is missing, unreadable, damaged, too large, or nested too deeply.
    """
    try:
        return json.loads(read_bytes(path, _JSON_BYTES))
    except (ValueError, RecursionError) as error:  # bytes, syntax, or a number of 5,000 digits
        raise ArtifactError(
            f"{path}: is damaged ({error}); make it again with overwrite=true"
        ) from None


_CHECKSUM = "crc32"


class JsonLines:
    """An append-only log of JSON records that survives being cut in the middle of a line.

    Each record carries a checksum: a flipped bit in a number would still be JSON.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[dict[str, Any]]:
        """All whole records. A torn last line (the process was killed there) is cut off."""
        if not self.path.exists():
            return []
        text = read_bytes(self.path, _LINES_BYTES)
        whole = text[: text.rfind(b"\n") + 1]
        if len(whole) < len(text):
            with atomic_path(self.path) as temporary:
                temporary.write_bytes(whole)
        try:
            records = [_checked(json.loads(line)) for line in whole.splitlines()]
        except (ValueError, RecursionError) as error:
            raise ArtifactError(
                f"{self.path}: is damaged ({error}); start its stage over with overwrite=true"
            ) from None
        return records

    def append(self, record: Mapping[str, Any]) -> None:
        """Append one record and force it to disk; a write that fails leaves the log as it was."""
        checked = {**record, _CHECKSUM: checksum(record)}
        line = (json.dumps(checked) + "\n").encode()
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Without a buffer, which would try to write once more when the file is closed.
            with self.path.open("ab", buffering=0) as file:
                end = file.seek(0, os.SEEK_END)
                try:
                    written = 0
                    while written < len(line):
                        written += file.write(line[written:])
                    os.fsync(file.fileno())
                except OSError:
                    with contextlib.suppress(OSError):
                        os.ftruncate(file.fileno(), end)
                    raise


def _checked(record: Any) -> dict[str, Any]:
    """A record without its checksum; raises `ValueError` where it is not what was written."""
    if not isinstance(record, dict):
        raise ValueError("a line is no JSON object")
    # Older versions wrote none.
    if _CHECKSUM in record and record.pop(_CHECKSUM) != checksum(record):
        raise ValueError("the checksum of a line is another")
    return record


def checksum(record: Mapping[str, Any]) -> int:
    """CRC-32 of a record as JSON, whatever the order of its keys."""
    read = json.loads(json.dumps(record))  # keys that are numbers become texts
    return zlib.crc32(json.dumps(read, sort_keys=True).encode())
