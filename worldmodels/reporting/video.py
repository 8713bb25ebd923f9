"""A film of one episode: the frame, what V makes of it, and what M had foretold."""

from __future__ import annotations

from pathlib import Path

import imageio_ffmpeg
import numpy as np
import torch
from torch import Tensor

from worldmodels.artifacts import atomic_path
from worldmodels.models.mdnrnn import MDNRNN
from worldmodels.models.vae import ConvVAE, to_frames
from worldmodels.worlds.real import RealWorld
from worldmodels.worlds.world import Step, World

SCALE = 4
FRAMES_A_SECOND = 50
_GAP = 8


class EpisodeFilm:
    """Records one lane of a real world, panel beside panel.

    Args:
        lane: its number at the start of the rollout.
        vision: V in float32, for the reconstructions.
        memory: M, or None to leave its panel out.
    """

    def __init__(self, lane: int, vision: ConvVAE, memory: MDNRNN | None) -> None:
        self._lane, self._vision, self._memory = lane, vision, memory
        self._pictures: list[np.ndarray] = []

    def begin(self, world: World) -> None:
        """The first frame has no prediction: its reconstruction stands in."""
        assert isinstance(world, RealWorld)
        latent = world.latents[self._lane : self._lane + 1].cpu()
        self._add(world.frames[self._lane], latent, latent)

    @torch.inference_mode()
    def record(self, lanes: np.ndarray, actions: Tensor, step: Step, world: World) -> None:
        """One step of the world, of which our lane may no longer be a part."""
        assert isinstance(world, RealWorld)
        rows = np.flatnonzero(lanes == self._lane)
        if not len(rows):
            return
        row = int(rows[0])
        latent = world.latents[row : row + 1].cpu()
        foretold = latent
        if self._memory is not None:
            # The state after (z_t, a_t) is what foretells the frame that now shows, z_{t+1}.
            foretold = self._memory.predict(world.state.h[row : row + 1].cpu()).latent.mode()
        self._add(world.frames[row], latent, foretold)

    @torch.inference_mode()
    def _add(self, frame: np.ndarray, latent: Tensor, foretold: Tensor) -> None:
        both = torch.cat([latent, foretold]) if self._memory is not None else latent
        panels = [frame, *to_frames(self._vision.decode(both)).numpy()]
        large = [panel.repeat(SCALE, axis=0).repeat(SCALE, axis=1) for panel in panels]
        gap = np.full((large[0].shape[0], _GAP, 3), 255, np.uint8)
        row = [large[0]]
        for panel in large[1:]:
            row += [gap, panel]
        self._pictures.append(np.concatenate(row, axis=1))

    def write(self, path: Path) -> None:
        """Write the film as H.264 in an mp4."""
        height, width = self._pictures[0].shape[:2]
        with atomic_path(path) as temporary:
            writer = imageio_ffmpeg.write_frames(
                str(temporary),
                (width, height),
                fps=FRAMES_A_SECOND,
                quality=7,
                macro_block_size=8,
                output_params=["-f", "mp4"],
            )
            writer.send(None)
            for picture in self._pictures:
                writer.send(np.ascontiguousarray(picture))
            writer.close()
