"""TensorBoard: event files in the folder of the stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import tensorboard  # noqa: F401  (torch's module does not say which package it lacks)
from torch.utils.tensorboard import SummaryWriter

from worldmodels.trackers import Tracker


@dataclass
class TensorBoardOptions:
    """It has none."""


class TensorBoardTracker:
    """Writes scalars. Its arguments are those of every `Tracker`."""

    Options: ClassVar[type] = TensorBoardOptions

    def __init__(self, folder: Path, name: str, config: Mapping[str, Any]) -> None:
        self._writer: Any = SummaryWriter(str(folder))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Add one scalar for each value."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what is pending."""
        self._writer.close()


TRACKER: type[Tracker] = TensorBoardTracker
