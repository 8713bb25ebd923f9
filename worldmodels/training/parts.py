"""A batch computed in parts: the rows of this process, a few at a time.

The result is that of the whole batch up to rounding, whatever the number of processes and parts.
Losses are means, over the images or transitions of a batch, so each part is weighted by how many of
them it has (`Task.count`). Random numbers are drawn for the whole batch in every part, which then
uses its own rows of them (`RowDraws`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from worldmodels.errors import TrainingError
from worldmodels.training.ranks import Ranks
from worldmodels.training.task import Task

_OUT_OF_MEMORY = ("can't allocate memory", "DefaultCPUAllocator", "std::bad_alloc")
"""In the messages of errors that PyTorch has no class for on a CPU."""


class Part(NamedTuple):
    """The result of a part of a batch.

    Args:
        size: see `Task.count`.
        share: of the whole batch, 0 to 1.
        values: the loss as ``loss`` and what is logged beside it, detached scalars.
    """

    size: int
    share: float
    values: dict[str, Tensor]


class Parts:
    """How batches are computed: in how many parts, which grows where memory does not suffice.

    Args:
        ranks: the processes that share the rows of a batch.
        number: of parts in which each process computes its rows.
        device: that the model is on.
    """

    def __init__(self, ranks: Ranks, number: int, device: torch.device) -> None:
        self.ranks, self.number, self._device = ranks, number, device

    def run(
        self,
        task: Task,
        batch: Any,
        carry: Sequence[Tensor] | None,
        backward: Callable[[Tensor], None] | None = None,
    ) -> tuple[list[Part], Sequence[Tensor] | None]:
        """The loss of this process's rows of a batch.

        Args:
            task: what is trained.
            batch: the whole batch, the same in every process.
            carry: this process's rows of the state that `Task.loss` takes.
            backward: adds the gradients of its argument to those of ``task.module``, which are
                first set to None. The sum over all parts and processes is the gradient of the loss
                of the whole batch.

        Returns:
            the parts, none where this process has no row; and the state to carry, of this process's
            rows.

        Raises:
            TrainingError: one row alone does not fit into memory.
        """
        drawn = _generator_states(self._device)
        while True:
            try:
                return self._run(task, batch, carry, backward, drawn)
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error):
                    raise
            # Behind the handler, for its error holds every tensor of the failed attempt.
            own = self.ranks.share(task.rows(batch))
            if self.number >= own.stop - own.start:
                raise TrainingError(
                    f"{task.memory_key}: a batch of one row does not fit into memory; lower it, or"
                    " use a machine with more memory"
                )
            self.number = min(2 * self.number, own.stop - own.start)
            if self._device.type == "cuda":
                torch.cuda.empty_cache()
            _set_generator_states(self._device, drawn)

    def _run(
        self,
        task: Task,
        batch: Any,
        carry: Sequence[Tensor] | None,
        backward: Callable[[Tensor], None] | None,
        drawn: list[Tensor],
    ) -> tuple[list[Part], Sequence[Tensor] | None]:
        if backward is not None:
            task.module.zero_grad(set_to_none=True)
        rows, total = task.rows(batch), task.count(batch)
        own = self.ranks.share(rows)
        mine = own.stop - own.start
        number = min(self.number, mine)
        bounds = [mine * part // number for part in range(number + 1)] if mine else []
        parts, states = [], []
        for first, last in pairwise(bounds):
            whole = last - first == rows
            part = slice(own.start + first, own.start + last)
            if first:
                _set_generator_states(self._device, drawn)
            before = None if carry is None else tuple(state[first:last] for state in carry)
            piece = batch if whole else task.part(batch, part)
            if whole:
                loss, logs, after = task.loss(piece, before)
            else:
                with RowDraws(part, rows):
                    loss, logs, after = task.loss(piece, before)
            count = task.count(piece)
            share = count / max(total, 1)
            if backward is not None:
                backward(loss if whole else loss * share)
            parts.append(Part(count, share, {"loss": loss.detach()} | logs))
            states.append(after)
        return parts, _joined(states)


def mean(parts: Sequence[Part]) -> dict[str, float]:
    """The weighted sums of the values of parts: their means, for the parts of a whole batch."""
    sums: dict[str, float] = {}
    for part in parts:
        for name, value in part.values.items():
            sums[name] = sums.get(name, 0.0) + float(value) * part.share
    return sums


def added(values: Sequence[dict[str, float]]) -> dict[str, float]:
    """Values of several processes, added up by name."""
    names = {name: None for found in values for name in found}
    return {name: sum(found.get(name, 0.0) for found in values) for name in names}


class RowDraws(TorchFunctionMode):
    """Random tensors whose first dimension is the rows of a part are rows of the whole batch's.

    `torch.randn_like`, `rand_like`, `randn` and `rand` draw as many numbers as for the whole batch
    and return those of the part. Draws of other functions, such as dropout's, are left as they are.

    Args:
        rows: of the part.
        total: rows of the whole batch.
    """

    def __init__(self, rows: slice, total: int) -> None:
        super().__init__()
        self._rows, self._total = rows, total

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call `func`, for as many rows as the whole batch has where it draws."""
        kwargs = kwargs or {}
        if func in (torch.randn_like, torch.rand_like):
            like = args[0]
            if self._is_part(like.shape):
                whole = like.new_empty(self._total, *like.shape[1:])
                return func(whole, *args[1:], **kwargs)[self._rows]
        elif func in (torch.randn, torch.rand):
            size = args[0] if args and not isinstance(args[0], int) else args
            if self._is_part(size):
                return func(self._total, *size[1:], **kwargs)[self._rows]
        return func(*args, **kwargs)

    def _is_part(self, size: Sequence[int]) -> bool:
        return len(size) > 0 and size[0] == self._rows.stop - self._rows.start


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory did not suffice."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return any(words in str(error) for words in _OUT_OF_MEMORY)


def _joined(states: list[Any]) -> Sequence[Tensor] | None:
    """The states after the parts, as one."""
    if not states or states[0] is None:
        return None
    if len(states) == 1:
        state: Sequence[Tensor] = states[0]
        return state
    return tuple(torch.cat(parts) for parts in zip(*states, strict=True))


def _generator_states(device: torch.device) -> list[Tensor]:
    """The states of the random generators that a loss may draw from."""
    states = [torch.get_rng_state()]
    if device.type != "cpu":
        states.append(_generator(device).get_state())
    return states


def _set_generator_states(device: torch.device, states: list[Tensor]) -> None:
    torch.set_rng_state(states[0])
    if device.type != "cpu":
        _generator(device).set_state(states[1])


def _generator(device: torch.device) -> torch.Generator:
    """The default generator of a device that is not the CPU."""
    if device.type == "mps":
        return torch.mps._get_default_mps_generator()
    number = torch.cuda.current_device() if device.index is None else device.index
    return torch.cuda.default_generators[number]
