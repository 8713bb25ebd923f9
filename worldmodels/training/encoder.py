"""Training of an encoder: shuffled frames, or their clips, streamed from the shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor

from worldmodels.data.episodes import EpisodeSet
from worldmodels.data.frames import FrameBatches
from worldmodels.data.prefetch import prefetch
from worldmodels.models.encoder import Encoder
from worldmodels.training.compiling import compiled


class EncoderTask:
    """The `Task` of training an `Encoder`; throughput is counted in images.

    Args:
        module: the encoder.
        episodes: where the frames come from.
        split: episode indices for training and validation.
        batch_size: frames of a batch, B.
        seed: of the order of the frames.
        fabric: device and precision.
    """

    unit = "images"
    memory_key = "env.size"

    def __init__(
        self,
        module: Encoder,
        episodes: EpisodeSet,
        split: tuple[np.ndarray, np.ndarray],
        batch_size: int,
        seed: int,
        fabric: Fabric,
    ) -> None:
        self.module = cast(torch.nn.Module, module)
        self._loss: Callable[[Tensor], tuple[Tensor, dict[str, Tensor]]] = module.loss
        self._fabric = fabric
        train, validation = split
        length = module.clip_length
        self._train = FrameBatches(episodes, train, batch_size, seed, True, length)
        self._validation = FrameBatches(episodes, validation, batch_size, seed, False, length)

    def steps(self, epoch: int) -> int:
        """The number of batches in an epoch, the same in every epoch."""
        return len(self._train)

    def batches(self, epoch: int, start: int) -> Iterator[np.ndarray]:
        """Training batches of epoch `epoch` from batch `start` on: uint8 (B, H, W, 3), or clips
        (B, C, H, W, 3)."""
        return prefetch(self._train.epoch(epoch, start))

    def validation(self) -> Iterator[np.ndarray]:
        """Validation batches, shaped as the training batches, the same at each call."""
        return prefetch(self._validation.epoch(0))

    def count(self, batch: np.ndarray) -> int:
        """The number of images in `batch`."""
        return len(batch)

    def rows(self, batch: np.ndarray) -> int:
        """The number of images in `batch`: each is a row."""
        return len(batch)

    def part(self, batch: np.ndarray, rows: slice) -> np.ndarray:
        """Rows of `batch`."""
        return batch[rows]

    def stepped(self) -> None:
        """Nothing is to be done."""

    def compile(self) -> None:
        """Compile the loss; see `worldmodels.training.compiling`."""
        self._loss = compiled(self._loss)

    def loss(self, batch: np.ndarray, carry: object) -> tuple[Tensor, dict[str, Tensor], None]:
        """The encoder's loss on a batch of frames or clips.

        Args:
            batch: uint8 (B, H, W, 3) or (B, C, H, W, 3), in host memory.
            carry: None; batches are independent.

        Returns:
            the loss, a scalar; detached scalars to log, by name; and None.
        """
        frames = self._fabric.to_device(torch.from_numpy(batch))
        with self._fabric.autocast():
            loss, logs = self._loss(frames)
        return loss, logs, None
