"""A run's folder and its copy in a folder, as tests make and compare them."""

import hashlib
import json
import os
import threading
from pathlib import Path
from typing import Any

from worldmodels.store.budget import Budget
from worldmodels.store.copier import Copier
from worldmodels.store.lease import LEASE, Lease
from worldmodels.store.location import Folder, Location
from worldmodels.store.snapshot import scan


def index(store: Path) -> dict[str, Any]:
    """The files of a store by name, as its index lists them; empty where it has none."""
    path = store / ".store" / "index.json"
    files: dict[str, Any] = json.loads(path.read_text())["files"] if path.exists() else {}
    return files


def listed(root: Path) -> dict[str, Any]:
    """The files of a run's folder as an index should list them."""
    return {
        name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in content(root).items()
    }


def plain(store: Path) -> dict[str, bytes]:
    """What a store has under the names of the run's files."""
    files = (path for path in store.rglob("*") if path.is_file())
    contents = {path.relative_to(store).as_posix(): path for path in files}
    return {n: path.read_bytes() for n, path in contents.items() if not n.startswith(".store/")}


def settled(root: Path, store: Path) -> bool:
    """As `equal`, without reading files where their sizes show that they differ."""
    sizes = {name: stamp.size for name, stamp in scan(root).items()}
    return sizes == {name: e["size"] for name, e in index(store).items()} and equal(root, store)


def equal(root: Path, store: Path) -> bool:
    """Whether a store has exactly the files of a folder, under their names and in its index."""
    try:
        return index(store) == listed(root) and plain(store) == content(root)
    except FileNotFoundError:  # of a folder that the copier has removed meanwhile
        return False


def quiet(line: str) -> None:
    """Prints nothing."""


def copier(root: Path, store: Path, location: Location | None = None) -> Copier:
    """A copier that owns the store."""
    location = location or Folder(store)
    location.prepare()
    lease = Lease(location, f"store={store}", os.getpid(), "token")
    lease.claim(quiet)
    hurry = threading.Event()
    hurry.set()
    return Copier(root, "run", str(store), location, lease, Budget(1.0, hurry))


def foreign(location: Location) -> None:
    """A lease of another machine."""
    content = {
        "token": "x",
        "machine": "far",
        "host": "far",
        "process": 1,
        "now": os.urandom(8).hex(),
    }
    location.write(LEASE, json.dumps(content).encode())


def write(root: Path, **files: str) -> None:
    """Replace files as the program does; ``__`` in a name stands for ``/``."""
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_name(f".{path.name}.1.tmp").write_text(text)
        path.with_name(f".{path.name}.1.tmp").replace(path)


def content(root: Path) -> dict[str, bytes]:
    """The files of a run's folder by name."""
    return {name: (root / name).read_bytes() for name in scan(root)}
