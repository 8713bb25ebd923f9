"""Trackers: where metrics go beside ``metrics.csv``.

A module of this package is a tracker of its name; its `TRACKER` is the class. Other packages add
theirs as entry points of the group ``worldmodels.trackers``. A tracker is imported when
``logger.name`` chooses it, and not before.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from worldmodels import extensions
from worldmodels.config.execution import LoggerConfig
from worldmodels.config.schema import plain
from worldmodels.errors import ConfigError

NONE = "csv"
"""The name that chooses no tracker: ``metrics.csv`` alone, which is always written."""
ENV_STEPS = "progress/env_steps"
"""Steps of the world of a search so far, without those of evaluations; for trackers only."""
HOURS = "progress/hours"
"""Hours of work of the stage so far; for trackers only."""
_GROUP = "worldmodels.trackers"
"""Of entry points."""
FRAMES_PER_SECOND = 10
"""Of the videos that a `PictureTracker` receives."""


class Tracker(Protocol):
    """Receives the metrics of one stage, or of one model where a stage trains several.

    It is built as ``Class(folder=..., name=..., config=..., **options)`` when the stage begins, and
    anew when a stage is resumed: steps after the last checkpoint are then logged a second time.

    - ``folder``: of the stage, for files of the tracker's own; it exists.
    - ``name``: ``<run>/<stage>``; of a model that the stage trains beside its own, with the folder
      of that model: ``<run>/rnn/member_2``, ``<run>/rnn/single_gaussian``. ``folder`` is then that
      folder.
    - ``config``: the record in the stage's manifest (``config``: the configuration by key,
      ``inputs`` and their fingerprints, versions); numbers, texts, lists and mappings.

    An exception of the constructor ends the command with one line. An exception of `log` or `close`
    is a warning; the tracker is not called again, and the stage goes on with ``metrics.csv``.

    Args:
        Options: a dataclass: the arguments that a configuration chooses, typed, with defaults. A
            key of ``logger.*`` with the name of an option sets it, ``logger.options.*`` any other.
    """

    Options: ClassVar[type]

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record metrics.

        Args:
            step: optimiser step of a training, or generation of a search, from 1.
            values: metric -> value; names have the form ``train/loss``.
        """
        ...

    def close(self) -> None:
        """Write what is pending. Called once, also when the stage fails or is stopped."""
        ...


@runtime_checkable
class PictureTracker(Tracker, Protocol):
    """A tracker that receives pictures and videos too. For any other, none are made."""

    def show(self, step: int, name: str, frames: np.ndarray) -> None:
        """Record a picture or a video. An exception is handled as one of `log`.

        It is called when the step is saved, so a stage that was killed and resumed gives no picture
        twice; one that is killed in this moment never gives it.

        Args:
            step: as in `log`, whose metrics of this step came before.
            name: of the form ``vae/reconstructions``, the same at every step.
            frames: uint8 (frames, height, width, 3): a picture where there is one frame, else a
                video of `FRAMES_PER_SECOND`.
        """
        ...


def check(logger: LoggerConfig) -> None:
    """Import the chosen tracker and check its options.

    Raises:
        ConfigError: there is no such tracker or option, or its package cannot be imported.
        ModuleNotFoundError: a tracker of this package needs a module that is not installed.
    """
    _find(logger)


def start(
    logger: LoggerConfig, folder: Path, name: str, config: Mapping[str, Any]
) -> Tracker | None:
    """The tracker of one stage; None where ``metrics.csv`` is all.

    Args:
        logger: names the tracker and has its options.
        folder, name, config: see `Tracker`; the folder is made if it is missing.

    Raises:
        ConfigError: as `check`, or the tracker cannot start.
    """
    found = _find(logger)
    if found is None:
        return None
    kind, options = found
    folder.mkdir(parents=True, exist_ok=True)
    try:
        tracker: Tracker = kind(folder=folder, name=name, config=config, **options)
    except Exception as error:  # of other packages
        raise ConfigError(
            f"logger={logger.name}: cannot start ({extensions.reason(error)}); correct logger.*, or"
            f" choose logger={NONE}"
        ) from error
    return tracker


def _find(logger: LoggerConfig) -> tuple[Any, dict[str, Any]] | None:
    """The class of the chosen tracker and its options."""
    included = [module.name for module in iter_modules(__path__)]
    known = [NONE, *included]
    try:
        extensions.check_name(_GROUP, "tracker", logger.name, known)
    except ConfigError as error:
        raise ConfigError(f"logger.name={logger.name}: {error}") from error
    if logger.name == NONE:
        for key in logger.options:
            raise ConfigError(
                f"logger.options.{key}: logger={NONE} has no options; choose a tracker, or leave it"
                " out"
            )
        return None
    try:
        if logger.name in included:
            kind = import_module(f"{__name__}.{logger.name}").TRACKER
        else:
            kind = extensions.find(_GROUP, "tracker", logger.name, known)
    except ConfigError as error:
        raise ConfigError(f"logger.name={logger.name}: {error}") from error
    keys = {key: plain(value) for key, value in vars(logger).items()}
    try:
        return kind, extensions.options(kind, keys, logger.options)
    except ConfigError as error:
        raise ConfigError(f"logger.{error}") from error
