"""Weights & Biases: a run for each stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import wandb

from worldmodels.trackers import Tracker


@dataclass
class WandBOptions:
    """The options of a `WandBTracker`; see there."""

    project: str = "worldmodels"
    mode: str = "offline"


class WandBTracker:
    """Logs to a W&B run.

    Args:
        folder: see `Tracker`; W&B's own files are written there.
        name: of the run.
        config: of the run.
        project: that the run belongs to.
        mode: "offline" (needs no account), "online" or "disabled".
    """

    Options: ClassVar[type] = WandBOptions

    def __init__(
        self, folder: Path, name: str, config: Mapping[str, Any], project: str, mode: Any
    ) -> None:
        self._run: Any = wandb.init(
            project=project,
            name=name,
            dir=str(folder),
            mode=mode,
            config=dict(config),
            settings=wandb.Settings(silent=True),
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log the values of one step together."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


TRACKER: type[Tracker] = WandBTracker
