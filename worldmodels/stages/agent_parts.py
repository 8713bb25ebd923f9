"""What is made before a controller and needed by its search: the principal components that it
searches, where its episodes in the learned model begin, and the networks of an intrinsic reward.

Each is a file, so that a search that continues uses the same; the first two are in the agent's
folder, for searches on the models of a published agent (``base=``).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from worldmodels.agents.description import AgentConfig
from worldmodels.agents.distillation_file import DISTILLATION, save_distillation
from worldmodels.agents.folder import Agent, write_agent
from worldmodels.agents.model_files import load_encoder, load_first_latents, load_members
from worldmodels.agents.starts_file import STARTS, load_starts, save_starts
from worldmodels.config.choices import MemberSampling, Objective, StartChoice, WorldKind
from worldmodels.config.schema import Config
from worldmodels.data.latents import LatentSet
from worldmodels.data.starts import draw_starts
from worldmodels.errors import ConfigError
from worldmodels.evolution.pca import PCASubspace
from worldmodels.models.controller import ControllerSpec
from worldmodels.models.dynamics import DynamicsModel
from worldmodels.runs.stage_folder import StageFolder
from worldmodels.stages.context import Context
from worldmodels.stages.inputs import Models
from worldmodels.training.distillation import distil
from worldmodels.training.moments import feature_moments
from worldmodels.worlds.members import SamplingRule

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
    if context.runtime.real_bfloat16:
        encoder = encoder.to(torch.bfloat16)
    if context.config.controller.world is WorldKind.dream and context.runtime.dream_bfloat16:
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
            starts = draw_starts(
                latents,
                groups,
                episodes.branches,
                START_COUNT,
                seed,
                stall_steps,
                share,
                skip,
            )
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


def sampling_rule(config: Config) -> SamplingRule:
    """How the predictions of the learned model become steps."""
    own = config.controller
    return SamplingRule(
        own.member_sampling is MemberSampling.step,
        own.pessimism,
        own.sampled_termination,
        config.env.frame_skip or 1,
    )


def check_objective(objective: Objective, models: Models, members: Sequence[DynamicsModel]) -> None:
    """Raise `ConfigError` for an intrinsic reward that these models do not have.

    Args:
        objective: of the search.
        models: encoder and dynamics model.
        members: of the dynamics model.
    """
    key = f"controller.objective={objective.name}"
    if objective is Objective.disagreement and len(members) < 2:
        raise ConfigError(
            f"{key}: the dynamics model has one member; train a model with rnn.members=2 or more,"
            " or give controller.objective=distillation"
        )
    if objective is Objective.distillation and models.latents is None:
        raise ConfigError(
            f"{key}: the agent of base= has no recorded latents; give"
            " controller.objective=disagreement, or train a dynamics model in this run"
        )


def distillation_of(context: Context, folder: StageFolder, models: Models, sampled: bool) -> None:
    """Train and save the networks of random network distillation, where the search needs them and
    they are missing.

    Args:
        context: of the command.
        folder: of the stage.
        models: encoder and dynamics model.
        sampled: latents are sampled from their posteriors.
    """
    path = folder.path / DISTILLATION
    if context.config.controller.objective is not Objective.distillation or path.exists():
        return
    assert models.latents is not None  # `check_objective`
    save_distillation(path, distil(LatentSet(models.latents), sampled, context.config.seed))
