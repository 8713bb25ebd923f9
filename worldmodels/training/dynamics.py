"""Training data of a dynamics model: windows of encoded episodes, its state carried across them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor

from worldmodels.data.latents import LatentSet
from worldmodels.data.prefetch import prefetch
from worldmodels.data.sequences import SequenceBatch, SequenceBatches
from worldmodels.models.dynamics import DynamicsModel, Sequences, State


class DynamicsTask:
    """Sequences for a `DynamicsModel`; an item of the throughput is a transition.

    Args:
        module: the dynamics model.
        latents: encoded episodes.
        split: episode indices for training and validation.
        batch_size: episodes side by side.
        length: steps of a window; 0 is whole episodes.
        seed: of the order of the episodes.
    """

    unit = "transitions"

    def __init__(
        self,
        module: DynamicsModel,
        latents: LatentSet,
        split: tuple[np.ndarray, np.ndarray],
        batch_size: int,
        length: int,
        seed: int,
        fabric: Fabric,
    ) -> None:
        self.module = cast(torch.nn.Module, module)
        self._fabric = fabric
        train, validation = split
        self._train = SequenceBatches(latents, train, batch_size, length, seed, shuffle=True)
        self._validation = SequenceBatches(
            latents, validation, batch_size, length, seed, shuffle=False
        )

    def steps(self, epoch: int) -> int:
        """How many batches `epoch` has."""
        return self._train.steps(epoch)

    def batches(self, epoch: int, start: int) -> Iterator[SequenceBatch]:
        """Training windows."""
        return prefetch(self._train.epoch(epoch, start))

    def validation(self) -> Iterator[SequenceBatch]:
        """Validation windows."""
        return prefetch(self._validation.epoch(0))

    def count(self, batch: SequenceBatch) -> int:
        """Real transitions."""
        return int(batch.mask.sum())

    def loss(
        self, batch: SequenceBatch, carry: Sequence[Tensor] | None
    ) -> tuple[Tensor, dict[str, Tensor], State]:
        """The loss of a window, continuing each row from `carry`, its state before."""
        model = cast(DynamicsModel, self.module)
        tensors = (torch.from_numpy(np.ascontiguousarray(array)) for array in batch)
        sequences = Sequences(*(self._fabric.to_device(tensor) for tensor in tensors))
        if carry is None:
            carry = model.initial_state(len(sequences.starts), self._fabric.device)
        # float32: an LSTM this small gains nothing from autocast, and the tails of a density lose.
        return model.loss(sequences, tuple(carry))
