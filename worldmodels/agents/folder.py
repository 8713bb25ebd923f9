"""A trained agent on disk: encoder, dynamics model, controller, and their configuration.

The folder is self-contained: ``agent.json``, ``vae.safetensors``, ``rnn.safetensors``,
``controller.safetensors``; if the search ran in principal components of the features,
``pca_subspace.safetensors``; and if its episodes began at moments of recorded ones,
``starts.safetensors``.
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
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from worldmodels.agents.description import FORMAT, AgentConfig, checked
from worldmodels.agents.model_files import (
    finite,
    load_encoder,
    load_members,
    save_dynamics,
    save_encoder,
)
from worldmodels.agents.stored_modules import is_tensor, shown
from worldmodels.data.latents import FirstLatents
from worldmodels.errors import ArtifactError
from worldmodels.files import untrusted, weights
from worldmodels.files.atomic import write_json
from worldmodels.models.dynamics import DynamicsModel
from worldmodels.models.encoder import Encoder

RECORD = "agent.json"
PARTS = tuple(
    f"{name}.safetensors" for name in ("controller", "pca_subspace", "rnn", "starts", "vae")
)
PART_BYTES = 4096 * untrusted.MEGABYTE
"""Of a part, at most: more than the largest that the limits allow."""


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


def load_config(folder: Path) -> AgentConfig:
    """The configuration of an agent, without its models.

    Raises:
        ArtifactError: there is no agent, or ``agent.json`` does not describe one.
    """
    return checked(folder / RECORD, _record(folder))


def read_agent(folder: Path) -> Agent:
    """Read an agent.

    Raises:
        ArtifactError: a part is missing or damaged, or the parts do not fit one another.
    """
    record = _record(folder)
    config = checked(folder / RECORD, record)
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
