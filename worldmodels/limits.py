"""What a configuration may be: each number alone, and what has to agree with something else.

Looked at before any work begins, for a stage may be hours away from the mistake that would end it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from worldmodels import seeds
from worldmodels.config import Config, ControllerConfig, Stage, WorldKind, changed, flat, unknown
from worldmodels.errors import ConfigError


@dataclass(frozen=True)
class Limit:
    """An interval.

    Args:
        least: its lower end.
        most: its upper end.
        above: whether the lower end is not in it.
    """

    least: int
    most: float = math.inf
    above: bool = False

    def __contains__(self, number: float) -> bool:
        # NaN is in no interval.
        enough = number > self.least if self.above else number >= self.least
        return enough and number <= self.most and math.isfinite(number)

    def __str__(self) -> str:
        if self.most < math.inf:
            return f"{self.least} to {self.most}"
        return f"more than {self.least}" if self.above else f"{self.least} or more"


_KEYS = {
    Limit(2): "controller.population controller.first_episodes",
    Limit(1): """
        env.max_steps env.crop_rows env.size env.lanes
        rollouts.episodes rollouts.max_steps
        vae.latent_size vae.batch_size
        rnn.hidden_size rnn.mixtures rnn.batch_size
        controller.episodes controller.patience controller.generations controller.budget
        controller.components controller.max_steps controller.dream_lanes
        controller.select_every controller.select_episodes
        evaluate.episodes iterate.rounds trainer.log_every
    """,
    Limit(0, above=True): """
        vae.learning_rate vae.final_learning_rate
        rnn.learning_rate rnn.final_learning_rate rnn.gradient_clip rnn.death_weight
        controller.sigma controller.final_sigma controller.temperature
        workers.timeout
    """,
    Limit(0): """
        seed evaluate.first_seed
        rollouts.noise iterate.noise
        vae.epochs vae.kl_tolerance
        rnn.epochs rnn.sequence_length rnn.reward_weight rnn.termination_weight
        controller.hidden_units
        trainer.checkpoint_seconds workers.processes
    """,
    Limit(0, 1): "rollouts.epsilon vae.validation_fraction rnn.validation_fraction",
}
LIMITS = {key: limit for limit, keys in _KEYS.items() for key in keys.split()}
"""Of every number; null, where a key takes it, is no number."""


LOGGER_MODES = ("online", "offline", "disabled")
"""Of W&B."""


def check(config: Config) -> None:
    """Raise `ConfigError`, in one line that names the key, for what no stage could use."""
    for key in _strangers(config):
        raise ConfigError(unknown(key))
    values = flat(**vars(config))
    for key, limit in LIMITS.items():
        if values[key] is not None and values[key] not in limit:
            raise ConfigError(f"{key}={values[key]}: choose {limit}")
    if config.logger.mode not in LOGGER_MODES:
        raise ConfigError(f"logger.mode={config.logger.mode}: choose {', '.join(LOGGER_MODES)}")
    _check_search(config.controller)
    seeds.evaluation(config.evaluate.first_seed, config.evaluate.episodes)
    if config.stage in (Stage.all, Stage.iterate):
        _check_dreams(config)
    if config.scout:
        shorter = changed(config, config.scout)
        shorter.scout = {}
        try:
            check(shorter)
        except ConfigError as error:
            raise ConfigError(f"with the values of scout.*: {error}") from None


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
    if final is not None and config.budget is None:
        raise ConfigError("controller.final_sigma: needs controller.budget, to fall over it")
    if final is not None and final > config.sigma:
        raise ConfigError(
            f"controller.final_sigma={final}: choose at most controller.sigma={config.sigma}"
        )


def _check_dreams(config: Config) -> None:
    """Where C will dream with an M that is yet to be trained: the game has to look the same."""
    learns, sees = config.rnn.latent, config.controller.latent
    if config.controller.world is WorldKind.dream and learns is not sees:
        raise ConfigError(
            f"controller.latent={sees.name}: M will dream of rnn.latent={learns.name}, and C has to"
            f" see the same in the game: give controller.latent={learns.name}"
        )
