"""Whether artifacts can be written."""

from __future__ import annotations

import tempfile
from pathlib import Path


def existing(path: Path) -> Path:
    """`path`, or the nearest folder above it that exists."""
    return next(place for place in (path, *path.absolute().parents) if place.exists())


def unwritable(folder: Path) -> str | None:
    """Why no file could be made in `folder`, or where it would be made; None if one could.

    Makes one, since permissions do not show read-only file systems and quotas; the file has no
    name, or is unlinked at once.
    """
    try:
        tempfile.TemporaryFile(dir=existing(folder)).close()
    except OSError as error:
        return error.strerror or str(error)
    return None
