"""Stage ``controller``: CMA-ES in the environment or in the learned model (paper, A.3, A.4), or
gradients in the learned model (`worldmodels.stages.actor_critic`)."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from worldmodels import seeds
from worldmodels.agents.description import AgentConfig
from worldmodels.agents.distillation_file import DISTILLATION
from worldmodels.agents.folder import read_agent
from worldmodels.agents.model_files import load_encoder, load_members
from worldmodels.config.choices import (
    HiddenChoice,
    LatentChoice,
    Objective,
    Optimizer,
    StartChoice,
    WorldKind,
)
from worldmodels.data.latents import LatentSet
from worldmodels.envs.observation import ObservationSpec
from worldmodels.errors import ConfigError
from worldmodels.evolution.evolve import evolve, shown
from worldmodels.evolution.options import EvolveOptions
from worldmodels.evolution.pca import PCASubspace
from worldmodels.evolution.search import Search
from worldmodels.models.controller import ControllerSpec
from worldmodels.models.dynamics import DynamicsModel
from worldmodels.models.features import FeatureSpec
from worldmodels.reporting.calibration import largest_return
from worldmodels.reporting.records import Record
from worldmodels.reporting.snapshots import agent_snapshot
from worldmodels.reporting.verdict import exploitation_begins
from worldmodels.runs import health
from worldmodels.runs.integrity import fingerprint_arrays
from worldmodels.runs.manifests import MANIFEST
from worldmodels.runs.stage_folder import StageFolder
from worldmodels.runs.tracking import say
from worldmodels.stages import actor_critic
from worldmodels.stages.agent_parts import (
    check_objective,
    distillation_of,
    sampling_rule,
    starts_of,
    subspace_of,
    write_trained,
)
from worldmodels.stages.context import Context
from worldmodels.stages.inputs import (
    STATE_FEATURES,
    Models,
    check_features,
    check_latents,
)
from worldmodels.stages.trained import agent_of
from worldmodels.worlds.members import check_rule
from worldmodels.worlds.specs import DreamWorldSpec, NoveltyWorldSpec, WorldSpec

MIN_DREAM_ENVS, MAX_DREAM_ENVS = 64, 256
"""Least and largest number of episodes in one batch in the learned model on a CPU: with fewer the
memory bandwidth of the model's weights limits, with more the batch does not fit in the cache."""
GPU_DREAM_ENVS = 8192
"""On a GPU: large enough for all episodes of a generation in one batch."""


def run(context: Context) -> None:
    """Train the controller, which becomes the agent: by CMA-ES, the best one on the selection
    seeds."""
    config = context.config.controller
    inputs = context.inputs.models().fingerprints
    inputs |= context.inputs.previous_fingerprint("controller")
    world = _environment(context)
    # Step sizes or temperatures of a schedule depend on the budget, which can then not be raised.
    scheduled = config.final_sigma is not None or config.final_temperature is not None
    growable = ["controller.exploitation_patience"]
    growable += [] if scheduled else ["controller.generations", "controller.total_steps"]
    by_gradients = config.optimizer is Optimizer.actor_critic
    if by_gradients:
        world["actor_critic"] = context.config.actor_critic
    if config.objective is Objective.reward:
        # Null, as in controllers of a version without the key, which are the same.
        world["controller.objective"] = None
    with context.begin("controller", inputs, tuple(growable), controller=config, **world) as folder:
        if folder.complete:
            return
        if by_gradients:
            models = context.inputs.models()
            actor_critic.train(context, folder, models, agent_config(context))
        else:
            _evolve(context, folder)


