"""Pictures and videos of a run's folders as data URLs, so that the report needs no other file."""

from __future__ import annotations

import base64
from pathlib import Path

from worldmodels.errors import ArtifactError
from worldmodels.files.untrusted import MEGABYTE, read_bytes

PNG, MP4 = "image/png", "video/mp4"
"""Media types that a report may embed."""
_SIGNATURES = {PNG: (0, b"\x89PNG\r\n\x1a\n"), MP4: (4, b"ftyp")}
"""Offset and bytes that identify the format of a file."""
_MAX_BYTES = {PNG: 32 * MEGABYTE, MP4: 256 * MEGABYTE}


def data_url(content: bytes, media_type: str) -> str:
    """`content` as a data URL (RFC 2397) of the type `media_type`, base64 encoded."""
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


def embedded(path: Path, media_type: str) -> str | None:
    """A file as a data URL.

    Args:
        path: the file, which may come from an untrusted run folder.
        media_type: `PNG` or `MP4`.

    Returns:
        The data URL, or None where there is no file.

    Raises:
        ArtifactError: `path` is not a regular file, is of another format, or is larger than
            32 MiB (PNG) or 256 MiB (MP4).
    """
    if not path.exists() and not path.is_symlink():
        return None
    content = read_bytes(path, _MAX_BYTES[media_type])
    offset, signature = _SIGNATURES[media_type]
    if content[offset : offset + len(signature)] != signature:
        raise ArtifactError(
            f"{path}: is not a file of type {media_type}; remove it, or run its stage again"
        )
    return data_url(content, media_type)
