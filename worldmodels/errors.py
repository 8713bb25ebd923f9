"""Errors that a user can remedy, and exit codes."""

from __future__ import annotations

import errno
import os

DISTRIBUTION = "worldmodels-gym"
"""What pip installs: on PyPI, ``worldmodels`` and ``world-models`` are other people's packages."""

EXIT_ERROR = 1
"""A problem the message names: a bad key, a missing or damaged artifact, a full disk."""

EXIT_STOPPED = 75
"""Stopped by SIGTERM or SIGINT with all progress saved; the same command continues
(``EX_TEMPFAIL`` of sysexits.h: schedulers may try again)."""

EXIT_UNCOPIED = 74
"""The run is finished here, but its copy in the store lacks files (``EX_IOERR`` of sysexits.h)."""


def install(extra: str) -> str:
    """The command that installs an optional part of this package."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


class WorldModelsError(Exception):
    """A one-line message: what is wrong, where, and what to do. Shown without a traceback."""


class ConfigError(WorldModelsError):
    """A configuration value that cannot be used."""


class ArtifactError(WorldModelsError):
    """An artifact that is missing, was made from something else, or does not fit."""


class DataError(ArtifactError):
    """A data file that is truncated or damaged."""


class DisplayError(WorldModelsError):
    """No display could be provided for an engine that draws."""


class TrainingError(WorldModelsError):
    """Training cannot go on (a loss that is not finite)."""


class WorkerError(WorldModelsError):
    """A worker process failed for good: the same work failed on every attempt."""


class StoreError(WorldModelsError):
    """The copy of a finished run in a store lacks files; ends with `EXIT_UNCOPIED`."""


class Stopped(Exception):
    """SIGTERM or SIGINT was received and progress is saved; ends with `EXIT_STOPPED`."""


_OTHER_FOLDER = "give this user the permission, or choose another data=<folder>"
_FREE_SPACE = "free some space and run the same command again"
_REMEDIES = {
    errno.ENOSPC: _FREE_SPACE,
    errno.EDQUOT: _FREE_SPACE,
    errno.EFBIG: "raise the limit on the size of files (ulimit -f) and run the same command again",
    errno.EROFS: "choose a data=<folder> that can be written",
    errno.EACCES: _OTHER_FOLDER,
    errno.EPERM: _OTHER_FOLDER,
    errno.EEXIST: "a file is where a folder is needed: move it away, or choose another name",
    errno.ENOTDIR: "a file is where a folder is needed: move it away, or choose another name",
    errno.EISDIR: "a folder is where a file is needed: move it away",
    errno.EMFILE: "raise the limit on open files (ulimit -n) and run the same command again",
    errno.EPIPE: "its reader is gone: redirect it to a file and run the same command again",
}


def system_error(error: OSError, where: object) -> str:
    """The line of an error of the operating system: ``<where>: <what is wrong>; <what to do>``."""
    code = error.errno or 0
    remedy = _REMEDIES.get(code, "run the same command again when that is fixed")
    # Not the error's own words where it has a number: those of HDF5 are several lines.
    return f"{where}: {os.strerror(code) if code else error}; {remedy}"
