"""A trained agent on disk: encoder, dynamics model, controller, and their configuration.

The folder is self-contained: ``agent.json``, ``vae.safetensors``, ``rnn.safetensors``,
``controller.safetensors``; if the search ran in principal components of the features,
``pca_subspace.safetensors``; if its episodes began at moments of recorded ones,
``starts.safetensors``; and if value functions were part of their returns, ``value.safetensors``.
Every controller stage leaves one; ``evaluate`` takes any, and so does the search for another
controller on its models.

An agent may come from an untrusted source: sizes are checked before a network of them is made,
shapes and types before numbers are read, and numbers have to be finite. ``agent.json`` has the
SHA-256 of the other files.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import operator
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from worldmodels.agents.model_files import (
    finite,
    is_tensor,
    load_encoder,
    load_members,
    save_dynamics,
    save_encoder,
    shown,
)
from worldmodels.config.keys import Limit
from worldmodels.config.limits import ACTIONS, LIMITS
from worldmodels.data.latents import FirstLatents
from worldmodels.envs.action_spec import ActionSpec, BoxActions, DiscreteActions
from worldmodels.envs.observation import ObservationSpec
from worldmodels.errors import ArtifactError
from worldmodels.files import untrusted, weights
from worldmodels.files.atomic import write_json
from worldmodels.files.untrusted import printable
from worldmodels.models.controller import CHOICE, SQUASHINGS, ControllerSpec, squashing
from worldmodels.models.dynamics import DynamicsModel
from worldmodels.models.encoder import Encoder
from worldmodels.models.features import FeatureSpec

RECORD = "agent.json"
PARTS = tuple(
    f"{name}.safetensors"
    for name in ("controller", "pca_subspace", "rnn", "starts", "vae", "value")
)
_DESCRIBED = {"env_id", "features", "controller", "observation", "actions"}
_FIELDS = {"format", *_DESCRIBED, "converted_from", "files"}
_HIDDEN_UNITS = LIMITS["controller.hidden_units"]
_BOUNDS = Limit(-float(np.finfo(np.float32).max), float(np.finfo(np.float32).max))
_ACTION_NUMBERS = Limit(-(2**31), 2**31 - 1)
PART_BYTES = 4096 * untrusted.MEGABYTE
"""Of a part, at most: more than the largest that the limits allow."""
FORMAT = 2
"""Of ``agent.json``."""


@dataclass(frozen=True)
class AgentConfig:
    """The configuration of an agent.

    Args:
        features: input of the controller.
        controller: its layers and squashings.
        env_id: the environment it was trained for.
        observation: how that environment's pictures become the encoder's frames.
        actions: that environment's own actions.
    """

    features: FeatureSpec
    controller: ControllerSpec
    env_id: str
    observation: ObservationSpec
    actions: ActionSpec


@dataclass(frozen=True)
class Agent:
    """Encoder, dynamics model and controller.

    Args:
        encoder: frames to latents.
        dynamics: latents and actions to the next latent.
        parameters: of the controller, (size,) float32; see `Controllers` for their order.
        config: features, layers of the controller, environment.
        others: the members of an ensemble after the first, which is `dynamics`.
    """

    encoder: Encoder
    dynamics: DynamicsModel
    parameters: np.ndarray
    config: AgentConfig
    others: tuple[DynamicsModel, ...] = ()


def write_agent(folder: Path, agent: Agent, first: FirstLatents) -> None:
    """Write a self-contained agent.

    Args:
        folder: of the agent; made if it is missing.
        agent: its parts.
        first: latents at which episodes in its dynamics model begin.

    Raises:
        ArtifactError: the disk is full or not writable.
    """
    save_encoder(folder / "vae.safetensors", agent.encoder)
    save_dynamics(folder / "rnn.safetensors", agent.dynamics, first, agent.others)
    tensor = torch.from_numpy(np.asarray(agent.parameters, np.float32))
    weights.save(folder / "controller.safetensors", {"parameters": tensor})
    save_config(folder, agent.config)


def save_config(folder: Path, config: AgentConfig, converted_from: str | None = None) -> None:
    """Write ``agent.json``, with the SHA-256 of each of the files beside it.

    Args:
        folder: of the agent.
        config: the agent's.
        converted_from: the fingerprint of the agent of an older format with the same tensors.
    """
    record = {"format": FORMAT, **asdict(config)}
    if converted_from is not None:
        record["converted_from"] = converted_from
    write_json(folder / RECORD, {**record, "files": _digests(folder)})


def fingerprint(folder: Path) -> str:
    """A fingerprint of all the files of an agent, which are verified; logs where they cannot be.

    Raises:
        ArtifactError: there is no agent, or a file is not the one that ``agent.json`` names.
    """
    record, digests = _record(folder), _digests(folder)
    if "files" in record:
        _verify(folder, record, digests)
        # Without the hashes of the files, which are in the fingerprint already.
        described = {key: value for key, value in record.items() if key != "files"}
        content = (json.dumps(described, indent=2) + "\n").encode()
    else:
        _warn_unverified(folder)
        content = untrusted.read_bytes(folder / RECORD, untrusted.MEGABYTE)
    prints = [*digests.values(), hashlib.sha256(content).hexdigest()]
    return "-".join(part[:8] for part in prints)


def part_fingerprint(folder: Path, part: str) -> str:
    """The fingerprint of one file of an agent; raises as `fingerprint` does."""
    fingerprint(folder)
    return untrusted.sha256(folder / part, PART_BYTES)[:16]


@functools.cache
def _warn_unverified(folder: Path) -> None:
    logging.getLogger(__name__).warning(
        "%s: has no SHA-256 of the agent's files (an older version wrote it): not verified",
        folder / RECORD,
    )


def _digests(folder: Path) -> dict[str, str]:
    """The SHA-256 of each part that is there."""
    return {
        name: untrusted.sha256(folder / name, PART_BYTES)
        for name in PARTS
        if os.path.lexists(folder / name)
    }


def _verify(folder: Path, record: dict[str, Any], digests: dict[str, str]) -> None:
    """Raise `ArtifactError` unless the parts are those that ``agent.json`` names."""
    named = record["files"]
    if not isinstance(named, dict) or not named.keys() <= set(PARTS):
        raise ArtifactError(f"{folder / RECORD}: files has to name {', '.join(PARTS)}")
    for name in PARTS:
        if named.get(name) != digests.get(name):
            raise ArtifactError(
                f"{folder / name}: is not the file that {RECORD} names (SHA-256); copy the agent"
                " again"
            )


def _record(folder: Path) -> dict[str, Any]:
    """The content of ``agent.json``."""
    if not os.path.lexists(folder / RECORD):
        raise ArtifactError(f"{folder} holds no trained agent: {RECORD} is missing")
    record = untrusted.read_json(folder / RECORD, untrusted.MEGABYTE)
    if not isinstance(record, dict):
        raise ArtifactError(f"{folder / RECORD} does not describe an agent: copy it again")
    return record


def _config(path: Path, record: dict[str, Any]) -> AgentConfig:
    """The configuration of an agent, each field of its type and within its limits."""
    if record.get("format") != FORMAT:
        raise ArtifactError(
            f"{path}: of format {shown(record.get('format', 1))}, this version reads {FORMAT}:"
            " another version wrote it; make its stage again, or convert the agent"
            " (tools/convert_agent.py)"
        )
    if record.keys() <= _FIELDS - {"observation", "actions"}:
        raise ArtifactError(
            f"{path}: does not describe the observations and actions (an older version wrote it);"
            " make its stage again, or convert the agent (tools/convert_agent.py)"
        )
    if not _DESCRIBED <= record.keys() <= _FIELDS:
        names = printable(", ".join(record), 200)
        raise ArtifactError(f"{path} does not describe an agent: it has {names}")
    features, controller = record["features"], record["controller"]
    _check_fields(path, "features", features, FeatureSpec)
    _check_fields(path, "controller", controller, ControllerSpec)
    _check_squash(path, controller["squash"])
    state = features["state"]
    if not isinstance(state, list) or not all(isinstance(name, str) for name in state):
        raise ArtifactError(f"{path}: features.state has to be a list of names")
    _check_integer(path, "controller.hidden_units", controller["hidden_units"], _HIDDEN_UNITS)
    for group, name in (("features", "sampled"), ("features", "updated"), ("controller", "bias")):
        value = record[group][name]
        if not isinstance(value, bool):
            raise ArtifactError(
                f"{path}: {group}.{name} is {shown(value)}: it has to be true or false"
            )
    if not isinstance(record["env_id"], str):
        raise ArtifactError(f"{path}: env_id is {shown(record['env_id'])}: it has to be a text")
    return AgentConfig(
        FeatureSpec(**(features | {"state": tuple(state)})),
        ControllerSpec(**(controller | {"squash": tuple(controller["squash"])})),
        printable(record["env_id"], 200),
        _observation(path, record["observation"]),
        _actions(path, record["actions"]),
    )


def _observation(path: Path, found: Any) -> ObservationSpec:
    """The checked description of the frames."""
    _check_fields(path, "observation", found, ObservationSpec)
    for name, limit in (("crop_rows", LIMITS["env.crop_rows"]), ("size", LIMITS["env.size"])):
        if not (name == "crop_rows" and found[name] is None):
            _check_integer(path, f"observation.{name}", found[name], limit)
    return ObservationSpec(**found)


def _actions(path: Path, found: Any) -> ActionSpec:
    """The checked description of the environment's own actions."""
    kind = found.get("kind") if isinstance(found, dict) else None
    if kind == "box":
        _check_fields(path, "actions", found, BoxActions)
        low, high = (_bounds(path, name, found[name]) for name in ("low", "high"))
        if len(low) != len(high) or not all(map(operator.lt, low, high)):
            raise ArtifactError(f"{path}: actions.low has to be below actions.high: copy it again")
        return BoxActions(low, high)
    if kind != "discrete":
        raise ArtifactError(f"{path}: actions.kind is {shown(kind)}: it has to be box or discrete")
    _check_fields(path, "actions", found, DiscreteActions)
    _check_integer(path, "actions.n", found["n"], ACTIONS)
    _check_integer(path, "actions.start", found["start"], _ACTION_NUMBERS)
    bins, start = found["action_bins"], found["start"]
    if bins is not None:
        if not isinstance(bins, list) or len(bins) != 3:
            raise ArtifactError(f"{path}: actions.action_bins has to be null or three actions")
        for action in bins:
            limit = Limit(start, start + found["n"] - 1)
            _check_integer(path, "actions.action_bins", action, limit)
        bins = tuple(bins)
    return DiscreteActions(found["n"], start, bins)


