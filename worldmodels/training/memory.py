"""What M is trained on: windows of encoded episodes, with the hidden state carried across them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor

from worldmodels.data.latents import LatentSet
from worldmodels.data.prefetch import prefetch
from worldmodels.data.sequences import SequenceBatch, SequenceBatches
from worldmodels.models.mdnrnn import MDNRNN, Sequences, State


class MemoryTask:
    """Sequences for an `MDNRNN`; an item of the throughput is a transition.

    Args:
        module: the MDN-RNN.
        latents: encoded episodes.
        split: episode indices for training and validation.
        batch_size: episodes side by side.
        length: steps of a window; 0 is whole episodes.
        seed: of the order of the episodes.
    """

    unit = "transitions"

    def __init__(
        self,
        module: MDNRNN,
        latents: LatentSet,
        split: tuple[np.ndarray, np.ndarray],
        batch_size: int,
        length: int,
        seed: int,
        fabric: Fabric,
    ) -> None:
        self.module: torch.nn.Module = module
        self._fabric = fabric
        self._hidden_size = module.hidden_size
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
        self, batch: SequenceBatch, carry: list[Tensor] | State | None
    ) -> tuple[Tensor, dict[str, Tensor], State]:
        """The loss of a window, continuing each row from `carry`, its state before."""
        tensors = (torch.from_numpy(np.ascontiguousarray(array)) for array in batch)
        sequences = Sequences(*(self._fabric.to_device(tensor) for tensor in tensors))
        if carry is None:
            zeros = torch.zeros(
                len(sequences.starts), self._hidden_size, device=self._fabric.device
            )
            carry = State(zeros, zeros.clone())
        # float32: an LSTM this small gains nothing from autocast, and the tails of a density lose.
        return cast(MDNRNN, self.module).loss(sequences, State(*carry))
