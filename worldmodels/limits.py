"""What a configuration may be: each number alone, and what has to agree with something else.

Checked before any work begins, for a stage may be hours away from the mistake that would end it.
The bounds are far beyond any preset. They keep a mistyped number from running or allocating without
end, and they are the bounds of the sizes in files that others made (`worldmodels/agent.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from worldmodels import seeds
from worldmodels.config import (
    Config,
    ControllerConfig,
    Features,
    Stage,
    WorldKind,
    bootstrap_config,
    flat,
    unknown,
)
from worldmodels.errors import ConfigError


@dataclass(frozen=True)
class Limit:
    """An interval with finite ends.

    Args:
        least: its lower end.
        most: its upper end.
        above: whether the lower end is not in it.
    """

    least: float
    most: float
    above: bool = False

    def __contains__(self, number: float) -> bool:
        # NaN is in no interval.
        enough = number > self.least if self.above else number >= self.least
        return enough and number <= self.most

    def __str__(self) -> str:
        if self.least == self.most:
            return str(self.most)
        return f"{'more than ' if self.above else ''}{self.least} to {self.most}"


_WEEK = 7 * 24 * 3600.0
_KEYS = {
    # An encoder takes some of these (worldmodels/registry.py: build_encoder).
    Limit(8, 512): "env.size",
    Limit(1, 10_000): "env.crop_rows controller.episodes",
    Limit(1, 16_384): "env.num_envs controller.dream_num_envs",
    Limit(1, 100_000): """
        env.max_steps rollouts.max_steps controller.max_steps
        rollouts.episodes controller.eval_episodes evaluate.episodes
        controller.stall_steps controller.pca_components
    """,
    Limit(2, 10_000): "controller.population controller.first_episodes",
    Limit(1, 512): "vae.latent_size",
    Limit(1, 4096): "rnn.hidden_size rnn.batch_size",
    Limit(1, 32): "rnn.mixtures",
    Limit(1, 8192): "vae.batch_size",
    Limit(1, 1_000_000): "controller.generations controller.eval_interval trainer.log_every",
    Limit(1, 10**12): "controller.total_steps",
    Limit(1, 1000): "iterate.rounds",
    Limit(0, 1e6, above=True): """
        vae.learning_rate vae.final_learning_rate rnn.learning_rate rnn.final_learning_rate
        rnn.gradient_clip rnn.termination_pos_weight
    """,
    Limit(0, 1000.0, above=True): "controller.sigma controller.final_sigma",
    Limit(0.001, 1000.0): "controller.temperature",
    Limit(0, _WEEK, above=True): "workers.timeout",
    Limit(0, _WEEK): "trainer.checkpoint_seconds",
    Limit(0, 1024): "workers.processes controller.hidden_units",
    # 32 bits, what every library takes; the seeds of episodes are drawn from it (seeds.py).
    Limit(0, 2**32 - 1): "seed",
    Limit(0, seeds.EVALUATION_END - 1): "evaluate.first_seed",
    Limit(0, 100_000): "vae.epochs rnn.epochs rnn.sequence_length",
    Limit(0, 1000.0): "rollouts.noise iterate.noise vae.kl_tolerance",
    Limit(0, 1e6): "rnn.reward_weight rnn.termination_weight",
    Limit(0, 1): "rollouts.ez_greedy_epsilon vae.validation_fraction rnn.validation_fraction",
    Limit(-1_000_000, 1_000_000): "env.action_bins",
}
LIMITS = {key: limit for limit, keys in _KEYS.items() for key in keys.split()}
"""Of every number, and of every number in a list; null, where a key takes it, is no number."""

ACTIONS = Limit(1, 1024)
"""Of the numbers that an agent acts with: the length of env.squash."""

GENERATION = 1_000_000
"""Episodes of a generation, at most: candidates times episodes."""
SHARD_FRAMES = 4_194_304
"""Frames of 64x64 that one process may have to hold for a shard: 52 GB; fewer that are larger."""
COVARIANCE = 20_000
"""Parameters of a search with a full covariance matrix, at most: 3 GB a matrix."""

LOGGER_MODES = ("online", "offline", "disabled")
"""Of W&B."""


def check(config: Config) -> None:
    """Raise `ConfigError`, in one line that names the key, for what no stage could use."""
    for key in _strangers(config):
        raise ConfigError(unknown(key))
    values = flat(**vars(config))
    for key, limit in LIMITS.items():
        _check_number(key, values[key], limit)
    if not config.env.name.isprintable() or Path(config.env.name).name != config.env.name:
        raise ConfigError(
            f"env.name={config.env.name}: choose a name for folders, of printable characters"
        )
    if config.logger.mode not in LOGGER_MODES:
        raise ConfigError(f"logger.mode={config.logger.mode}: choose {', '.join(LOGGER_MODES)}")
    if config.env.squash is not None and len(config.env.squash) not in ACTIONS:
        raise ConfigError(f"env.squash has {len(config.env.squash)} entries: choose {ACTIONS}")
    if config.env.action_bins is not None and len(config.env.action_bins) != 3:
        raise ConfigError(
            f"env.action_bins has {len(config.env.action_bins)} entries: choose three actions"
        )
    _check_search(config.controller)
    _check_memory(config)
    seeds.evaluation(config.evaluate.first_seed, config.evaluate.episodes)
    if config.stage in (Stage.all, Stage.iterate):
        _check_dreams(config)
        _check_split(config)
    if config.bootstrap:
        try:
            check(bootstrap_config(config))
        except ConfigError as error:
            raise ConfigError(f"with the values of bootstrap.*: {error}") from None


def _check_number(key: str, value: Any, limit: Limit) -> None:
    numbers = value if isinstance(value, list) else [value]
    for number in numbers:
        if number is not None and number not in limit:
            # A number of a thousand digits makes no readable line.
            long = isinstance(number, int) and abs(number) > 10**20
            shown = f"1e{math.log10(abs(number)):.0f}" if long else number
            raise ConfigError(f"{key}={shown}: choose {limit}")


def _strangers(tree: Any, prefix: str = "") -> Iterator[str]:
    """What Hydra's ``+key=`` has added to the schema."""
    known = {part.name for part in fields(tree)}
    for name, value in vars(tree).items():
        if name not in known:
            yield f"{prefix}{name}"
        elif is_dataclass(value):
            yield from _strangers(value, f"{prefix}{name}.")


