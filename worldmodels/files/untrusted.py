"""Files of untrusted origin, read without following links, blocking, or running out of memory.

A folder that was downloaded may hold a link to a private file, a pipe without a writer, a
device without an end, and text that moves the terminal's cursor. What is promised about such
folders is in SECURITY.md.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import unicodedata
from io import BufferedReader
from pathlib import Path
from typing import Any

from worldmodels.errors import ArtifactError, system_error

MEGABYTE = 2**20
LARGEST_NUMBER = 1e100
"""Of a result: the difference of two larger ones may be infinite."""
LONGEST_LINE = 2000
"""Characters of a text from a file that are shown."""


def open_regular(path: Path, most: int | None = None) -> BufferedReader:
    """Open a regular file for reading.

    Args:
        path: not a link.
        most: bytes that it may have; None for any number.

    Raises:
        ArtifactError: there is none, or it is something else, larger, or not readable.
    """
    try:
        # O_NONBLOCK: opening a pipe would wait for someone to write to it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise ArtifactError(f"{path} is missing") from None
    except OSError as error:
        if path.is_symlink():
            raise ArtifactError(f"{path}: is a link; put the file itself in its place") from None
        raise ArtifactError(system_error(error, path)) from None
    status = os.fstat(descriptor)
    wrong = None
    if not stat.S_ISREG(status.st_mode):
        wrong = "is not a regular file; put the file itself in its place"
    elif most is not None and status.st_size > most:
        wrong = f"has {status.st_size:,} bytes, at most {most:,} are read; it is something else"
    if wrong is not None:
        os.close(descriptor)
        raise ArtifactError(f"{path}: {wrong}")
    return os.fdopen(descriptor, "rb")


def read_bytes(path: Path, most: int) -> bytes:
    """The content of a regular file of at most `most` bytes; raises `ArtifactError` for others."""
    with open_regular(path, most) as file:
        return file.read(most)


def read_json(path: Path, most: int) -> Any:
    """The value in a regular JSON file of at most `most` bytes.

    Raises:
        ArtifactError: it is missing, larger, no JSON, or nested too deeply to be read.
    """
    try:
        return json.loads(read_bytes(path, most))
    except (ValueError, RecursionError) as error:  # ValueError: also of text that is no UTF-8
        raise ArtifactError(f"{path}: is no JSON ({printable(str(error))})") from None


def sha256(path: Path, most: int) -> str:
    """The SHA-256 of a regular file of at most `most` bytes, in hexadecimal; raises `ArtifactError`
    for others: a file of holes takes no disk and hours to read."""
    with open_regular(path, most) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def printable(text: str, most: int = LONGEST_LINE) -> str:
    """`text` with control characters as escapes, so that it moves no cursor, and not too long."""
    if len(text) <= most and text.isprintable():
        return text  # at once, for a page of some megabytes
    shown = "".join(
        # Control, format (text direction), unpaired halves; line and paragraph separators.
        char.encode("unicode_escape").decode()
        if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")
        else char
        for char in text[: most + 1]
    )
    return shown if len(shown) <= most else f"{shown[: most - 3]}..."
