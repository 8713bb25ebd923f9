"""The stage ``controller`` with controller.optimizer=actor_critic: gradients of returns in the
learned model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import nn

from worldmodels.agents.description import AgentConfig
from worldmodels.agents.folder import read_agent
from worldmodels.agents.model_files import load_members
from worldmodels.config.choices import MemberSampling
from worldmodels.config.schema import Config
from worldmodels.data.latents import LatentSet
from worldmodels.data.starts import draw_starts
from worldmodels.errors import ConfigError
from worldmodels.files import weights
from worldmodels.models.actor_critic import ActorCritic
from worldmodels.models.controller import CHOICE
from worldmodels.models.dynamics import DynamicsModel
from worldmodels.models.ensemble import Ensemble
from worldmodels.runs.integrity import fingerprint_arrays, verified
from worldmodels.runs.stage_folder import StageFolder
from worldmodels.runs.tracking import say
from worldmodels.stages.agent_parts import sampling_rule, write_trained
from worldmodels.stages.context import Context
from worldmodels.stages.inputs import Models, check_features, check_latents
from worldmodels.stages.trained import agent_of
from worldmodels.stages.training import fit_options
from worldmodels.training.fit import fit
from worldmodels.training.imagination import ImaginationOptions, ImaginationTask, Moments
from worldmodels.worlds.members import check_rule
from worldmodels.worlds.starts import beginnings

ACTOR_CRITIC = "actor_critic.safetensors"
MOMENTS = 16_384
"""Moments of recorded episodes at which episodes begin, at most."""
MOMENT_BYTES = 2**30
"""Bytes of the members' states at these moments, at most."""
GRADIENT_CLIP = 1.0
"""Bound of each element of the gradient."""


def train(context: Context, folder: StageFolder, models: Models, joined: AgentConfig) -> None:
    """Train controller and critic, from those of the round before if there is one.

    Args:
        context: of the command.
        folder: of the stage.
        models: encoder and dynamics model.
        joined: features and layers of the controller.

    Raises:
        ConfigError: the controller has no gradient, or the models come without episodes.
    """
    config = context.config
    module, task = prepare(context, models, joined)
    with context.tracker(folder) as tracker:
        made_by = folder.record["made_by"]
        options = fit_options(config, config.actor_critic, GRADIENT_CLIP, made_by)
        result = fit(task, folder.path, options, context.runtime.fabric(), tracker)
    parameters = module.actor.detach().cpu().numpy()
    weights.save(folder.path / ACTOR_CRITIC, dict(module.state_dict()))
    written = write_trained(context, folder, models, joined, parameters)
    found = result.validation
    steps = config.actor_critic.updates * config.actor_critic.batch_size
    folder.finish(
        fingerprint_arrays({name: t.cpu().numpy() for name, t in module.state_dict().items()}),
        result.rates,
        {
            "world": config.controller.world.name,
            "updates": config.actor_critic.updates,
            "steps": steps * config.actor_critic.horizon,
            **found,
        },
        [ACTOR_CRITIC, *written],
    )
    say(
        f"controller: {config.actor_critic.updates:,} updates in the dream world, mean reward"
        f" {found['reward']:.3g} a step, the critic explains {found['explained_variance']:.0%} of"
        f" the variance of returns ({result.pace})"
    )


def prepare(
    context: Context, models: Models, joined: AgentConfig
) -> tuple[ActorCritic, ImaginationTask]:
    """Controller and critic before training, and the task of training them; see `train`."""
    config = context.config
    members = load_members(models.dynamics)
    check_features(members[0], config.controller.features)
    if CHOICE in joined.controller.squash:
        raise ConfigError(
            "controller.optimizer=actor_critic: a choice between discrete actions has no gradient;"
            " use cma_es, or env.action_bins"
        )
    check_latents(members[0], joined.features)
    check_rule("controller.", sampling_rule(config), members)
    fabric = context.runtime.fabric()
    dtype = torch.bfloat16 if context.runtime.bfloat16 else torch.float32
    for member in members:
        cast(nn.Module, member).requires_grad_(False).to(fabric.device, dtype).eval()
    moments = _moments(context, models, members, joined.features.sampled)
    module = _module(context, joined, members[0])
    ensemble, options = Ensemble(members), _options(config)
    return module, ImaginationTask(module, ensemble, joined.features, moments, options, fabric)


def _moments(
    context: Context, models: Models, members: Sequence[DynamicsModel], sampled: bool
) -> Moments:
    """Where episodes begin: half in the newest episodes, which the present controller collected,
    and half in all of them."""
    if models.latents is None:
        raise ConfigError(
            "controller.optimizer=actor_critic: the agent of base= has no recorded episodes to"
            " begin at; train encoder and dynamics model in this run"
        )
    row = sum(part.nbytes for member in members for part in member.initial_state(1))
    count = min(MOMENTS, max(1, MOMENT_BYTES // row))
    episodes, latents = context.inputs.episodes(), LatentSet(models.latents)
    groups = [context.inputs.newest(episodes), np.arange(episodes.num_episodes)]
    config = context.config
    starts = draw_starts(
        latents,
        groups,
        episodes.branches,
        count,
        config.seed,
        config.rollouts.stall_steps,
        config.controller.failure_starts,
        config.env.frame_skip or 1,
    )
    found = beginnings(starts, members, sampled, context.runtime.device)
    assert found.state is not None  # these are moments, not first latents
    state = tuple(part.clone() for part in found.state)
    return Moments(found.mean.clone(), found.std.clone(), found.actions.clone(), state)


def _module(context: Context, joined: AgentConfig, dynamics: DynamicsModel) -> ActorCritic:
    """Controller and critic before training."""
    torch.manual_seed(context.config.seed)
    size = joined.features.size(dynamics.latent_size, dynamics)
    module = ActorCritic(size, joined.controller, context.config.actor_critic.discount)
    before = context.inputs.previous_controller
    if before is None:
        return module
    folder = before.locate("controller")
    if (folder / ACTOR_CRITIC).exists():
        module.load_state_dict(weights.load(verified(folder, ACTOR_CRITIC)))
    else:  # CMA-ES has found it
        parameters = torch.from_numpy(read_agent(agent_of(before)).parameters)
        module.load_state_dict({**module.state_dict(), "actor": parameters})
    return module


def _options(config: Config) -> ImaginationOptions:
    own = config.actor_critic
    return ImaginationOptions(
        updates=own.updates,
        batch_size=own.batch_size,
        horizon=own.horizon,
        discount=own.discount,
        return_lambda=own.return_lambda,
        action_noise=own.action_noise,
        temperature=config.controller.temperature,
        termination_penalty=config.controller.termination_penalty,
        each_step=config.controller.member_sampling is MemberSampling.step,
        pessimism=config.controller.pessimism,
        frame_skip=config.env.frame_skip or 1,
        seed=config.seed,
    )
