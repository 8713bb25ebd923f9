"""Weights & Biases: a run for each stage."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import wandb

from worldmodels.files.images import gif
from worldmodels.trackers import ENV_STEPS, FRAMES_PER_SECOND, PictureTracker


@dataclass
class WandBOptions:
    """The options of a `WandBTracker`; see there."""

    project: str = "worldmodels"
    mode: str = "offline"


class WandBTracker:
    """Logs to a W&B run; a stage that is resumed to another run of the same group.

    Args:
        folder: see `Tracker`; W&B's own files are written there.
        name: of the run and of its group.
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
            group=name,
            dir=str(folder),
            mode=mode,
            config=dict(config),
            settings=wandb.Settings(silent=True),
        )
        for pattern in ("fitness/*", "selection/*", "novelty/*"):
            self._run.define_metric(pattern, step_metric=ENV_STEPS)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log the values of one step together."""
        self._run.log(dict(values), step=step)

    def show(self, step: int, name: str, frames: np.ndarray) -> None:
        """Log a picture or a video with the values of its step."""
        if len(frames) > 1:
            video = io.BytesIO(gif(frames, FRAMES_PER_SECOND))
            shown: Any = wandb.Video(video, format="gif")
        else:
            shown = wandb.Image(frames[0])
        self._run.log({name: shown}, step=step)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


TRACKER: type[PictureTracker] = WandBTracker
