"""The processes of one training, and the messages between them.

Each process has a *rank*, from 0. Rank 0 is the command itself: it alone runs the stages, writes
files and prints. The other ranks compute their rows of each batch (`worldmodels.training.parts`).

Whatever decides what happens next goes through one collective, `Ranks.exchange`: numbers of all
ranks, or the error of one of them. A rank that fails enters the exchange in which the others wait,
so that all of them end, with the message of the one that failed.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor, distributed

from worldmodels.errors import TrainingError, WorldModelsError
from worldmodels.files.untrusted import printable
from worldmodels.system import interrupts

T = TypeVar("T")

_SLOTS = 4
"""Numbers in an exchange, at most."""
_MESSAGE_BYTES = 2000
_POLL_SECONDS = 0.1


class Ranks:
    """One process, or several that train one model.

    Args:
        rank: of this process, from 0.
        size: number of processes.
        group: of gloo, for messages; the gradients are summed in the default group.

    `ended` is True once every rank has been notified that one has failed or was stopped.
    """

    def __init__(
        self, rank: int = 0, size: int = 1, group: distributed.ProcessGroup | None = None
    ) -> None:
        self.rank, self.size, self._group = rank, size, group
        self.ended = False
        self._flat: Tensor | None = None

    @property
    def first(self) -> bool:
        """Whether this process writes and prints."""
        return self.rank == 0

    def share(self, rows: int, rank: int | None = None) -> slice:
        """The rows of a batch of `rows` that a rank computes; by default this one."""
        rank = self.rank if rank is None else rank
        return slice(rows * rank // self.size, rows * (rank + 1) // self.size)

    def exchange(self, *values: float) -> list[list[float]]:
        """The numbers that each rank gives, by rank; every rank gives as many.

        Raises:
            TrainingError: a rank has failed or ended.
        """
        if self.size == 1:
            return [list(values)]
        return [row[1 : 1 + len(values)] for row in self._exchange(0, values)]

    def gather(self, value: Any) -> list[Any]:
        """What each rank gives, by rank: anything that JSON can hold.

        Raises:
            TrainingError: a rank has failed or ended.
        """
        if self.size == 1:
            return [value]
        text = json.dumps(value).encode()
        lengths = [int(row[1]) for row in self._exchange(0, [len(text)])]
        return [json.loads(text) for text in self._texts(text, lengths)]

    def fail(self, error: Exception) -> None:
        """Send an error of this rank to the others; does nothing where they have it already."""
        if self.size == 1 or self.ended:
            return
        self.ended = True
        known = isinstance(error, WorldModelsError)
        line = str(error) if known else f"{type(error).__name__}: {error}"
        text = " ".join(line.split()).encode()[:_MESSAGE_BYTES]
        try:
            rows = self._exchange(len(text) + 1, ())
            self._texts(text, [max(0, int(row[0]) - 1) for row in rows])
        except TrainingError:
            pass  # the others have ended already

    def fail_together(self, error: Exception) -> NoReturn:
        """Raise an error that every rank raises now, for the same reason."""
        self.ended = True
        raise error

    def call(self, message: Any) -> None:
        """Send a message from rank 0 to the others, which wait for it with `receive`."""
        if self.size > 1:
            text = json.dumps(message).encode()
            self._together(lambda: distributed.broadcast(_number(len(text)), 0, group=self._group))
            self._together(lambda: distributed.broadcast(_bytes(text), 0, group=self._group))

    def receive(self, answer_signals: bool) -> Any:
        """Wait for what rank 0 sends with `call`, however long it takes.

        Args:
            answer_signals: a signal ends the waiting; if not, it is answered in the next training.

        Raises:
            Stopped: this process was asked to stop.
        """
        length = _number(0)
        work = distributed.broadcast(length, 0, group=self._group, async_op=True)
        assert work is not None
        while not work.is_completed():  # a blocking call would not answer a signal
            if answer_signals:
                interrupts.check()
            time.sleep(_POLL_SECONDS)
        self._together(work.wait)
        content = torch.empty(int(length), dtype=torch.uint8)
        self._together(lambda: distributed.broadcast(content, 0, group=self._group))
        return json.loads(bytes(content.tolist()))

    def copy_from_first(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite tensors with those of rank 0."""
        if self.size > 1:
            for tensor in tensors:
                self._together(partial(distributed.broadcast, tensor.detach(), 0))

    def sum_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Replace the gradients of `parameters` by their sums over all ranks."""
        if self.size == 1:
            return
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        count = sum(gradient.numel() for gradient in gradients)
        if self._flat is None or self._flat.numel() != count:
            self._flat = torch.empty(count, device=gradients[0].device)
        flat = self._flat
        torch.cat([gradient.reshape(-1) for gradient in gradients], out=flat)
        self._together(lambda: distributed.all_reduce(flat))
        parts = flat.split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view(gradient.shape))

    def whole(self, state: Sequence[Tensor], rows: int) -> list[Tensor]:
        """A batched state whose rows the ranks share, put together in host memory.

        Args:
            state: this rank's rows of each tensor; the first dimension is the row.
            rows: of all ranks together.
        """
        if self.size == 1:
            return list(state)
        shares = [self.share(rows, rank) for rank in range(self.size)]
        longest = max(part.stop - part.start for part in shares)
        tensors = []
        for tensor in state:
            mine = torch.zeros(longest, *tensor.shape[1:], dtype=tensor.dtype)
            mine[: len(tensor)] = tensor.cpu()
            tensors.append(
                torch.cat(
                    [
                        part[: share.stop - share.start]
                        for part, share in zip(self._all(mine), shares, strict=True)
                    ]
                )
            )
        return tensors

    def _exchange(self, message: int, values: Sequence[float]) -> list[list[float]]:
        """`exchange`, with the length of an error's text plus 1 in front; 0 for no error."""
        numbers = [float(message), *values, *[0.0] * (_SLOTS - len(values))]
        rows = [row.tolist() for row in self._all(torch.tensor(numbers, dtype=torch.float64))]
        lengths = [max(0, int(row[0]) - 1) for row in rows]
        if not message and any(row[0] for row in rows):
            self.ended = True
            failed = next(rank for rank, row in enumerate(rows) if row[0])
            text = self._texts(b"", lengths)[failed].decode(errors="replace")
            raise TrainingError(f"process {failed} of {self.size}: {printable(text)}")
        return rows

    def _texts(self, mine: bytes, lengths: Sequence[int]) -> list[bytes]:
        """Texts of all ranks, of these lengths."""
        padded = _bytes(mine.ljust(max(lengths), b"\0"))
        found = self._all(padded)
        return [bytes(part.tolist())[:length] for part, length in zip(found, lengths, strict=True)]

    def _all(self, tensor: Tensor) -> list[Tensor]:
        tensors = [torch.empty_like(tensor) for _ in range(self.size)]
        self._together(lambda: distributed.all_gather(tensors, tensor, group=self._group))
        return tensors

    def _together(self, collective: Callable[[], T]) -> T:
        """Run a collective; one that another process does not join is an error of one line."""
        try:
            return collective()
        except RuntimeError as error:
            self.ended = True
            raise TrainingError(
                f"trainer.devices: another of the {self.size} processes of the training has ended"
                f" (seen by process {self.rank} on {socket.gethostname()}); run the same command"
                " again"
            ) from error


ALONE = Ranks()
"""Training in one process."""


def _number(value: int) -> Tensor:
    return torch.tensor([value], dtype=torch.int64)


def _bytes(text: bytes) -> Tensor:
    return torch.tensor(list(text), dtype=torch.uint8)
