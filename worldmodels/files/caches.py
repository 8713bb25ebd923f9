"""Where downloads are kept."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(name: str) -> Path:
    """A folder below ``$XDG_CACHE_HOME``, by default ``~/.cache``; it may not exist yet."""
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "worldmodels" / name
