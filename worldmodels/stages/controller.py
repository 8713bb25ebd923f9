"""Stage ``controller``: CMA-ES in the real environment or in the model (paper, A.3 and A.4)."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from worldmodels.agent import (
    Agent,
    AgentConfig,
    load_agent,
    save_agent,
)
from worldmodels.artifacts import StageFolder, fingerprint_arrays
from worldmodels.config import WorldKind
from worldmodels.data.latents import LatentSet
from worldmodels.errors import ConfigError
from worldmodels.evolution.evolve import EvolveOptions, evolve
from worldmodels.evolution.pca import PCASubspace
from worldmodels.evolution.search import Search
from worldmodels.model_files import load_dynamics, load_encoder, load_first_latents
from worldmodels.models.controller import ControllerSpec
from worldmodels.models.dynamics import DynamicsModel
from worldmodels.models.features import FeatureSpec
from worldmodels.stages.context import Context, Models, agent_of
from worldmodels.tracking import say
from worldmodels.training.moments import feature_moments
from worldmodels.worlds.specs import WorldSpec

FEW_DREAMS, MANY_DREAMS = 64, 256
"""Bounds of the dreams in one batch on a CPU: fewer leave its cores waiting for M's weights, more
leave the cache."""
GPU_DREAMS = 8192
"""A GPU wants them all at once."""


def run(context: Context) -> None:
    """Evolve until the last generation; the best by the selection seeds is the agent."""
    config = context.config.controller
    real = config.world is WorldKind.real
    inputs = context.models().inputs | context.initial_fingerprint("controller")
    world = context.env_content(context.env_spec()) if real else {}
    # Step sizes that fall over the budget belong to that budget.
    falling = config.final_sigma is not None
    growable = () if falling else ("controller.generations", "controller.total_steps")
    with context.begin("controller", inputs, growable, controller=config, **world) as folder:
        if not folder.complete:
            _evolve(context, folder)


def _evolve(context: Context, folder: StageFolder) -> None:
    config, models, joined = context.config.controller, context.models(), context.agent_config()
    encoder, dynamics = load_encoder(models.encoder), load_dynamics(models.dynamics)
    first = load_first_latents(models.dynamics)
    _check_features(dynamics, joined.features)
    if config.world is WorldKind.dream:
        _check_dreams(dynamics, joined.features)
    agent = folder.path / "agent"
    subspace = _subspace(context, agent, models, dynamics, joined)
    search = Search(
        subspace.size,
        config.population,
        config.sigma,
        context.config.seed,
        _previous_mean(context, subspace),
        config.diagonal,
    )
    options = EvolveOptions(
        generations=config.generations,
        total_steps=config.total_steps,
        sigma=config.sigma,
        final_sigma=config.final_sigma,
        episodes=config.episodes,
        first_episodes=config.first_episodes,
        max_steps=config.max_steps,
        stall_steps=config.stall_steps,
        eval_interval=config.eval_interval,
        eval_episodes=config.eval_episodes,
        num_envs=_num_envs(context),
        seed=context.config.seed,
        made_by=folder.record["made_by"],
    )
    workers = partial(context.pool, _recipe(context, models, joined.features))
    with context.tracker(folder) as tracker:
        result = evolve(search, subspace, joined.controller, workers, folder.path, options, tracker)
    encoder = encoder.for_inference()
    # Kept in the numbers they were used in: half the size where those are bfloat16. In the
    # real environment the dynamics model is float32.
    if context.bfloat16:
        encoder = encoder.to(torch.bfloat16)
        if config.world is WorldKind.dream:
            dynamics = dynamics.to(torch.bfloat16)
    save_agent(agent, Agent(encoder, dynamics, result.parameters, joined), first)
    folder.finish(
        fingerprint_arrays({"controller": result.parameters}),
        {"steps/s": result.throughput},
        {
            "selection_mean": result.score,
            "world": config.world.name,
            "generations": result.generations,
            "steps": result.steps,
        },
        [f"agent/{path.name}" for path in agent.iterdir() if not path.name.startswith(".")],
    )
    say(
        f"controller: {result.generations} generations in the {config.world.name} world,"
        f" mean {result.score:.1f} on selection seeds ({result.throughput:,.0f} steps/s)"
    )


def _check_features(dynamics: DynamicsModel, spec: FeatureSpec) -> None:
    """Raise `ConfigError` where the dynamics model's state lacks what the controller is to see."""
    unknown = set(spec.state) - dynamics.state_features.keys()
    if unknown:
        known = ", ".join(dynamics.state_features) or "none"
        raise ConfigError(
            f"controller.features: this dynamics model's state has no {min(unknown)} (it has"
            f" {known}); choose z, or another model"
        )