def _environment(context: Context) -> dict[str, Any]:
    """The keys of the environment that determine the controller: in the learned model those that
    its agent is described with; and what moments of recorded episodes depend on."""
    config, env = context.config.controller, context.config.env
    if config.world is WorldKind.real:
        content = context.runtime.env_content(context.runtime.env_spec())
    else:
        names = ("id", "crop_rows", "size", "frame_skip", "action_bins")
        content = {f"env.{name}": getattr(env, name) for name in names}
    content["env.squash"] = env.squash
    recorded = config.starts is StartChoice.recorded or config.optimizer is Optimizer.actor_critic
    if recorded and config.world is WorldKind.dream:
        content["rollouts.stall_steps"] = context.config.rollouts.stall_steps
    return content


def _evolve(context: Context, folder: StageFolder) -> None:
    config, models = context.config.controller, context.inputs.models()
    joined = agent_config(context)
    encoder, members = load_encoder(models.encoder), load_members(models.dynamics)
    dynamics = members[0]
    check_features(dynamics, config.features)
    if config.world is WorldKind.dream:
        check_latents(dynamics, joined.features)
        check_rule("controller.", sampling_rule(context.config), members)
    check_objective(config.objective, models, members)
    agent = folder.path / "agent"
    subspace = subspace_of(context, agent, models, dynamics, joined)
    search = Search(
        subspace.size,
        config.population,
        config.sigma,
        context.config.seed,
        _previous_mean(context, subspace),
        config.diagonal,
    )
    best = _recorded_best(context, models, dynamics)
    options = _options(context, folder.record["made_by"], best)
    starts = starts_of(context, agent, models, dynamics)
    distillation_of(context, folder, models, joined.features.sampled)
    world = _world_spec(context, folder.path, models, joined.features, starts)
    workers = partial(context.runtime.pool, world)
    (seed,) = seeds.draw(seeds.Purpose.SELECTION, context.config.seed, count=1)
    draw = agent_snapshot(world.build, encoder, joined.controller, seed, config.max_steps)
    with context.tracker(folder, draw, health.of_search()) as tracker:
        result = evolve(search, subspace, joined.controller, workers, folder.path, options, tracker)
    written = write_trained(context, folder, models, joined, result.parameters)
    written += [DISTILLATION] if (folder.path / DISTILLATION).exists() else []
    returns = "selection_mean" if options.intrinsic is None else "selection_novelty"
    folder.finish(
        fingerprint_arrays({"controller": result.parameters}),
        {"steps/s": result.throughput},
        {
            returns: result.score,
            "objective": config.objective.name,
            "world": config.world.name,
            "generations": result.generations,
            "steps": result.steps,
            "recorded_best": best,
            "exploitation": result.exploitation,
        },
        written,
    )
    say(
        f"controller: {result.generations} generations in the {config.world.name} world,"
        f" mean {shown(result.score, options.intrinsic)} on selection seeds"
        f" ({result.throughput:,.0f} steps/s)"
    )
    warning = exploitation_begins(Record(folder.path / MANIFEST, folder.record))
    if warning is not None:
        say(f"controller: {warning}")


def agent_config(context: Context) -> AgentConfig:
    """The features and the controller of the agent that the configuration describes."""
    controller, squash = context.config.controller, context.config.env.squash
    features = FeatureSpec(
        state=STATE_FEATURES[controller.features],
        sampled=controller.latent is LatentChoice.sampled,
        updated=controller.hidden is HiddenChoice.updated,
    )
    spec = ControllerSpec(
        squash=context.runtime.controls.squash if squash is None else tuple(squash),
        hidden_units=controller.hidden_units,
        bias=controller.bias,
    )
    env, actions = context.config.env, context.runtime.actions
    observation = ObservationSpec(env.crop_rows, env.size)
    return AgentConfig(features, spec, env.id, observation, actions, env.frame_skip or 1)


