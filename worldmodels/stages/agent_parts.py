"""Parts of an agent that are made before its controller, and that the search needs: the principal
components that it searches, and where its episodes in the learned model begin and what they are
worth where they are truncated.

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
from worldmodels.agents.value_file import VALUE, load_values, save_values
from worldmodels.config.choices import StartChoice, WorldKind
from worldmodels.data.latents import LatentSet
from worldmodels.data.sequences import balanced
from worldmodels.data.starts import draw_starts
from worldmodels.errors import ConfigError
from worldmodels.evolution.pca import PCASubspace
from worldmodels.models.controller import ControllerSpec
from worldmodels.models.dynamics import DynamicsModel
from worldmodels.models.features import FeatureSpec
from worldmodels.models.value import ValueEnsemble
from worldmodels.runs.stage_folder import StageFolder
from worldmodels.runs.tracking import say
from worldmodels.stages.context import Context
from worldmodels.stages.inputs import Models
from worldmodels.stages.training import failure_end
from worldmodels.training.moments import feature_moments
from worldmodels.training.values import explained_variance, fit_values, value_rows

START_COUNT = 1024
"""Moments at which episodes in the learned model begin, at most."""
VALUE_FUNCTIONS = 3
"""Value functions that are trained."""


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


def value_of(
    context: Context, agent: Path, models: Models, dynamics: DynamicsModel, spec: FeatureSpec
) -> Path | None:
    """The file of the value functions, saved with the agent; None without `value_horizon`.

    Raises:
        ConfigError: the dynamics model is an agent's that has no such file, or one of another
            horizon.
    """
    path, horizon = agent / VALUE, context.config.controller.value_horizon
    if horizon is None:
        return None
    if not path.exists():
        features = spec.size(dynamics.latent_size, dynamics)
        if models.latents is not None:
            values = _train_values(context, LatentSet(models.latents), dynamics, spec, features)
        elif models.value is not None:
            values = load_values(models.value, features)
        else:
            raise ConfigError(
                f"controller.value_horizon={horizon}: the agent of base= has no {VALUE}; give null,"
                " or train encoder and dynamics model in this run"
            )
        penalty = context.config.controller.termination_penalty
        if values.penalty != penalty:
            raise ConfigError(
                f"controller.termination_penalty={penalty}: the value functions of base= learned"
                f" {values.penalty}; give {values.penalty}"
            )
        if values.horizon != horizon:
            raise ConfigError(
                f"controller.value_horizon={horizon}: the value functions of base= are of"
                f" {values.horizon} steps; give {values.horizon}"
            )
        save_values(path, values)
    return path


def _train_values(
    context: Context, latents: LatentSet, dynamics: DynamicsModel, spec: FeatureSpec, features: int
) -> ValueEnsemble:
    """Train value functions, from those of the round before if it has the same inputs."""
    config, seed = context.config, context.config.seed
    episodes = context.inputs.episodes()
    train, held_out = episodes.split(config.rnn.validation_fraction, seed)
    if config.rnn.newest_rounds is not None:
        newest = context.inputs.newest(episodes, config.rnn.newest_rounds)
        train = balanced(train, newest, latents.lengths, seed)
    assert config.controller.value_horizon is not None
    device = context.runtime.device
    penalty = config.controller.termination_penalty
    rule = config.controller.value_horizon, failure_end(config), penalty, seed, device
    rows = value_rows(latents, train, dynamics, spec, *rule)
    if not len(rows.returns):
        raise ConfigError(
            f"controller.value_horizon={rule[0]}: no recorded episode has so many steps, or ended"
            " by itself; choose fewer, or longer episodes (rollouts.max_steps)"
        )
    torch.manual_seed(seed)
    values = ValueEnsemble(features, VALUE_FUNCTIONS, rule[0], penalty)
    before = context.inputs.previous_values()
    if before is None:
        values.normalise(rows.features[:: max(1, len(rows.returns) // 50_000)].float())
    else:
        values.load_state_dict(load_values(before, features).state_dict())
    fit_values(values.to(device), rows, seed)
    tested = value_rows(latents, held_out, dynamics, spec, *rule)
    said = (
        f"controller: value functions of {rule[0]} steps, trained on {len(rows.returns):,} frames"
    )
    if len(tested.returns):
        said += (
            f", explain {explained_variance(values, tested):.0%} of the variance of returns from"
            f" {len(tested.returns):,} held-out frames"
        )
    say(said)
    return values.cpu().eval()
