"""Video of one episode: observed frame, its reconstruction, and the one-step prediction of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import imageio_ffmpeg
import numpy as np
import torch
from torch import Tensor

from worldmodels.errors import ArtifactError
from worldmodels.files.atomic import atomic_path
from worldmodels.models.dynamics import DynamicsModel, select_rows
from worldmodels.models.encoder import Encoder
from worldmodels.reporting.pictures import decode, save_picture
from worldmodels.worlds.real import RealWorld
from worldmodels.worlds.world import Step, World

PANEL = 256
"""Side of a panel, pixels."""
SEPARATOR = 4
"""Width of the gap between panels, pixels."""
FRAMES_PER_SECOND = 50
POSTER_SECONDS = 2
"""CarRacing's camera zooms in during the first second, from a black picture."""
_GREY = 128
_BATCH = 64


class EpisodeVideo:
    """A `Recorder` of one environment of a `RealWorld` that writes the episode as a video.

    Frames and latents are kept in memory (12 KB a step for 64x64 frames) and decoded when the video
    is written.

    Args:
        index: number of the environment at the start of the rollout.
        encoder: VAE, float32, on the CPU, for the reconstructions; None leaves out their panel and
            that of the predictions.
        dynamics: dynamics model on the CPU, for the predictions; None leaves their panel out.
        frame_skip: of the environment: the video lasts as long as with 1.
    """

    def __init__(
        self,
        index: int,
        encoder: Encoder | None,
        dynamics: DynamicsModel | None,
        frame_skip: int = 1,
    ) -> None:
        self._index, self._encoder = index, encoder
        self._dynamics = None if encoder is None else dynamics
        self._rate = FRAMES_PER_SECOND / frame_skip
        self._frames: list[np.ndarray] = []
        self._latents: list[Tensor] = []
        self._predicted: list[Tensor] = []

    def begin(self, world: World) -> None:
        """Record the first frame, for which there is no prediction."""
        self._frames, self._latents, self._predicted = [], [], []
        self._take(world, self._index)

    @torch.inference_mode()
    def record(self, indices: np.ndarray, actions: Tensor, step: Step, world: World) -> None:
        """Record one step, unless the recorded environment has ended.

        Args:
            indices: (n,) numbers of the environments that are still running.
            actions: (n, action), not used.
            step: result of the actions, not used.
            world: the `RealWorld` after the step.
        """
        rows = np.flatnonzero(indices == self._index)
        if not len(rows):
            return
        row = int(rows[0])
        self._take(world, row)
        if self._dynamics is not None:
            # The state after (z_t, a_t) predicts z_{t+1}, the latent of the frame of this step.
            assert isinstance(world, RealWorld)
            state = tuple(part.cpu() for part in select_rows(world.state, slice(row, row + 1)))
            self._predicted.append(self._dynamics.predict(state).latent.mode())

    def _take(self, world: World, row: int) -> None:
        assert isinstance(world, RealWorld)
        self._frames.append(world.frames[row].copy())
        if self._encoder is not None:
            self._latents.append(world.latents[row : row + 1].cpu())

    @torch.inference_mode()
    def _pictures(self) -> Iterator[np.ndarray]:
        """Pictures of the video, uint8 (PANEL, width, 3): the panels side by side."""
        frames = np.stack(self._frames)  # (steps + 1, side, side, 3)
        blank = np.full((1, *frames.shape[1:]), _GREY, np.uint8)
        for start in range(0, len(frames), _BATCH):
            stop = min(start + _BATCH, len(frames))
            panels = [frames[start:stop]]
            if self._encoder is not None:  # latents (steps + 1, latent)
                panels.append(decode(self._encoder, torch.cat(self._latents[start:stop])))
            if self._encoder is not None and self._dynamics is not None:
                predicted = self._predicted[max(start - 1, 0) : stop - 1]  # of frames 1, 2, ...
                decoded = [decode(self._encoder, torch.cat(predicted))] if predicted else []
                panels.append(np.concatenate([blank, *decoded] if start == 0 else decoded))
            large = [_resize(panel) for panel in panels]
            gap = np.full((stop - start, PANEL, SEPARATOR, 3), _GREY, np.uint8)
            row = [large[0]]
            for panel in large[1:]:
                row += [gap, panel]
            yield from np.concatenate(row, axis=2)

    def write(self, path: Path) -> None:
        """Write the video as H.264 in an mp4, and beside it the picture to show before it plays, as
        PNG; each atomically.

        Args:
            path: of the video; the picture has the suffix ``.png``.

        Raises:
            ArtifactError: ffmpeg could not write it.
        """
        panels = 1 + (self._encoder is not None) + (self._dynamics is not None)
        width = panels * PANEL + (panels - 1) * SEPARATOR
        poster = min(round(POSTER_SECONDS * self._rate), len(self._frames) // 2)
        with atomic_path(path) as temporary:
            writer = imageio_ffmpeg.write_frames(
                str(temporary),
                (width, PANEL),
                fps=self._rate,
                codec="libx264",
                quality=None,
                macro_block_size=2,  # 4:2:0 chroma subsampling needs even sides
                output_params=["-crf", "22", "-movflags", "+faststart", "-f", "mp4"],
            )
            try:
                writer.send(None)
                for number, picture in enumerate(self._pictures()):
                    writer.send(np.ascontiguousarray(picture))
                    if number == poster:
                        save_picture(path.with_suffix(".png"), picture)
            except OSError as error:
                reason = str(error).splitlines()[0]
                raise ArtifactError(
                    f"{path}: cannot be written, ffmpeg reports: {reason}"
                ) from error
            finally:
                writer.close()


def _resize(frames: np.ndarray) -> np.ndarray:
    """Frames (n, side, side, 3) to the nearest pixels of (n, PANEL, PANEL, 3)."""
    nearest = np.arange(PANEL) * frames.shape[1] // PANEL
    return frames[:, nearest][:, :, nearest]