def _check_search(config: ControllerConfig) -> None:
    first, final = config.first_episodes, config.final_sigma
    if first is not None and first > config.episodes:
        raise ConfigError(
            f"controller.first_episodes={first}: choose 2 to controller.episodes={config.episodes},"
            " or null for as many in every generation"
        )
    if final is not None and config.total_steps is None:
        raise ConfigError("controller.final_sigma: needs controller.total_steps, to fall over it")
    if final is not None and final > config.sigma:
        raise ConfigError(
            f"controller.final_sigma={final}: choose at most controller.sigma={config.sigma}"
        )
    played = config.population * config.episodes
    if played > GENERATION:
        raise ConfigError(
            f"controller.population={config.population}: with controller.episodes="
            f"{config.episodes} a generation plays {played:,} episodes; choose at most"
            f" {GENERATION:,}"
        )


def _check_memory(config: Config) -> None:
    """Numbers that are each within their limits, and together ask for absurd memory."""
    num_envs = min(config.env.num_envs, config.rollouts.episodes)
    frames = num_envs * config.rollouts.max_steps
    most = SHARD_FRAMES * 64**2 // config.env.size**2
    if frames > most:
        raise ConfigError(
            f"env.num_envs={config.env.num_envs}: with rollouts.max_steps="
            f"{config.rollouts.max_steps} a shard may have {frames:,} frames of"
            f" env.size={config.env.size}; choose at most {most:,}"
        )
    controller = config.controller
    features = config.vae.latent_size
    if controller.features is not Features.z:
        features += config.rnn.hidden_size * (1 + (controller.features is Features.zch))
    inputs = min(features, controller.pca_components or features)
    least = inputs * max(controller.hidden_units, len(config.env.squash or ()), 1)
    if not controller.diagonal and least > COVARIANCE:
        raise ConfigError(
            f"controller.diagonal=false: a controller of {least:,} parameters or more has too large"
            f" a covariance matrix (at most {COVARIANCE:,}); choose controller.diagonal=true or"
            " fewer controller.pca_components"
        )


def _check_split(config: Config) -> None:
    """Where a chain collects what it trains on."""
    if config.rollouts.episodes < 2 and not config.bootstrap:
        raise ConfigError(
            f"rollouts.episodes={config.rollouts.episodes}: one episode cannot be split into"
            " training and validation; choose 2 or more"
        )


def _check_dreams(config: Config) -> None:
    """Where C will dream with an M that is yet to be trained: the game has to look the same."""
    learns, sees = config.rnn.latent, config.controller.latent
    if config.controller.world is WorldKind.dream and learns is not sees:
        raise ConfigError(
            f"controller.latent={sees.name}: M will dream of rnn.latent={learns.name}, and C has to"
            f" see the same in the game: give controller.latent={learns.name}"
        )
