"""A film of one episode: the frame, what V makes of it, and what M had foretold."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import imageio_ffmpeg
import numpy as np
import torch
from torch import Tensor

from worldmodels.errors import ArtifactError
from worldmodels.files import atomic_path
from worldmodels.models.dynamics import DynamicsModel, select_rows
from worldmodels.models.encoder import Encoder
from worldmodels.reporting.pictures import decode
from worldmodels.worlds.real import RealWorld
from worldmodels.worlds.world import Step, World

PANEL = 256
FRAMES_A_SECOND = 50
SEPARATOR = 4
_GREY = 128
_BATCH = 64


class EpisodeFilm:
    """Records one lane of a real world, panel beside panel.

    Frames and latents are kept (12 KB a step) and decoded when the film is written.

    Args:
        lane: its number at the start of the rollout.
        vision: V in float32 on the CPU, for the reconstructions.
        memory: M on the CPU, or None to leave its panel out.
    """

    def __init__(self, lane: int, vision: Encoder, memory: DynamicsModel | None) -> None:
        self._lane, self._vision, self._memory = lane, vision, memory
        self._frames: list[np.ndarray] = []
        self._latents: list[Tensor] = []
        self._foretold: list[Tensor] = []

    def begin(self, world: World) -> None:
        """Take the first frame, which nothing foretold."""
        self._frames, self._latents, self._foretold = [], [], []
        self._take(world, self._lane)

    @torch.inference_mode()
    def record(self, lanes: np.ndarray, actions: Tensor, step: Step, world: World) -> None:
        """Take one step, unless our lane has ended."""
        rows = np.flatnonzero(lanes == self._lane)
        if not len(rows):
            return
        row = int(rows[0])
        self._take(world, row)
        if self._memory is not None:
            # The state after (z_t, a_t) is what foretells the frame that now shows, z_{t+1}.
            assert isinstance(world, RealWorld)
            state = tuple(part.cpu() for part in select_rows(world.state, slice(row, row + 1)))
            self._foretold.append(self._memory.predict(state).latent.mode())

    def _take(self, world: World, row: int) -> None:
        assert isinstance(world, RealWorld)
        self._frames.append(world.frames[row].copy())
        self._latents.append(world.latents[row : row + 1].cpu())

    @torch.inference_mode()
    def _pictures(self) -> Iterator[np.ndarray]:
        """Panels side by side, uint8 (PANEL, width, 3), frame after frame."""
        frames = np.stack(self._frames)  # (steps + 1, side, side, 3)
        latents = torch.cat(self._latents)  # (steps + 1, latent)
        scale = PANEL // frames.shape[1]
        blank = np.full((1, *frames.shape[1:]), _GREY, np.uint8)
        for start in range(0, len(frames), _BATCH):
            stop = min(start + _BATCH, len(frames))
            panels = [frames[start:stop], decode(self._vision, latents[start:stop])]
            if self._memory is not None:
                foretold = self._foretold[max(start - 1, 0) : stop - 1]  # of frames 1, 2, ...
                drawn = [decode(self._vision, torch.cat(foretold))] if foretold else []
                panels.append(np.concatenate([blank, *drawn] if start == 0 else drawn))
            large = [panel.repeat(scale, axis=1).repeat(scale, axis=2) for panel in panels]
            gap = np.full((stop - start, PANEL, SEPARATOR, 3), _GREY, np.uint8)
            row = [large[0]]
            for panel in large[1:]:
                row += [gap, panel]
            yield from np.concatenate(row, axis=2)

    def write(self, path: Path) -> None:
        """Write the film as H.264 in an mp4, atomically.

        Raises:
            ArtifactError: it could not be written.
        """
        panels = 2 if self._memory is None else 3
        width = panels * PANEL + (panels - 1) * SEPARATOR
        with atomic_path(path) as temporary:
            writer = imageio_ffmpeg.write_frames(
                str(temporary),
                (width, PANEL),
                fps=FRAMES_A_SECOND,
                codec="libx264",
                quality=None,
                macro_block_size=2,  # 4:2:0 chroma needs even sides and no more
                output_params=["-crf", "22", "-movflags", "+faststart", "-f", "mp4"],
            )
            try:
                writer.send(None)
                for picture in self._pictures():
                    writer.send(np.ascontiguousarray(picture))
            except OSError as error:
                reason = str(error).splitlines()[0]
                raise ArtifactError(f"{path} cannot be written: ffmpeg says {reason}") from error
            finally:
                writer.close()
