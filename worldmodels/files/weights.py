"""Weights and checkpoints as safetensors: tensors as they are, the rest as JSON in the header.

No pickle: opening an untrusted checkpoint runs no code. The header is checked against
the file's size before a tensor is read, and `outline` describes a file without reading one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialize
from torch import Tensor

from worldmodels.errors import ArtifactError
from worldmodels.files.atomic import atomic_path
from worldmodels.files.untrusted import MEGABYTE, open_regular, printable

_AGAIN = "make its stage again with overwrite=true, or copy it again"
_COPY = "copy it again"
HEADER = 4 * MEGABYTE
"""Bytes of a header, at most. That of a checkpoint has some ten thousand."""
DEPTH = 32
"""Of nested dictionaries and lists, at most."""
_DTYPES = {
    **{"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16},
    **{"I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8},
    **{"U8": torch.uint8, "BOOL": torch.bool},
}


def save(path: Path, tree: dict[str, Any]) -> None:
    """Write a safetensors file, atomically; tensors are copied to the CPU.

    Args:
        path: of the file.
        tree: nested dictionaries, with strings or integers as keys, and lists of tensors, numbers,
            strings and None; tuples become lists.

    Raises:
        ArtifactError: the disk is full or not writable.
        TypeError: a value is of another type.
    """
    tensors: dict[str, Tensor] = {}
    skeleton = json.dumps(_strip(tree, "", tensors))
    # As bytes, for a file that safetensors opens is its owner's alone, whatever the umask.
    content = serialize(tensors, metadata={"tree": skeleton})
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def digest(tree: dict[str, Any]) -> str:
    """SHA-256, in hexadecimal, of a tree that `save` takes: values, types, shapes and names.

    A tree that `load` returns has the digest of the one that was saved.
    """
    tensors: dict[str, Tensor] = {}
    content = hashlib.sha256(json.dumps(_strip(tree, "", tensors)).encode())
    for name, tensor in tensors.items():
        content.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        content.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return content.hexdigest()


def load(path: Path) -> dict[str, Any]:
    """Read what `save` wrote.

    Raises:
        ArtifactError: the file is missing, no regular file, damaged, or something else.
    """
    return _read(path, meta=False)


def outline(path: Path) -> dict[str, Any]:
    """What `load` would return, with tensors on the ``meta`` device: shapes and types, no numbers.

    Takes no more memory than the header, whatever the file declares; raises as `load` does.
    """
    return _read(path, meta=True)


def outline_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors by name, on the ``meta`` device, of a safetensors file that any program wrote.

    Raises:
        ArtifactError: as `load`, but the file need not have a tree.
    """
    return _tensors(path, None)


def load_tensors(path: Path, names: Iterable[str]) -> dict[str, Tensor]:
    """Some tensors of a safetensors file that any program wrote; raises as `outline_tensors`.

    Args:
        path: of the file.
        names: of the tensors.
    """
    return _tensors(path, names)


def _tensors(path: Path, names: Iterable[str] | None) -> dict[str, Tensor]:
    """The tensors `names` of a file; None: the outlines of all."""
    _check_header(path, _COPY)
    try:
        with safe_open(path, framework="pt") as file:
            if names is None:
                return {name: _outlined(file, name) for name in file.keys()}  # noqa: SIM118
            return {name: file.get_tensor(name) for name in names}
    except (SafetensorError, ValueError, KeyError, TypeError, OSError) as error:
        raise _damaged(path, error, _COPY) from None


def _read(path: Path, meta: bool) -> dict[str, Any]:
    _check_header(path)
    try:
        with safe_open(path, framework="pt") as file:
            skeleton = json.loads((file.metadata() or {})["tree"])
            take = _outlined if meta else type(file).get_tensor
            tensors = {name: take(file, name) for name in file.keys()}  # noqa: SIM118
        unused = set(tensors)
        tree = _fill(skeleton, tensors, unused, DEPTH)
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError, OSError) as error:
        raise _damaged(path, error) from None
    if unused or not isinstance(tree, dict):
        raise _damaged(path, ValueError("its tree does not name its tensors"))
    return tree


def _damaged(path: Path, error: Exception, remedy: str = _AGAIN) -> ArtifactError:
    reason = printable(" ".join(str(error).split()), 200)
    return ArtifactError(f"{path} is damaged ({reason}); {remedy}")


def _check_header(path: Path, remedy: str = _AGAIN) -> None:
    """Raise `ArtifactError` for a file that is not safe to give to safetensors."""
    with open_regular(path) as file:
        length = int.from_bytes(file.read(8), "little")
    if length > HEADER:
        error = ValueError(f"its header has {length:,} bytes, at most {HEADER:,}")
        raise _damaged(path, error, remedy)


def _outlined(file: Any, name: str) -> Tensor:
    part = file.get_slice(name)
    return torch.empty(part.get_shape(), dtype=_DTYPES[part.get_dtype()], device="meta")


_TENSOR = "__tensor__"


def _strip(node: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Move the tensors out of `node` into `tensors`, leaving their names."""
    if isinstance(node, Tensor):
        # A copy: safetensors refuses tensors that share memory.
        tensors[name] = node.detach().to("cpu", copy=True).contiguous()
        return {_TENSOR: name}
    if isinstance(node, dict):
        # Pairs and not an object, since an optimiser's state has integer keys.
        pairs = [[key, _strip(value, f"{name}/{key}", tensors)] for key, value in node.items()]
        return {"dict": pairs}
    if isinstance(node, list | tuple):
        items = [_strip(value, f"{name}/{i}", tensors) for i, value in enumerate(node)]
        return {"list": items}
    return {"value": node}


def _fill(node: Any, tensors: dict[str, Tensor], unused: set[str], depth: int) -> Any:
    """The inverse of `_strip`; takes the names of tensors out of `unused`.

    Raises:
        ValueError: a node that `_strip` does not write, or a tensor that is named twice or not
            there.
    """
    if depth == 0:
        raise ValueError("its tree is too deep")
    if not isinstance(node, dict) or len(node) != 1:
        raise ValueError("a node of its tree is of an unknown kind")
    ((kind, content),) = node.items()
    if kind == _TENSOR and isinstance(content, str):
        if content not in unused:
            raise ValueError(f"tensor {content!r} is missing, or named twice")
        unused.remove(content)
        return tensors[content]
    if kind == "dict" and isinstance(content, list):
        filled = {}
        for key, value in content:
            if not isinstance(key, str | int) or key in filled:
                raise ValueError("a key of its tree is of an unknown kind, or there twice")
            filled[key] = _fill(value, tensors, unused, depth - 1)
        return filled
    if kind == "list" and isinstance(content, list):
        return [_fill(value, tensors, unused, depth - 1) for value in content]
    if kind == "value" and (content is None or isinstance(content, str | int | float)):
        return content
    raise ValueError("a node of its tree is of an unknown kind")


def state_on(device: torch.device, tree: Any) -> Any:
    """`tree` with its tensors moved to `device`."""
    if isinstance(tree, Tensor):
        return tree.to(device)
    if isinstance(tree, dict):
        return {key: state_on(device, value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [state_on(device, value) for value in tree]
    return tree