def _recorded_best(context: Context, models: Models, dynamics: DynamicsModel) -> float | None:
    """The largest return of an episode that the dynamics model of a dream was trained on; None in
    the environment, where the model is an agent's, which comes without episodes, and where the
    search maximises something else.

    Raises:
        ConfigError: the search is to stop above it, and there are no episodes.
    """
    config = context.config.controller
    if config.world is WorldKind.real or config.objective is not Objective.reward:
        return None
    if models.latents is not None:
        latents = LatentSet(models.latents)
        skip = None if dynamics.predicts_reward else context.config.env.frame_skip or 1
        return largest_return(latents, config.max_steps, skip)
    if config.exploitation_patience is not None:
        raise ConfigError(
            f"controller.exploitation_patience={config.exploitation_patience}: the agent of base="
            " has no recorded episodes to compare with; give null, or train a dynamics model in"
            " this run"
        )
    return None


def _options(context: Context, made_by: str, recorded_best: float | None) -> EvolveOptions:
    config = context.config.controller
    final, env = config.final_temperature, context.config.env
    return EvolveOptions(
        generations=config.generations,
        total_steps=config.total_steps,
        sigma=config.sigma,
        final_sigma=config.final_sigma,
        episodes=config.episodes,
        first_episodes=config.first_episodes,
        max_steps=config.max_steps,
        stall_steps=config.stall_steps,
        termination_penalty=config.termination_penalty,
        eval_interval=config.eval_interval,
        eval_episodes=config.eval_episodes,
        num_envs=batch_sizes(context),
        overlap=config.overlap,
        seed=context.config.seed,
        made_by=made_by,
        temperatures=None if final is None else (config.temperature, final),
        recorded_best=recorded_best,
        exploitation_patience=config.exploitation_patience,
        intrinsic=None if config.objective is Objective.reward else config.objective.name,
        frame_skip=(env.frame_skip or 1) if config.world is WorldKind.real else 1,
    )


def _previous_mean(context: Context, subspace: PCASubspace) -> np.ndarray | None:
    """Coordinates of the controller of the round before, where the search starts; or None."""
    before = context.inputs.previous_controller
    if before is None:
        return None
    folder = agent_of(before)
    mean: np.ndarray = subspace.coordinates(read_agent(folder).parameters[None])[0]
    return mean


def batch_sizes(context: Context) -> tuple[int, int]:
    """Least and largest number of environments in one job."""
    config = context.config.controller
    if config.world is WorldKind.real:
        return context.config.env.num_envs, context.config.env.num_envs
    if config.dream_num_envs is not None:
        return config.dream_num_envs, config.dream_num_envs
    if context.runtime.dream_device.type != "cpu":
        return GPU_DREAM_ENVS, GPU_DREAM_ENVS
    return MIN_DREAM_ENVS, MAX_DREAM_ENVS


def _world_spec(
    context: Context, folder: Path, models: Models, features: FeatureSpec, starts: Path | None
) -> WorldSpec:
    """How workers build the world that controllers are evolved in; `folder` is of the stage."""
    if context.config.controller.world is WorldKind.real:
        return context.runtime.real(None, models.encoder, models.dynamics, features)
    return searched(context, dream_spec(context, models.dynamics, features, starts), folder)


def searched(
    context: Context, dream: DreamWorldSpec, folder: Path
) -> DreamWorldSpec | NoveltyWorldSpec:
    """How workers build the learned model with the reward that the search maximises.

    Args:
        context: of the command.
        dream: the learned model.
        folder: of the stage ``controller``.
    """
    objective = context.config.controller.objective
    if objective is Objective.reward:
        return dream
    networks = folder / DISTILLATION if objective is Objective.distillation else None
    return NoveltyWorldSpec(dream, networks)


def dream_spec(
    context: Context, dynamics: Path, features: FeatureSpec, starts: Path | None
) -> DreamWorldSpec:
    """How workers build the learned model of the file `dynamics`, as the configuration uses it.

    Args:
        context: of the command.
        dynamics: file of the dynamics model.
        features: of the controller.
        starts: file of the moments at which episodes begin; None for first latents.
    """
    config = context.config
    temperature = config.controller.evaluation_temperature
    return context.runtime.dream(dynamics, features, temperature, sampling_rule(config), starts)
