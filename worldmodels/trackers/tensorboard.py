"""TensorBoard: event files in the folder of the stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import tensorboard  # noqa: F401  (torch's module does not say which package it lacks)
from tensorboard.compat.proto.summary_pb2 import Summary
from torch.utils.tensorboard import SummaryWriter

from worldmodels.files.images import gif, png
from worldmodels.trackers import ENV_STEPS, FRAMES_PER_SECOND, PictureTracker

_SCORES = (
    *("fitness/mean", "fitness/best", "fitness/worst"),
    *("selection/mean", "selection/best"),
    *("novelty/mean", "novelty/best"),
)


@dataclass
class TensorBoardOptions:
    """It has none."""


class TensorBoardTracker:
    """Writes scalars, pictures, and videos as animated GIFs.

    The scores of a search are written a second time, as ``env_steps/<name>``, against its
    environment steps (`worldmodels.runs.tracking.MetricsLog`). The arguments are those of every
    `Tracker`.
    """

    Options: ClassVar[type] = TensorBoardOptions

    def __init__(self, folder: Path, name: str, config: Mapping[str, Any]) -> None:
        self._writer: Any = SummaryWriter(str(folder))
        self._env_steps: int | None = None

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Add one scalar for each value."""
        if ENV_STEPS in values:
            self._env_steps = int(values[ENV_STEPS])
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
            if self._env_steps is not None and name in _SCORES:
                self._writer.add_scalar(f"env_steps/{name}", value, self._env_steps)

    def show(self, step: int, name: str, frames: np.ndarray) -> None:
        """Add a picture or a video, and write it at once: it is not given again."""
        video = len(frames) > 1
        content = gif(frames, FRAMES_PER_SECOND) if video else png(frames[0], quickly=True)
        _, height, width, _ = frames.shape
        image = Summary.Image(
            height=height, width=width, colorspace=3, encoded_image_string=content
        )
        # SummaryWriter's own method for videos needs moviepy, to the same content.
        value = Summary.Value(tag=name, image=image)
        self._writer.file_writer.add_summary(Summary(value=[value]), step)
        self._writer.flush()

    def close(self) -> None:
        """Write what is pending."""
        self._writer.close()


TRACKER: type[PictureTracker] = TensorBoardTracker