def _check_dreams(dynamics: DynamicsModel, spec: FeatureSpec) -> None:
    """Raise `ConfigError` where the controller would see other latents in the environment."""
    if dynamics.sampled != spec.sampled:
        wanted = "sampled" if dynamics.sampled else "mean"
        raise ConfigError(
            f"controller.latent: must equal rnn.latent={wanted} when controller.world=dream; give"
            f" controller.latent={wanted}"
        )


def _subspace(
    context: Context, agent: Path, models: Models, dynamics: DynamicsModel, joined: AgentConfig
) -> PCASubspace:
    """Where the search moves: kept with the agent, for a search that goes on must go on in them."""
    path, pca_components = (
        agent / "pca_subspace.safetensors",
        context.config.controller.pca_components,
    )
    spec, features = joined.controller, joined.features.size(dynamics.latent_size, dynamics)
    if pca_components is None:
        return PCASubspace(np.zeros(features), np.eye(features), spec)
    if not path.exists():
        if models.latents is None:
            found = _kept(models.subspace, features, pca_components, spec)
        else:
            with threadpool_limits(1):  # for the same rounding, however many cores there are
                moments = feature_moments(LatentSet(models.latents), dynamics, joined.features)
                found = PCASubspace.of(*moments, pca_components, spec)
        found.save(path)
    return PCASubspace.load(path, spec)


def _kept(
    path: Path | None, features: int, pca_components: int, spec: ControllerSpec
) -> PCASubspace:
    """The leading principal components of those in which an agent's controller was evolved.

    Raises:
        ConfigError: there are none, or fewer, or they are of other features.
    """
    mend = "choose controller.pca_components=null, or train the models in this run"
    if path is None or not path.exists():
        raise ConfigError(f"controller.pca_components={pca_components}: {path} is missing; {mend}")
    kept = PCASubspace.load(path, spec)
    if len(kept.axes) != features:
        raise ConfigError(
            f"controller.pca_components: {path} is for {len(kept.axes)} features, this"
            f" controller has {features}; {mend}"
        )
    if kept.axes.shape[1] < min(pca_components, features):
        raise ConfigError(
            f"controller.pca_components={pca_components}: {path} has {kept.axes.shape[1]}"
            f" components; choose as many or fewer, or {mend.removeprefix('choose ')}"
        )
    return kept.leading(pca_components)


def _previous_mean(context: Context, subspace: PCASubspace) -> np.ndarray | None:
    """Where the controller of the round before is, and the search goes on."""
    if not context.earlier:
        return None
    folder = agent_of(context.earlier[-1])
    mean: np.ndarray = subspace.coordinates(load_agent(folder).parameters[None])[0]
    return mean


def _num_envs(context: Context) -> tuple[int, int]:
    """Fewest and most environments of an evaluation batch."""
    config = context.config.controller
    if config.world is WorldKind.real:
        return context.config.env.num_envs, context.config.env.num_envs
    if config.dream_num_envs is not None:
        return config.dream_num_envs, config.dream_num_envs
    if context.device.type != "cpu":
        return GPU_DREAMS, GPU_DREAMS
    return FEW_DREAMS, MANY_DREAMS


def _recipe(context: Context, models: Models, features: FeatureSpec) -> WorldSpec:
    """The world that C is evolved in."""
    config = context.config.controller
    if config.world is WorldKind.real:
        return context.real(None, models.encoder, models.dynamics, features)
    return context.dream(models.dynamics, features, config.temperature)
