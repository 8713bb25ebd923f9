"""Stage ``controller``: evolve C with CMA-ES, in the game or in the dream (paper, A.3 and A.4)."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from worldmodels.agent import (
    Agent,
    Wiring,
    load_agent,
    load_first_latents,
    load_memory,
    load_vision,
    save_agent,
)
from worldmodels.artifacts import StageFolder, fingerprint_arrays
from worldmodels.config import WorldKind
from worldmodels.data.latents import LatentSet
from worldmodels.errors import ConfigError
from worldmodels.evolution.directions import Directions
from worldmodels.evolution.evolve import EvolveOptions, evolve
from worldmodels.evolution.search import Search
from worldmodels.models.controller import Head
from worldmodels.models.mdnrnn import MDNRNN
from worldmodels.stages.context import Context, Models, agent_of
from worldmodels.tracking import say
from worldmodels.training.moments import feature_moments
from worldmodels.worlds.recipes import Recipe

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
    growable = () if falling else ("controller.generations", "controller.budget")
    with context.begin("controller", inputs, growable, controller=config, **world) as folder:
        if not folder.complete:
            _evolve(context, folder)


def _evolve(context: Context, folder: StageFolder) -> None:
    config, models, wiring = context.config.controller, context.models(), context.wiring()
    vision, memory = load_vision(models.vision), load_memory(models.memory)
    first = load_first_latents(models.memory)
    if config.world is WorldKind.dream:
        _check_dreams(memory, wiring)
    agent = folder.path / "agent"
    features = wiring.features(vision.latent_size, memory.hidden_size)
    directions = _directions(context, agent, models, memory, wiring, features)
    search = Search(
        directions.size,
        config.population,
        config.sigma,
        context.config.seed,
        _previous_mean(context, directions),
        config.diagonal,
    )
    options = EvolveOptions(
        generations=config.generations,
        budget=config.budget,
        sigma=config.sigma,
        final_sigma=config.final_sigma,
        episodes=config.episodes,
        first_episodes=config.first_episodes,
        max_steps=config.max_steps,
        patience=config.patience,
        select_every=config.select_every,
        select_episodes=config.select_episodes,
        lanes=_lanes(context),
        seed=context.config.seed,
        made_by=folder.record["made_by"],
    )
    workers = partial(context.pool, _recipe(context, models, wiring))
    with context.tracker(folder) as tracker:
        result = evolve(search, directions, wiring, workers, folder.path, options, tracker)
    vision = vision.folded_decoder()
    # Kept in the numbers they were used in: half the size where those are bfloat16. M is float32 in
    # the game.
    if context.bfloat16:
        vision = vision.to(torch.bfloat16)
        if config.world is WorldKind.dream:
            memory = memory.to(torch.bfloat16)
    save_agent(agent, Agent(vision, memory, result.parameters, wiring), first)
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


def _check_dreams(memory: MDNRNN, wiring: Wiring) -> None:
    """Raise `ConfigError` where C would see other latents in the game than in the dream."""
    if memory.sampled != wiring.sampled:
        learned, wanted = ("draws", "sampled") if memory.sampled else ("means", "mean")
        raise ConfigError(
            f"controller.latent: M dreams of {learned} (rnn.latent={wanted}), so C has to see the"
            f" same in the game: give controller.latent={wanted}"
        )


def _directions(
    context: Context, agent: Path, models: Models, memory: MDNRNN, wiring: Wiring, features: int
) -> Directions:
    """Where the search moves: kept with the agent, for a search that goes on must go on in them."""
    path, components = agent / "directions.safetensors", context.config.controller.components
    if components is None:
        return Directions(np.zeros(features), np.eye(features), wiring.head)
    if not path.exists():
        if models.latents is None:
            found = _kept(models.directions, features, components, wiring.head)
        else:
            seen = memory if wiring.use_hidden else None
            with threadpool_limits(1):  # for the same rounding, however many cores there are
                moments = feature_moments(LatentSet(models.latents), seen, wiring.use_cell)
                found = Directions.of(*moments, components, wiring.head)
        found.save(path)
    return Directions.load(path, wiring.head)


def _kept(path: Path | None, features: int, components: int, head: Head) -> Directions:
    """The leading directions of those in which an agent's C was found.

    Raises:
        ConfigError: there are none, or fewer, or for a C that sees something else.
    """
    mend = "choose controller.components=null, or train V and M in this run"
    if path is None or not path.exists():
        raise ConfigError(f"controller.components={components}: {path} is missing; {mend}")
    kept = Directions.load(path, head)
    if len(kept.axes) != features:
        raise ConfigError(
            f"controller.components: {path} is for {len(kept.axes)} features, this C sees"
            f" {features}; {mend}"
        )
    if kept.axes.shape[1] < min(components, features):
        raise ConfigError(
            f"controller.components={components}: {path} has {kept.axes.shape[1]} directions;"
            f" choose as many or fewer, or {mend.removeprefix('choose ')}"
        )
    return kept.leading(components)


def _previous_mean(context: Context, directions: Directions) -> np.ndarray | None:
    """Where the controller of the round before is, and the search goes on."""
    if not context.earlier:
        return None
    folder = agent_of(context.earlier[-1])
    mean: np.ndarray = directions.coordinates(load_agent(folder).parameters[None])[0]
    return mean


def _lanes(context: Context) -> tuple[int, int]:
    """Fewest and most lanes of a packet."""
    config = context.config.controller
    if config.world is WorldKind.real:
        return context.config.env.lanes, context.config.env.lanes
    if config.dream_lanes is not None:
        return config.dream_lanes, config.dream_lanes
    if context.device.type != "cpu":
        return GPU_DREAMS, GPU_DREAMS
    return FEW_DREAMS, MANY_DREAMS


def _recipe(context: Context, models: Models, wiring: Wiring) -> Recipe:
    """The world that C is evolved in."""
    config = context.config.controller
    if config.world is WorldKind.real:
        return context.real(None, models.vision, models.memory, wiring)
    return context.dream(models.memory, wiring, config.temperature)
