"""The compiled kernels on disk.

numba compiles what a function calls into the function, but looks for changes only in the function's
own file: after an update of one module, the kernels of another would go on with the old code.

numba keeps kernels in ``NUMBA_CACHE_DIR``, beside the sources or in the user's home folder, the
first of them that can be written, and refuses to define a function where none can.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numba
from numba.core import event

from worldmodels.errors import WorldModelsError

SOURCES = Path(__file__).parent
"""The folder of this package."""
_VARIABLE = "NUMBA_CACHE_DIR"
_DIGEST = "sources.sha256"

log = logging.getLogger(__name__)


def provide_folder() -> None:
    """Let numba keep kernels somewhere; called before any kernel is defined.

    Where numba has no place, that is a temporary folder of this process, which child processes find
    by ``NUMBA_CACHE_DIR`` and which is removed when the process exits. Kernels are pickles, so no
    other user may write there: the folder has a random name, and only its owner can open it.

    Raises:
        WorldModelsError: not even a temporary folder can be made.
    """
    wanted, shipped = os.environ.get(_VARIABLE), SOURCES / "__pycache__"
    folder = find_folder()
    if folder is None:
        folder = _make_private()
        tried = f"{_VARIABLE}={wanted}, " if wanted else ""
        log.warning(
            f"{tried}{shipped} and the home folder cannot be written: the compiled simulator is"
            f" kept in {folder} until this process ends; set {_VARIABLE} to keep it longer"
        )
    elif wanted and not folder.absolute().is_relative_to(Path(wanted).absolute()):
        log.warning(
            f"{_VARIABLE}={wanted}: cannot be written; the compiled simulator is kept in {folder}"
        )
        del os.environ[_VARIABLE]  # children find the same folder without a second warning
    if folder != shipped and not (folder / _DIGEST).exists():
        _copy(shipped, folder)


def find_folder() -> Path | None:
    """The folder in which numba keeps this package's kernels; None where it can write nowhere."""
    if not os.path.isabs(os.path.expanduser("~")) and not _has_other_place():
        return None  # numba would make a folder that is called ~
    try:
        found = numba.njit(cache=True)(_nothing).stats.cache_path
    except RuntimeError:  # "no locator available"
        return None
    return None if found is None else Path(found)


def is_current(compiled: Path, sources: Path = SOURCES) -> bool:
    """Whether there are kernels in the folder, compiled from the present sources by this numba."""
    return _recorded_digest(compiled) == _digest(sources) and any(compiled.glob("*.nbi"))


def forget_stale(compiled: Path, sources: Path) -> bool:
    """Remove kernels that were compiled from other sources than those that are there now.

    Args:
        compiled: folder in which numba keeps the kernels of one package.
        sources: folder of the package.

    Returns:
        whether there were any sources but the present ones, or none known.

    Raises:
        WorldModelsError: there are such kernels, and they cannot be removed.
    """
    now = _digest(sources)
    if _recorded_digest(compiled) == now:
        return False
    try:
        for index in compiled.glob("*.nbi"):
            index.unlink(missing_ok=True)
        compiled.mkdir(parents=True, exist_ok=True)
        (compiled / _DIGEST).write_text(now)
    except OSError as error:
        if any(compiled.glob("*.nbi")):
            raise WorldModelsError(
                f"{compiled}: holds a simulator compiled from other sources and cannot be written"
                f" ({error.strerror}); delete it, or set {_VARIABLE} to a folder that can be"
            ) from error
    return True


@contextlib.contextmanager
def announced_compilation() -> Iterator[None]:
    """Log once that kernels are compiled, as soon as numba begins to compile one in the block.

    numba reports a compilation only where its cache has no kernel that fits, so nothing is logged
    while kernels are loaded, however long that takes. Kernels for CUDA are not reported.
    """
    with event.install_listener("numba:compile", _Announcement()):
        yield


class _Announcement(event.Listener):
    def __init__(self) -> None:
        self._logged = False

    def on_start(self, event: event.Event) -> None:
        if not self._logged:
            log.warning("compiling the CarRacing simulator: half a minute, once on this machine")
        self._logged = True

    def on_end(self, event: event.Event) -> None:
        """Nothing is logged at the end."""


def _nothing() -> None:
    """Compiled only to find out where numba keeps kernels."""


def _has_other_place() -> bool:
    """Whether numba has a place for kernels outside the home folder."""
    if os.environ.get(_VARIABLE) or os.environ.get("XDG_CACHE_HOME"):
        return True
    try:
        (SOURCES / "__pycache__").mkdir(exist_ok=True)
        tempfile.TemporaryFile(dir=SOURCES / "__pycache__").close()
    except OSError:
        return False
    return True


def _make_private() -> Path:
    try:
        root = tempfile.mkdtemp(prefix="worldmodels-")
    except OSError as error:
        raise WorldModelsError(
            f"{_VARIABLE}: no folder can be written to keep the compiled simulator in, not even a"
            f" temporary one ({error.strerror}); set it, or TMPDIR, to a folder that can be"
        ) from error
    atexit.register(_remove, root, os.getpid())
    os.environ[_VARIABLE] = root
    vars(numba.config)["CACHE_DIR"] = root  # read from the environment when it was imported
    folder = find_folder()
    assert folder is not None
    return folder


def _remove(root: str, owner: int) -> None:
    """Remove a temporary folder, but not at the exit of a process forked from its owner."""
    if os.getpid() == owner:
        shutil.rmtree(root, ignore_errors=True)


def _copy(shipped: Path, folder: Path) -> None:
    """Begin with the kernels that came with the package, where some did.

    Other processes may read at the same time: each file appears whole, an index after its kernels.
    """
    with contextlib.suppress(OSError):
        for pattern in ("*.nbc", "*.nbi", _DIGEST):
            for path in shipped.glob(pattern):
                temporary = folder / f".{path.name}.{os.getpid()}.tmp"
                shutil.copyfile(path, temporary)
                temporary.replace(folder / path.name)


def _recorded_digest(compiled: Path) -> str | None:
    """The digest of the sources that kernels were compiled from."""
    with contextlib.suppress(OSError):
        return (compiled / _DIGEST).read_text()
    return None


def _digest(sources: Path) -> str:
    digest = hashlib.sha256(numba.__version__.encode())
    for path in sorted(sources.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
