"""Parts of an agent that are made before its controller, and that the search needs: the principal
components that it searches, and where its episodes in the learned model begin.

Each is a file of the agent's folder, so that a search that continues, and one on the models of a
published agent (``base=``), uses the same.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from worldmodels.agents.description import AgentConfig
from worldmodels.agents.folder import Agent, write_agent
from worldmodels.agents.model_files import load_encoder, load_first_latents, load_members
from worldmodels.agents.starts_file import STARTS, load_starts, save_starts
from worldmodels.config.choices import StartChoice, WorldKind
from worldmodels.data.latents import LatentSet
from worldmodels.data.starts import draw_starts
from worldmodels.errors import ConfigError
from worldmodels.evolution.pca import PCASubspace
from worldmodels.models.controller import ControllerSpec
from worldmodels.models.dynamics import DynamicsModel
from worldmodels.runs.stage_folder import StageFolder
from worldmodels.stages.context import Context
from worldmodels.stages.inputs import Models
from worldmodels.training.moments import feature_moments

START_COUNT = 1024
"""Moments at which episodes in the learned model begin, at most."""


def write_trained(
    context: Context,
    folder: StageFolder,
    models: Models,
    joined: AgentConfig,
    parameters: np.ndarray,
) -> list[str]:
    """Write the agent of a stage ``controller``.

    Args:
        context: of the command.
        folder: of the stage.
        models: encoder and dynamics model.
        joined: features and layers of the controller.
        parameters: of the controller.

    Returns:
        the names of its files, within the folder of the stage.
    """
    encoder, members = load_encoder(models.encoder).for_inference(), load_members(models.dynamics)
    # Saved in the type they were used in: bfloat16 halves the size. In the environment the
    # dynamics model computes in float32.
    if context.runtime.world_bfloat16:
        encoder = encoder.to(torch.bfloat16)
        if context.config.controller.world is WorldKind.dream:
            members = [member.to(torch.bfloat16) for member in members]
    dynamics, *others = members
    agent, first = folder.path / "agent", load_first_latents(models.dynamics)
    write_agent(agent, Agent(encoder, dynamics, parameters, joined, tuple(others)), first)
    return [f"agent/{path.name}" for path in agent.iterdir() if not path.name.startswith(".")]


def subspace_of(
    context: Context, agent: Path, models: Models, dynamics: DynamicsModel, joined: AgentConfig
) -> PCASubspace:
    """The subspace that is searched; saved with the agent, because a resumed search needs it."""
    path = agent / "pca_subspace.safetensors"
    components = context.config.controller.pca_components
    spec, features = joined.controller, joined.features.size(dynamics.latent_size, dynamics)
    if components is None:
        return PCASubspace(np.zeros(features), np.eye(features), spec)
    if not path.exists():
        kept = context.inputs.previous_subspace()
        if kept is not None:
            found = _subspace_of_agent(kept, features, components, spec)
        elif models.latents is None:
            found = _subspace_of_agent(models.subspace, features, components, spec)
        else:
            with threadpool_limits(1):  # rounding must not depend on the number of cores
                moments = feature_moments(LatentSet(models.latents), dynamics, joined.features)
                found = PCASubspace.of(*moments, components, spec)
        found.save(path)
    return PCASubspace.load(path, spec)


def _subspace_of_agent(
    path: Path | None, features: int, components: int, spec: ControllerSpec
) -> PCASubspace:
    """The leading components of the subspace in which an agent's controller was found.

    Raises:
        ConfigError: there is none, or it has fewer components or another number of features.
    """
    remedy = (
        "choose controller.pca_components=null, or train encoder and dynamics model in this run"
    )
    if path is None or not path.exists():
        raise ConfigError(f"controller.pca_components={components}: {path} is missing; {remedy}")
    subspace = PCASubspace.load(path, spec)
    if len(subspace.axes) != features:
        raise ConfigError(
            f"controller.pca_components: {path} is for {len(subspace.axes)} features, this"
            f" controller has {features}; {remedy}"
        )
    if subspace.axes.shape[1] < min(components, features):
        raise ConfigError(
            f"controller.pca_components={components}: {path} has {subspace.axes.shape[1]}"
            f" components; choose as many or fewer, or {remedy.removeprefix('choose ')}"
        )
    return subspace.leading(components)


def starts_of(
    context: Context, agent: Path, models: Models, dynamics: DynamicsModel
) -> Path | None:
    """The file of the moments at which episodes begin, saved with the agent; None without it.

    Half of the moments are of the newest episodes, which the present controller collected.

    Raises:
        ConfigError: the dynamics model is an agent's that has no such file.
    """
    path = agent / STARTS
    if context.config.controller.starts is StartChoice.first:
        return None
    if not path.exists():
        if models.latents is not None:
            episodes = context.inputs.episodes()
            latents, stall_steps = LatentSet(models.latents), context.config.rollouts.stall_steps
            groups = [context.inputs.newest(episodes), np.arange(episodes.num_episodes)]
            seed, share = context.config.seed, context.config.controller.failure_starts
            skip = context.config.env.frame_skip or 1
            starts = draw_starts(latents, groups, START_COUNT, seed, stall_steps, share, skip)
            save_starts(path, starts)
        elif models.starts is not None:
            sizes = dynamics.latent_size, dynamics.action_size
            save_starts(path, load_starts(models.starts, *sizes))
        else:
            raise ConfigError(
                "controller.starts=recorded: the agent of base= has no starts.safetensors; choose"
                " controller.starts=first, or train encoder and dynamics model in this run"
            )
    return path
