"""Files that a killed process cannot leave half-written, and JSON in them."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from worldmodels.errors import ArtifactError


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path` that takes its place when the block ends well.

    A killed process leaves either the old file or the new one. Raises `ArtifactError` when the
    disk is full or not writable; the temporary file is removed then.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise ArtifactError(
                f"disk full while writing {path}: free some space and run the same command again"
            ) from error
        if error.errno in (errno.EACCES, errno.EROFS):
            raise ArtifactError(f"{path} cannot be written: {error.strerror}") from error
        raise
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2, allow_nan=True) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file; raises `ArtifactError` naming it when it is missing or damaged."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise ArtifactError(f"{path} is missing") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ArtifactError(f"{path} is damaged ({error}): make it again with fresh=true") from None


class JsonLines:
    """An append-only log of JSON records that survives being cut in the middle of a line."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[dict[str, Any]]:
        """All whole records. A torn last line (the process was killed there) is cut off."""
        if not self.path.exists():
            return []
        text = self.path.read_bytes()
        whole = text[: text.rfind(b"\n") + 1]
        if len(whole) < len(text):
            with atomic_path(self.path) as temporary:
                temporary.write_bytes(whole)
        try:
            return [json.loads(line) for line in whole.splitlines()]
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ArtifactError(
                f"{self.path} is damaged ({error}): start its stage over with fresh=true"
            ) from None

    def append(self, record: Mapping[str, Any]) -> None:
        """Append one record and force it to disk."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with self.path.open("a") as file:
                file.write(json.dumps(record) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise ArtifactError(f"{self.path} cannot be written: {error.strerror}") from error