def _bounds(path: Path, name: str, found: Any) -> tuple[float, ...]:
    """Checked bounds of actions."""
    if not isinstance(found, list) or len(found) not in ACTIONS:
        raise ArtifactError(f"{path}: actions.{name} has to be a list of {ACTIONS} numbers")
    for bound in found:
        number = isinstance(bound, int | float) and not isinstance(bound, bool)
        if not number or bound not in _BOUNDS:
            raise ArtifactError(
                f"{path}: actions.{name} has {shown(bound)}: it has to be a finite number"
            )
    return tuple(map(float, found))


def _check_integer(path: Path, name: str, value: Any, limit: Limit) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value not in limit:
        raise ArtifactError(f"{path}: {name} is {shown(value)}: it has to be {limit}")


def _check_fields(path: Path, group: str, found: Any, kind: type) -> None:
    """Raise `ArtifactError` unless `found` has the fields of the dataclass `kind`."""
    expected = {field.name for field in fields(kind)}
    if not isinstance(found, dict) or found.keys() != expected:
        known = ", ".join(sorted(expected))
        raise ArtifactError(f"{path}: {group} has to have the fields {known}: copy it again")


def _check_squash(path: Path, names: Any) -> None:
    if not isinstance(names, list) or len(names) not in ACTIONS:
        raise ArtifactError(f"{path}: squash has to be a list of {ACTIONS} names")
    try:
        squashing(names)
    except (KeyError, ValueError, TypeError) as error:
        raise ArtifactError(
            f"{path}: unknown squashing {printable(str(error), 60)}, known are"
            f" {', '.join(SQUASHINGS)} and {CHOICE}"
        ) from None


