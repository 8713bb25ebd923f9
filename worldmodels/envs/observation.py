"""From an engine's pictures to the small square frames that the encoder takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box
from gymnasium.vector import VectorEnv, VectorObservationWrapper, VectorWrapper
from numpy.typing import NDArray
from torch.nn.functional import interpolate

from worldmodels.envs.vector import is_picture
from worldmodels.errors import ConfigError

Frames = NDArray[np.uint8]


@dataclass(frozen=True)
class ObservationSpec:
    """How an environment's pictures become the frames that an encoder takes.

    Args:
        crop_rows: how many rows to keep from the top; None keeps all.
        size: side of the square frames, in pixels.
    """

    crop_rows: int | None
    size: int

    def reduce(self, pictures: Frames) -> Frames:
        """Crop and reduce pictures (N, H, W, 3) to frames (N, size, size, 3), both uint8."""
        # The filter works on bytes in channels-last memory: permuting is a view, and so is
        # slicing, so that a frame is read once and written once (about 10 us).
        cropped = torch.from_numpy(pictures)[:, : self.crop_rows]  # (N, rows, W, 3)
        frames = interpolate(
            cropped.permute(0, 3, 1, 2),  # (N, 3, rows, W)
            size=(self.size, self.size),
            mode="bilinear",
            antialias=True,
        )
        reduced: Frames = frames.permute(0, 2, 3, 1).contiguous().numpy()  # (N, size, size, 3)
        return reduced


def pictures_of(env: VectorEnv[Any, Any, Any]) -> Frames | None:
    """The latest pictures (N, H, W, 3) of environments that `make_vector_env` made, as the engine
    drew them; None where it draws the small frames directly."""
    inner: Any = env
    while not isinstance(inner, PixelObservation):
        if not isinstance(inner, VectorWrapper):
            return None
        inner = inner.env
    return inner.pictures


class PixelObservation(VectorObservationWrapper[Frames, Any, Frames, Any]):
    """Crops pictures to their upper rows and reduces them to a square.

    ``uint8 (N, H, W, 3)`` becomes ``uint8 (N, size, size, 3)``: rows ``[0, crop_rows)`` are kept
    (the paper's CarRacing code drops the dashboard below row 84), then all columns are reduced by
    an antialiased bilinear filter, as PIL's ``Image.resize(..., BILINEAR)`` does, within rounding.

    Args:
        env: environments whose observations are colour pictures.
        size: side of the frames in pixels.
        crop_rows: how many rows to keep from the top; None keeps all.

    Raises:
        ConfigError: the observations are not ``uint8 (H, W, 3)``, or have fewer than
            ``crop_rows`` rows.
    """

    def __init__(
        self, env: VectorEnv[Frames, Any, Any], size: int = 64, crop_rows: int | None = None
    ) -> None:
        super().__init__(env)
        space = env.single_observation_space
        if not is_picture(space):
            raise ConfigError(
                f"env.id: observations are {space}, not uint8 pictures (H, W, 3): "
                "choose an environment that shows colour pictures"
            )
        rows, _, _ = space.shape or ()
        if crop_rows is not None and crop_rows > rows:
            raise ConfigError(
                f"env.crop_rows={crop_rows}: the pictures have {rows} rows: "
                "choose fewer, or null to keep all"
            )
        self._spec = ObservationSpec(crop_rows, size)
        self.pictures: Frames | None = None
        """The latest ones before they were cropped and reduced, (N, H, W, 3)."""
        frame = (size, size, 3)
        self.single_observation_space = Box(0, 255, frame, np.uint8)
        self.observation_space = Box(0, 255, (env.num_envs, *frame), np.uint8)

    def observations(self, observations: Frames) -> Frames:
        """Crop and reduce ``(N, H, W, 3)`` to ``(N, size, size, 3)``, both uint8."""
        self.pictures = observations
        return self._spec.reduce(observations)
