"""What `worldmodels.training.fit` trains: a module, its data and its loss."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from torch import Tensor, nn


class Task(Protocol):
    """A module and its data: `EncoderTask`, `DynamicsTask` and `ImaginationTask`.

    Args:
        module: what is trained.
        unit: what `count` counts, in the plural, for the throughput.
        memory_key: the key to lower where not even one row of a batch fits into memory.
    """

    module: nn.Module
    unit: str
    memory_key: str

    def batches(self, epoch: int, start: int) -> Iterator[Any]:
        """The training batches of one epoch, in host memory.

        Args:
            epoch: number of the epoch, from 0; it determines the order.
            start: number of the first batch to yield, from 0; above 0 after a resumption.
        """
        ...

    def steps(self, epoch: int) -> int:
        """The number of training batches in epoch `epoch`."""
        ...

    def validation(self) -> Iterator[Any]:
        """The validation batches, the same at each call."""
        ...

    def loss(self, batch: Any, carry: Any) -> tuple[Tensor, dict[str, Tensor], Any]:
        """The loss of one batch.

        Args:
            batch: what `batches` or `validation` yields.
            carry: the third result for the previous batch of the same pass; None for the first.

        Returns:
            the loss, a scalar with gradients; detached scalars to log, by name; and the state to
            carry to the next batch of the same pass, such as an RNN's, cut from the graph.
        """
        ...

    def count(self, batch: Any) -> int:
        """The size of a batch in `unit`, over which its loss is a mean: the weight of a batch in
        the validation loss, and of a part in the loss of its batch."""
        ...

    def rows(self, batch: Any) -> int:
        """The number of rows of a batch, which is also that of each tensor of the carried state."""
        ...

    def part(self, batch: Any, rows: slice) -> Any:
        """The batch of these rows of `batch`."""
        ...

    def stepped(self) -> None:
        """Called after each step of the optimiser."""
        ...

    def compile(self) -> None:
        """Compile the loss."""
        ...
