"""A run's folder and its copy in a folder, as tests compare them."""

import hashlib
import json
from pathlib import Path
from typing import Any

from worldmodels.store.snapshot import scan


def index(store: Path) -> dict[str, Any]:
    """The files of a store by name, as its index lists them; empty where it has none."""
    path = store / ".store" / "index.json"
    files: dict[str, Any] = json.loads(path.read_text())["files"] if path.exists() else {}
    return files


def listed(root: Path) -> dict[str, Any]:
    """The files of a run's folder as an index should list them."""
    contents = {name: (root / name).read_bytes() for name in scan(root)}
    return {
        name: {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in contents.items()
    }


def plain(store: Path) -> dict[str, bytes]:
    """What a store has under the names of the run's files."""
    files = (path for path in store.rglob("*") if path.is_file())
    contents = {path.relative_to(store).as_posix(): path for path in files}
    return {n: path.read_bytes() for n, path in contents.items() if not n.startswith(".store/")}


def equal(root: Path, store: Path) -> bool:
    """Whether a store has exactly the files of a folder, under their names and in its index."""
    files = {name: (root / name).read_bytes() for name in scan(root)}
    return index(store) == listed(root) and plain(store) == files
