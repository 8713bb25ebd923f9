"""Encoders and dynamics models as files: the registered class, its sizes, its tensors.

A file may come from an untrusted source. It names a class, which is only looked up among the
registered ones; its sizes are checked, and the module of these sizes is compared with the tensors
of the file, by name, shape and type, before anything is allocated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from worldmodels.agents import registry
from worldmodels.agents.stored_modules import (
    TEXT,
    empty,
    is_tensor,
    shown,
    size_types,
    wrong_size,
    wrong_tensor,
)
from worldmodels.config.keys import Limit
from worldmodels.config.limits import LIMITS
from worldmodels.data.latents import FirstLatents
from worldmodels.errors import ArtifactError, ConfigError
from worldmodels.files import weights
from worldmodels.files.untrusted import printable
from worldmodels.models.dynamics import DynamicsModel
from worldmodels.models.encoder import Encoder

_STARTS = Limit(1, 2**18)
"""First latents, one for each episode that the dynamics model learned from."""
_MEMBERS = LIMITS["rnn.members"]


def save_encoder(path: Path, encoder: Encoder) -> None:
    """Write an encoder with what is needed to build it again."""
    weights.save(path, {"model": _described(encoder), "module": encoder.state_dict()})


def load_encoder(path: Path) -> Encoder:
    """Read an encoder, in float32 on the CPU, in evaluation mode.

    Raises:
        ArtifactError: the file is missing, damaged or something else, or of a class that is not
            registered here, or of another format of it.
    """
    outline = weights.outline(path)
    module: Encoder = _outlined(path, outline, registry.find_encoder)
    _check_parts(path, outline, {"model", "module"})
    _fill(path, module, weights.load(path)["module"])
    return module


def save_dynamics(
    path: Path, dynamics: DynamicsModel, first: FirstLatents, others: Sequence[DynamicsModel] = ()
) -> None:
    """Write a dynamics model with what is needed to build it again, and its first latents.

    Args:
        path: of the file.
        dynamics: the model; of an ensemble the first member.
        first: latents at which episodes in it begin.
        others: the other members, of the same class and sizes; their weights follow in the file.
    """
    begin = {name: _smallest(torch.from_numpy(array)) for name, array in vars(first).items()}
    tree: dict[str, Any] = {"model": _described(dynamics), "module": dynamics.state_dict()}
    tree["first_latents"] = begin
    if others:
        tree["members"] = [member.state_dict() for member in others]
    weights.save(path, tree)


def load_dynamics(path: Path) -> DynamicsModel:
    """Read a dynamics model in float32 on the CPU, to evaluate; raises as `load_encoder`.

    Of an ensemble it is the first member.
    """
    return load_members(path)[0]


def load_members(path: Path) -> list[DynamicsModel]:
    """Read all members of an ensemble, or the only model; see `load_dynamics`."""
    outline = weights.outline(path)
    first: DynamicsModel = _outlined(path, outline, registry.find_dynamics)
    _check_first_latents(path, outline, first.latent_size)
    others = _outlined_members(path, outline, first)
    stored = weights.load(path)
    members, states = [first, *others], [stored["module"], *stored.get("members", ())]
    for member, state in zip(members, states, strict=True):
        _fill(path, member, state)
    return members


def load_first_latents(path: Path) -> FirstLatents:
    """Where episodes in the dynamics model of `path` begin; raises as `load_encoder`."""
    outline = weights.outline(path)
    _check_first_latents(
        path, outline, _outlined(path, outline, registry.find_dynamics).latent_size
    )
    tree = weights.load(path)["first_latents"]
    return FirstLatents(
        **{name: finite(path, name, rows).float().numpy() for name, rows in tree.items()}
    )


def _smallest(rows: Tensor) -> Tensor:
    """`rows` in bfloat16 where that loses nothing, as where the encoder computed in it."""
    small = rows.bfloat16()
    return small if torch.equal(small.float(), rows) else rows


def finite(path: Path, name: str, tensor: Tensor) -> Tensor:
    """`tensor`; raises `ArtifactError` if some of its numbers are not finite."""
    if not torch.isfinite(tensor).all():
        raise ArtifactError(f"{path}: {name} has numbers that are not finite: copy it again")
    return tensor


def _described(module: Encoder | DynamicsModel) -> dict[str, Any]:
    kind = type(module)
    return {"class": registry.name_of(module), "format": kind.FORMAT, "sizes": dict(module.sizes)}


def _outlined(path: Path, outline: Mapping[str, Any], find: Any) -> Any:
    """The module that a file describes, on the meta device: it takes no memory.

    Raises:
        ArtifactError: there is no such class, or its tensors are not those of the file.
    """
    described = outline.get("model")
    if not isinstance(described, dict) or described.keys() != {"class", "format", "sizes"}:
        raise ArtifactError(
            f"{path} does not say which model it holds: it is something else, or an older version"
            " wrote it; make its stage again"
        )
    name, sizes = described["class"], described["sizes"]
    if not isinstance(name, str):
        raise ArtifactError(f"{path}: class is {shown(name)}: it has to be a name")
    try:
        kind = find(printable(name, TEXT))
    except ConfigError as error:
        raise ArtifactError(f"{path}: {error}") from error
    if described["format"] != kind.FORMAT:
        raise ArtifactError(
            f"{path}: {name} of format {shown(described['format'])}, this version reads"
            f" {kind.FORMAT}: make its stage again"
        )
    _check_sizes(path, kind, sizes)
    try:
        module = empty(kind, sizes)
    except Exception as error:  # a class of another package may raise any
        reason = printable(" ".join(str(error).split()), 200)
        raise ArtifactError(
            f"{path}: no {name} has these sizes ({reason}): copy it again"
        ) from None
    _check_module(path, name, module.state_dict(), outline.get("module"))
    return module


def _check_sizes(path: Path, kind: type[Encoder | DynamicsModel], sizes: Any) -> None:
    types = size_types(kind)
    if not isinstance(sizes, dict) or not sizes.keys() <= types.keys():
        raise ArtifactError(f"{path} does not hold sizes of {kind.__name__}: copy it again")
    wrong = wrong_size(types, sizes)
    if wrong is not None:
        name, wanted = wrong
        raise ArtifactError(f"{path}: {name} is {shown(sizes[name])}: it has to be {wanted}")


def _check_module(path: Path, name: str, expected: Mapping[str, Tensor], found: Any) -> None:
    """Raise `ArtifactError` unless `found` has the tensors `expected`, by name, shape and type."""
    wrong = wrong_tensor(expected, found)
    if wrong is not None:
        raise ArtifactError(f"{path} does not hold a {name} of its sizes: {wrong}: copy it again")


def _outlined_members(
    path: Path, outline: Mapping[str, Any], first: DynamicsModel
) -> list[DynamicsModel]:
    """The members after the first, on the meta device; raises `ArtifactError` as `_outlined`."""
    if "members" not in outline:
        return []
    found, kind, name = outline["members"], type(first), outline["model"]["class"]
    if not isinstance(found, list) or not found or len(found) + 1 not in _MEMBERS:
        raise ArtifactError(
            f"{path}: members has to be a list of the weights of each member after the first, of"
            f" {_MEMBERS} in all: copy it again"
        )
    for state in found:
        _check_module(path, name, first.state_dict(), state)
    return [empty(kind, first.sizes) for _ in found]


def _check_parts(
    path: Path, outline: Mapping[str, Any], parts: set[str], optional: Set[str] = frozenset()
) -> None:
    if not parts <= outline.keys() <= parts | optional:
        known = ", ".join(sorted(parts))
        raise ArtifactError(f"{path} has other parts than {known}: copy it again")


def _check_first_latents(path: Path, outline: Mapping[str, Any], latent_size: int) -> None:
    """Raise `ArtifactError` unless there are two equal tables of latents."""
    _check_parts(path, outline, {"model", "module", "first_latents"}, {"members"})
    found = outline["first_latents"]
    good = isinstance(found, dict) and found.keys() == {"mean", "logvar"}
    if good and isinstance(found["mean"], Tensor) and found["mean"].dim() == 2:
        shape = (len(found["mean"]), latent_size)
        good = shape[0] in _STARTS and all(
            is_tensor(rows, shape, torch.float32, torch.bfloat16) for rows in found.values()
        )
    else:
        good = False
    if not good:
        raise ArtifactError(
            f"{path}: first_latents has to be mean and logvar, each float32 or bfloat16"
            f" (episodes, {latent_size}): copy it again"
        )


def _fill(path: Path, module: Any, stored: Mapping[str, Tensor]) -> None:
    """Give a module on the meta device the numbers of its file, laid out in memory as its own."""
    state = {
        name: torch.empty_like(empty, device="cpu").copy_(finite(path, name, stored[name]))
        for name, empty in module.state_dict().items()
    }
    module.load_state_dict(state, assign=True)
    module.eval()