def load_config(folder: Path) -> AgentConfig:
    """The configuration of an agent, without its models.

    Raises:
        ArtifactError: there is no agent, or ``agent.json`` does not describe one.
    """
    return _config(folder / RECORD, _record(folder))


def read_agent(folder: Path) -> Agent:
    """Read an agent.

    Raises:
        ArtifactError: a part is missing or damaged, or the parts do not fit one another.
    """
    record = _record(folder)
    config = _config(folder / RECORD, record)
    if "files" in record:
        _verify(folder, record, _digests(folder))
    encoder = load_encoder(folder / "vae.safetensors")
    dynamics, *others = load_members(folder / "rnn.safetensors")
    path = folder / "controller.safetensors"
    outline = weights.outline(path)
    found = outline.get("parameters")
    if outline.keys() != {"parameters"} or not (
        isinstance(found, Tensor) and is_tensor(found, (found.numel(),), torch.float32)
    ):
        raise ArtifactError(f"{path} does not hold parameters, float32 (size,): copy it again")
    check_fit(folder, found.numel(), encoder, dynamics, config)
    parameters = finite(path, "parameters", weights.load(path)["parameters"])
    return Agent(encoder, dynamics, parameters.numpy(), config, tuple(others))


def check_fit(
    where: Path, count: int, encoder: Encoder, dynamics: DynamicsModel, config: AgentConfig
) -> None:
    """Raise `ArtifactError` unless the parts of an agent fit one another.

    Args:
        where: folder of the agent, for the message.
        count: number of parameters of the controller.
        encoder: whose latents the dynamics model takes.
        dynamics: whose state the features contain.
        config: the agent's.
    """
    squash = config.controller.squash
    if dynamics.latent_size != encoder.latent_size:
        raise ArtifactError(
            f"{where}: the dynamics model takes latents of {dynamics.latent_size}, the encoder"
            f" gives {encoder.latent_size}: train the dynamics model on this encoder"
        )
    if dynamics.action_size != len(squash):
        raise ArtifactError(
            f"{where}: the dynamics model takes {dynamics.action_size} actions, the controller"
            f" gives {len(squash)}: train it in this world"
        )
    unknown = set(config.features.state) - dynamics.state_features.keys()
    if unknown:
        raise ArtifactError(
            f"{where}: the features contain {shown(min(unknown))} of the dynamics model's state,"
            f" which has {', '.join(dynamics.state_features)}: train it in this world"
        )
    if encoder.frame_size != config.observation.size:
        raise ArtifactError(
            f"{where}: the encoder takes frames of {encoder.frame_size} pixels, observation.size is"
            f" {config.observation.size}: train the encoder on these frames"
        )
    numbers = len(config.actions.bounds.low)
    if numbers != len(squash):
        raise ArtifactError(
            f"{where}: the controller gives {len(squash)} actions, the environment takes {numbers}:"
            " train it in this environment"
        )
    features = config.features.size(encoder.latent_size, dynamics)
    needed, units = config.controller.size(features), config.controller.hidden_units
    if count != needed:
        raise ArtifactError(
            f"{where}: the controller has {count} parameters, one for {features} features,"
            f" {len(squash)} actions and {units} hidden units has {needed}: train it in this world"
        )
