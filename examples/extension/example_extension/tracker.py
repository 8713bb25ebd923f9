"""Metrics as lines of JSON, pictures as PNG."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from PIL import Image


@dataclass
class JSONLinesOptions:
    """The options of `JSONLines`: ``logger.options.file`` is its file's name."""

    file: str = "metrics.jsonl"


class JSONLines:
    """Writes one object for each step, into the folder of the stage; see `PictureTracker`."""

    Options: ClassVar[type] = JSONLinesOptions

    def __init__(self, folder: Path, name: str, config: Mapping[str, Any], file: str) -> None:
        self._folder = folder
        self._stream = (folder / file).open("a")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write a line."""
        self._stream.write(json.dumps({"step": step, **values}) + "\n")

    def show(self, step: int, name: str, frames: np.ndarray) -> None:
        """Write a picture, or the last one of a video."""
        path = self._folder / f"{name.replace('/', '-')}-{step}.png"
        Image.fromarray(frames[-1]).save(path)

    def close(self) -> None:
        """Close the file."""
        self._stream.close()
