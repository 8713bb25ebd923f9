"""Training of a dynamics model: windows of encoded episodes, with the state carried across them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import cast

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor

from worldmodels.data.latents import LatentSet
from worldmodels.data.prefetch import prefetch
from worldmodels.data.sequences import FailureEnd, FailureShare, SequenceBatch, SequenceBatches
from worldmodels.models.dynamics import DynamicsModel, Sequences, State
from worldmodels.training.compiling import compiled


class DynamicsTask:
    """The `Task` of training a `DynamicsModel`; throughput is counted in transitions.

    Args:
        module: the dynamics model.
        latents: encoded episodes.
        split: episode indices for training and validation.
        batch_size: rows of a batch, B.
        length: steps of a window, T; 0 is whole episodes.
        seed: of the order of the episodes.
        fabric: device and precision.
        failures: share of the training windows near a failure; None: all are drawn alike.
        failure_end: where episodes that stall end; None: at their last step.
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
        failures: FailureShare | None = None,
        failure_end: FailureEnd | None = None,
    ) -> None:
        self.module = cast(torch.nn.Module, module)
        self._model, self._loss = module, module.loss
        self._fabric = fabric
        train, validation = split
        self._train = SequenceBatches(
            latents, train, batch_size, length, seed, True, failures, failure_end
        )
        self._validation = SequenceBatches(
            latents, validation, batch_size, length, seed, False, None, failure_end
        )
        longer = module.sizes.get("context", 0) > self._train.length
        self.memory_key = "rnn.context" if longer else "rnn.sequence_length"

    def steps(self, epoch: int) -> int:
        """The number of batches in epoch `epoch`."""
        return self._train.steps(epoch)

    def batches(self, epoch: int, start: int) -> Iterator[SequenceBatch]:
        """Training windows of epoch `epoch` from batch `start` on."""
        return prefetch(self._train.epoch(epoch, start))

    def validation(self) -> Iterator[SequenceBatch]:
        """Validation windows, the same at each call."""
        return prefetch(self._validation.epoch(0))

    def count(self, batch: SequenceBatch) -> int:
        """The number of transitions in `batch`, without padding."""
        return int(batch.mask.sum())

    def rows(self, batch: SequenceBatch) -> int:
        """The number of rows of `batch`, B."""
        return len(batch.starts)

    def part(self, batch: SequenceBatch, rows: slice) -> SequenceBatch:
        """Rows of `batch`."""
        return SequenceBatch(*(array[rows] for array in batch))

    def stepped(self) -> None:
        """Nothing is to be done."""

    def compile(self) -> None:
        """Compile the loss; see `worldmodels.training.compiling`."""
        self._loss = compiled(self._loss)

    def loss(
        self, batch: SequenceBatch, carry: Sequence[Tensor] | None
    ) -> tuple[Tensor, dict[str, Tensor], State]:
        """The loss of a window.

        Args:
            batch: B rows of T steps, in host memory.
            carry: the state of each row after the previous window, or None at the start of a pass.

        Returns:
            the loss, a scalar; detached scalars to log, by name; and the state after the window.
        """
        tensors = (torch.from_numpy(np.ascontiguousarray(array)) for array in batch)
        sequences = Sequences(*(self._fabric.to_device(tensor) for tensor in tensors))
        if carry is None:
            carry = self._model.initial_state(len(sequences.starts), self._fabric.device)
        with self._fabric.autocast() if self._model.mixed_precision else nullcontext():
            return self._loss(sequences, tuple(carry))
