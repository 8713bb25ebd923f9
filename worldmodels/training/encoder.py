"""Training data of an encoder: shuffled frames, streamed from the shards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor

from worldmodels.data.episodes import EpisodeSet
from worldmodels.data.frames import FrameBatches
from worldmodels.data.prefetch import prefetch
from worldmodels.models.encoder import Encoder


class EncoderTask:
    """Frames for an `Encoder`; an item of the throughput is an image.

    Args:
        module: the encoder.
        episodes: where the frames come from.
        split: episode indices for training and validation.
        batch_size: frames.
        seed: of the order of the frames.
    """

    unit = "images"

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
        self._fabric = fabric
        train, validation = split
        self._train = FrameBatches(episodes, train, batch_size, seed, shuffle=True)
        self._validation = FrameBatches(episodes, validation, batch_size, seed, shuffle=False)

    def steps(self, epoch: int) -> int:
        """How many batches an epoch has."""
        return len(self._train)

    def batches(self, epoch: int, start: int) -> Iterator[np.ndarray]:
        """Training batches (batch, size, size, 3) uint8."""
        return prefetch(self._train.epoch(epoch, start))

    def validation(self) -> Iterator[np.ndarray]:
        """Validation batches (batch, size, size, 3) uint8."""
        return prefetch(self._validation.epoch(0))

    def count(self, batch: np.ndarray) -> int:
        """Images."""
        return len(batch)

    def loss(self, batch: np.ndarray, carry: None) -> tuple[Tensor, dict[str, Tensor], None]:
        """The encoder's loss on frames (batch, size, size, 3) uint8."""
        frames = self._fabric.to_device(torch.from_numpy(batch))
        with self._fabric.autocast():
            loss, logs = cast(Encoder, self.module).loss(frames)
        return loss, logs, None
