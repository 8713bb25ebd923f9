"""Weights and checkpoints as safetensors: tensors as they are, the rest as JSON in the header.

No pickle, so that opening a stranger's checkpoint runs nobody's code.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialize
from torch import Tensor

from worldmodels.errors import ArtifactError
from worldmodels.files import atomic_path


def save(path: Path, tree: dict[str, Any]) -> None:
    """Write a nested dictionary of tensors, numbers, strings and lists, atomically."""
    tensors: dict[str, Tensor] = {}
    skeleton = json.dumps(_strip(tree, "", tensors))
    # As bytes, for a file that safetensors opens is its owner's alone, whatever the umask.
    content = serialize(tensors, metadata={"tree": skeleton})
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def load(path: Path) -> dict[str, Any]:
    """Read what `save` wrote; raises `ArtifactError` naming a file that cannot be read."""
    try:
        with safe_open(path, framework="pt") as file:
            skeleton = json.loads((file.metadata() or {})["tree"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise ArtifactError(f"{path} is missing") from None
    except (SafetensorError, KeyError, json.JSONDecodeError, OSError) as error:
        raise ArtifactError(
            f"{path} is damaged ({error}): delete it and run its stage again"
        ) from None
    tree: dict[str, Any] = _fill(skeleton, tensors)
    return tree


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


def _fill(node: Any, tensors: dict[str, Tensor]) -> Any:
    if _TENSOR in node:
        return tensors[node[_TENSOR]]
    if "dict" in node:
        return {key: _fill(value, tensors) for key, value in node["dict"]}
    if "list" in node:
        return [_fill(value, tensors) for value in node["list"]]
    return node["value"]


def state_on(device: torch.device, tree: Any) -> Any:
    """`tree` with its tensors moved to `device`."""
    if isinstance(tree, Tensor):
        return tree.to(device)
    if isinstance(tree, dict):
        return {key: state_on(device, value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [state_on(device, value) for value in tree]
    return tree
