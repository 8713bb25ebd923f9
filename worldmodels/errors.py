"""What can go wrong in a way the user can mend, and the exit code each kind ends with."""

from __future__ import annotations

DISTRIBUTION = "worldmodels-gym"
"""What pip installs: on PyPI, ``worldmodels`` and ``world-models`` are other people's packages."""

EXIT_ERROR = 1
"""A problem the message names: a bad key, a missing or damaged artifact, a full disk."""

EXIT_STOPPED = 75
"""Stopped by SIGTERM or SIGINT with all progress saved; the same command continues
(``EX_TEMPFAIL`` of sysexits.h: schedulers may try again)."""


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


class Stopped(Exception):
    """SIGTERM or SIGINT was received and progress is saved; ends with `EXIT_STOPPED`."""
