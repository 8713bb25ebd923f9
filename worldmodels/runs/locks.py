"""A lock on a stage folder, so that two commands do not make the same artifact at once.

The lock file lies beside the folder (``.vae.lock`` for ``vae``), which may be renamed or deleted
meanwhile. The kernel holds the lock (``flock``) for the process that has the file open and drops it
whenever that process ends. The file itself stays: with it removed, two processes could each hold a
lock on a file of that name. Its content names the holder.

On NFS (version 3 with lockd, or 4) and on Lustre mounted with ``-o flock`` the lock holds between
machines; with Lustre's ``-o localflock`` within one. On a file system without locks a warning is
printed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
from datetime import datetime
from pathlib import Path

from worldmodels.errors import ArtifactError
from worldmodels.runs.tracking import say

_UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL}
_HOLDER_BYTES = 300
_warned = False


class FolderLock:
    """The lock on one folder, held from when it is made until `release` or the process's end.

    Raises:
        ArtifactError: another process holds it; the line names that process.
        OSError: the lock file cannot be made.
    """

    def __init__(self, folder: Path, stage: str) -> None:
        self.path = folder.with_name(f".{folder.name}.lock")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # No link is followed: what it leads to would be written to. A pipe would block open().
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        # A file object: it closes the descriptor when it is garbage-collected.
        self._file = os.fdopen(os.open(self.path, flags, 0o666), "r+b", buffering=0)
        try:
            self._acquire(folder, stage)
        except BaseException:
            self._file.close()
            raise

    def release(self) -> None:
        """Release the lock; may be called twice."""
        if not self._file.closed:
            # Before it is closed: a process forked from this one may have it open as well.
            if self._held:
                fcntl.flock(self._file, fcntl.LOCK_UN)
            self._file.close()

    def _acquire(self, folder: Path, stage: str) -> None:
        if not stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
            raise ArtifactError(f"{self.path}: is not a regular file; move it away")
        self._held = True
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise ArtifactError(
                    f"{folder}: stage={stage} is being made by {self._holder()};"
                    " wait for it or stop it"
                ) from None
            if error.errno not in _UNSUPPORTED:
                raise
            self._held = False
            _warn(self.path, error)
            return
        since = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        holder = f"process {os.getpid()} on host {socket.gethostname()} since {since}\n"
        os.ftruncate(self._file.fileno(), 0)
        os.pwrite(self._file.fileno(), holder.encode(), 0)

    def _holder(self) -> str:
        """Who holds the lock, by the content of the file: to be shown, and not to be trusted."""
        text = os.pread(self._file.fileno(), _HOLDER_BYTES, 0).decode(errors="replace")
        line = "".join(letter for letter in text.split("\n")[0] if letter.isprintable())
        return line or "another process"


def _warn(path: Path, error: OSError) -> None:
    """Print once that nothing is locked."""
    global _warned
    if not _warned:
        _warned = True
        say(
            f"{path}: this file system has no locks ({error.strerror}); do not run two commands"
            " on one run at the same time"
        )
