"""A batch computed in parts: the rows of this process, a few at a time.

The result is that of the whole batch up to rounding, whatever the number of processes and parts.
Losses are means, over the images or transitions of a batch, so each part is weighted by how many of
them it has (`Task.count`). Random numbers are drawn for the whole batch in every part, which then
uses its own rows of them (`RowDraws`).

On a CPU, two parts are computed at the same time, each by a thread of its own. The threads of a
PyTorch operation wait for one another at its end, hundreds of times in a step: beside another
program, each wait lasts until the thread that shares its core is scheduled again. Two threads with
a part each wait once in a step. The number of parts does not depend on the number of cores, so the
result is the same to the bit on one core and on two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from worldmodels.errors import TrainingError
from worldmodels.training import cpu
from worldmodels.training.ranks import Ranks
from worldmodels.training.task import Task

T = TypeVar("T")
R = TypeVar("R")

_SIDE_BY_SIDE = 2
"""Parts of a batch that are computed at the same time on a CPU. With four, training is a tenth
slower on two cores."""
_LIKE = {torch.randn_like: torch.randn, torch.rand_like: torch.rand}
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


class _Piece(NamedTuple):
    """A part of a batch that is to be computed.

    Args:
        batch: its rows.
        carry: its rows of the carried state.
        rows: which rows of the whole batch these are.
        total: rows of the whole batch.
        share: of the whole batch, 0 to 1.
    """

    batch: Any
    carry: Sequence[Tensor] | None
    rows: slice
    total: int
    share: float


class Parts:
    """How batches are computed: in how many parts, which grows where memory does not suffice.

    It is a context manager, which ends its threads.

    Args:
        ranks: the processes that share the rows of a batch.
        number: of parts in which each process computes its rows, at least.
        device: that the model is on.
        side_by_side: compute two parts at the same time, where one process trains on a CPU.
    """

    def __init__(self, ranks: Ranks, number: int, device: torch.device, side_by_side: bool) -> None:
        self.ranks, self.number, self._device = ranks, number, device
        self._threads: ThreadPoolExecutor | None = None
        if side_by_side and device.type == "cpu" and ranks.size == 1:
            self.number = max(number, _SIDE_BY_SIDE)
            cores = torch.get_num_threads()
            if cores >= _SIDE_BY_SIDE:
                self._threads = ThreadPoolExecutor(
                    _SIDE_BY_SIDE, "part", cpu.tune_thread, (cores // _SIDE_BY_SIDE,)
                )

    def __enter__(self) -> Parts:
        return self

    def __exit__(self, *error: object) -> None:
        self._end_threads()

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
                of the whole batch. None: no gradients.

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
        pieces = self._pieces(task, batch, carry)
        if self._threads is not None and len(pieces) > 1:
            trained = backward is not None
            computed = _all(self._threads, partial(_in_thread, task, trained, drawn[0]), pieces)
            if torch.equal(torch.get_rng_state(), drawn[0]):
                for one in computed:
                    if trained:
                        _add(task.module, one.gradients)
                    torch.set_rng_state(one.drawn)
                return [one.part for one in computed], _joined([one.state for one in computed])
            # The loss draws random numbers in a way that `RowDraws` does not know, so which of the
            # threads drew which of them was chance.
            self._end_threads()
            _set_generator_states(self._device, drawn)
        parts, states = [], []
        for piece in pieces:
            if piece.rows.start > pieces[0].rows.start:
                _set_generator_states(self._device, drawn)
            loss, part, state = _loss(task, piece)
            if backward is not None:
                backward(loss)
            parts.append(part)
            states.append(state)
        return parts, _joined(states)

    def _pieces(self, task: Task, batch: Any, carry: Sequence[Tensor] | None) -> list[_Piece]:
        """This process's rows of a batch, in parts."""
        rows, total = task.rows(batch), task.count(batch)
        own = self.ranks.share(rows)
        mine = own.stop - own.start
        number = min(self.number, mine)
        bounds = [mine * part // number for part in range(number + 1)] if mine else []
        pieces = []
        for first, last in pairwise(bounds):
            part = slice(own.start + first, own.start + last)
            piece = batch if last - first == rows else task.part(batch, part)
            before = None if carry is None else tuple(state[first:last] for state in carry)
            share = task.count(piece) / max(total, 1)
            pieces.append(_Piece(piece, before, part, rows, share))
        return pieces

    def _end_threads(self) -> None:
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None
            # What a thread sets for itself becomes the default of all later threads as well.
            torch.set_num_threads(torch.get_num_threads())


def _loss(
    task: Task, piece: _Piece, generator: torch.Generator | None = None
) -> tuple[Tensor, Part, Any]:
    """The loss of a part, weighted by its share; the part; and the state to carry."""
    if piece.rows == slice(0, piece.total):
        loss, logs, state = task.loss(piece.batch, piece.carry)
        weighted = loss
    else:
        with RowDraws(piece.rows, piece.total, generator):
            loss, logs, state = task.loss(piece.batch, piece.carry)
        weighted = loss * piece.share
    part = Part(task.count(piece.batch), piece.share, {"loss": loss.detach()} | logs)
    return weighted, part, state


class _Computed(NamedTuple):
    """What a thread has computed.

    Args:
        part: the result.
        state: to carry.
        gradients: of `_trained`, in this order; empty without training.
        drawn: the state of the random generator afterwards.
    """

    part: Part
    state: Any
    gradients: Sequence[Tensor | None]
    drawn: Tensor


def _in_thread(task: Task, trained: bool, drawn: Tensor, piece: _Piece) -> _Computed:
    """Compute a part, beginning with the state `drawn` of the random generator."""
    generator = torch.Generator().set_state(drawn)
    gradients: Sequence[Tensor | None] = ()
    with torch.set_grad_enabled(trained):  # a setting of each thread
        loss, part, state = _loss(task, piece, generator)
        if trained:  # not by `backward`, with which the threads would add to the same gradients
            gradients = torch.autograd.grad(loss, _trained(task.module), allow_unused=True)
    return _Computed(part, state, gradients, generator.get_state())


def _all(threads: ThreadPoolExecutor, function: Callable[[T], R], values: Iterable[T]) -> list[R]:
    """The results for all values, or the first error once every thread has ended its work."""
    futures = [threads.submit(function, value) for value in values]
    wait(futures)
    return [future.result() for future in futures]


def _trained(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def _add(module: nn.Module, gradients: Sequence[Tensor | None]) -> None:
    """Add gradients of `_trained`, in this order, to those that are there."""
    for parameter, gradient in zip(_trained(module), gradients, strict=True):
        if gradient is not None:
            found = parameter.grad
            parameter.grad = gradient if found is None else found.add_(gradient)


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


def side_by_side(module: nn.Module, compiled: bool) -> bool:
    """Whether two threads can compute parts of a batch, and to the result of the whole batch.

    Compilation is not made for several threads, and batch normalisation takes means over the rows.
    """
    return not compiled and not any(isinstance(part, _BatchNorm) for part in module.modules())


class RowDraws(TorchFunctionMode):
    """Random tensors whose first dimension is the rows of a part are rows of the whole batch's.

    `torch.randn_like`, `rand_like`, `randn` and `rand` draw as many numbers as for the whole batch
    and return those of the part. Draws of other functions, such as dropout's, are left as they are.

    Args:
        rows: of the part.
        total: rows of the whole batch.
        generator: to draw from; None for the default one.
    """

    def __init__(self, rows: slice, total: int, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self._rows, self._total, self._generator = rows, total, generator

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call `func`, for as many rows as the whole batch has where it draws."""
        options = dict(kwargs or {})
        if func in _LIKE:
            like = args[0] if args else options.pop("input")
            if self._is_part(like.shape):
                made = {"dtype": like.dtype, "device": like.device} | options
                made.pop("memory_format", None)  # rows first, as the whole is drawn
                return self._draw(_LIKE[func], like.shape, made)
        elif func in _LIKE.values():
            given = args or (options.pop("size", ()),)
            size = given[0] if isinstance(given[0], Sequence) else given
            if self._is_part(size):
                return self._draw(func, size, options)
        return func(*args, **(kwargs or {}))

    def _draw(self, func: Any, size: Sequence[int], kwargs: dict[str, Any]) -> Tensor:
        whole: Tensor = func(self._total, *size[1:], **{"generator": self._generator} | kwargs)
        return whole[self._rows]

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
