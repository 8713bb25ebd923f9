"""What a file can hold of an encoder or a dynamics model: its sizes and its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast, get_type_hints

import torch
from torch import Tensor, nn

from worldmodels.config.keys import Limit
from worldmodels.errors import ConfigError
from worldmodels.files.untrusted import printable
from worldmodels.models.dynamics import DynamicsModel
from worldmodels.models.encoder import Encoder
from worldmodels.models.module import Module

INTEGERS, NUMBERS = Limit(0, 65_536), Limit(-1e9, 1e9)
"""What a size in a file may be; others are true, false or short texts."""
TEXT = 100
"""Letters of a short text, at most."""
_FLOATS = (torch.float32, torch.bfloat16)


def check_storable(module: Encoder | DynamicsModel) -> None:
    """Raise `ConfigError` for a module that could be trained but not be read from its file.

    The module that a file describes is built on the meta device from its sizes, and its tensors are
    then replaced by those of the file: what is in no file would have no numbers.
    """
    kind = type(module)
    for name in ("FORMAT", "sizes"):
        if not hasattr(module, name):
            raise ConfigError(f"{kind.__name__} has no {name}; add it")
    sizes = dict(module.sizes)
    _check_storable_sizes(kind, sizes)
    with torch.random.fork_rng(devices=[]):  # a constructor may draw numbers on the CPU
        try:
            outline: Any = empty(kind, sizes)
        except Exception as error:  # a class of another package may raise any
            raise ConfigError(
                f"{kind.__name__} cannot be built again from its sizes"
                f" ({' '.join(str(error).split())}); correct its property sizes"
            ) from error
    state = outline.state_dict()
    for name, tensor in state.items():
        if tensor.dtype not in (*_FLOATS, torch.int64):
            raise ConfigError(
                f"{kind.__name__}: a file cannot hold its tensor {name}, which is {tensor.dtype};"
                " make it float32 or int64"
            )
    for name, buffer in outline.named_buffers():
        if name not in state and buffer.is_meta:
            raise ConfigError(
                f"{kind.__name__}: its file would not hold the buffer {name}; register it with"
                ' persistent=True, or create a constant with device="cpu"'
            )
    for name, buffer in cast(nn.Module, module).named_buffers():
        if name in state and not buffer.is_meta and not buffer.isfinite().all():
            raise ConfigError(
                f"{kind.__name__}: the buffer {name} has numbers that are not finite, which no file"
                " may have; make it of finite ones"
            )
    wrong = wrong_tensor(state, module.state_dict())
    if wrong is not None:
        raise ConfigError(
            f"{kind.__name__} built again from its sizes has other tensors ({wrong}); correct its"
            " property sizes"
        )


def _check_storable_sizes(kind: type[Module], sizes: Mapping[str, Any]) -> None:
    types = size_types(kind)
    untyped = sizes.keys() - types.keys()
    if untyped:
        raise ConfigError(
            f"{kind.__name__}: {min(untyped)} in its sizes has no type; annotate the argument of"
            " its constructor, or take it out of sizes"
        )
    wrong = wrong_size(types, sizes)
    if wrong is not None:
        name, wanted = wrong
        remedy = (
            "choose another value"
            if isinstance(wanted, Limit)
            else "give the option the type int, float, bool or str"
        )
        raise ConfigError(
            f"{kind.__name__}: a file cannot hold {name}={sizes[name]!r}, it has to be {wanted};"
            f" {remedy}"
        )


def empty(kind: type[Module], sizes: Mapping[str, Any]) -> Any:
    """The module of these sizes on the meta device: it takes no memory."""
    with torch.device("meta"):
        return kind(**sizes)


def size_types(kind: type[Module]) -> dict[str, Any]:
    """The types of the arguments that build a module, by name."""
    return get_type_hints(kind.Options) | get_type_hints(kind.__init__)


def wrong_size(
    types: Mapping[str, Any], sizes: Mapping[str, Any]
) -> tuple[str, Limit | str] | None:
    """The name of the first size that is not of its type, and what it has to be; None if all are.

    Args:
        types: of `size_types`, with all names of `sizes`.
        sizes: of a file, so that their values may be anything.
    """
    for name, value in sizes.items():
        wanted = _wanted(types[name])
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if wanted == "true or false":
            fits = isinstance(value, bool)
        elif isinstance(wanted, Limit):
            whole = types[name] is not int or isinstance(value, int)
            fits = number and whole and value in wanted
        else:
            fits = isinstance(value, str) and len(value) <= TEXT
        if not fits:
            return name, wanted
    return None


def _wanted(kind: Any) -> Limit | str:
    """What a size may be, by the type that the class's constructor gives it."""
    if kind is bool:
        return "true or false"
    if kind is int:
        return INTEGERS
    return NUMBERS if kind is float else "a short text"


def wrong_tensor(expected: Mapping[str, Tensor], found: Any) -> str | None:
    """How `found` differs from the tensors `expected` by name, shape or type; None if it does not.

    Numbers may be stored in bfloat16; whole numbers, such as the batches that batch normalisation
    counts, are int64.
    """
    if not isinstance(found, dict):
        return "it has no weights"
    if found.keys() != expected.keys():
        key = min(found.keys() ^ expected.keys(), key=str)
        return f"{printable(str(key), 60)} is {'missing' if key in expected else 'too much'}"
    for key, tensor in expected.items():
        shape = tuple(tensor.shape)
        whole = tensor.dtype == torch.int64
        if not is_tensor(found[key], shape, *([torch.int64] if whole else _FLOATS)):
            dtypes = "int64" if whole else "float32 or bfloat16"
            return f"{key} is not a tensor of {shape} in {dtypes}"
    return None


def is_tensor(value: Any, shape: tuple[int, ...], *dtypes: torch.dtype) -> bool:
    """Whether `value` is a tensor of that shape and one of those types."""
    return isinstance(value, Tensor) and tuple(value.shape) == shape and value.dtype in dtypes


def shown(value: Any) -> str:
    """A value from a file, short and printable."""
    if isinstance(value, int) and abs(value) > 10**20:
        return "far too large"
    return printable(repr(value), 60)
