"""The values among which ``stage=sweep`` searches: the key ``sweep.space``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from worldmodels.config.choices import Target
from worldmodels.config.schema import Config, changed
from worldmodels.errors import ConfigError

SECTIONS = ("env", "rollouts", "vae", "rnn", "actor_critic", "controller", "baseline")
"""Sections whose keys can be searched, in the order in which stages use them."""
_ENDS = ("low", "high")


@dataclass(frozen=True)
class Range:
    """All numbers between two ends, which are included; whole ones if both ends are.

    Args:
        low: the smallest.
        high: the largest.
        log: whether their logarithms are searched.
    """

    low: float
    high: float
    log: bool = False

    @property
    def whole(self) -> bool:
        """Whether the numbers are integers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def ends(self) -> tuple[Any, ...]:
        """Values that have to be valid for all to be."""
        return self.low, self.high


@dataclass(frozen=True)
class Choices:
    """Some values, without an order.

    Args:
        values: two at least, each a number, a text, true, false or null.
    """

    values: tuple[Any, ...]

    @property
    def ends(self) -> tuple[Any, ...]:
        """As of `Range`."""
        return self.values


Space = dict[str, Range | Choices]
"""Key of the configuration -> its values."""


def read_space(space: Mapping[str, Any]) -> Space:
    """The space that ``sweep.space`` describes.

    Args:
        space: key -> a list of values, or ``{low: 1e-4, high: 1e-2, log: true}``.

    Raises:
        ConfigError: a key cannot be searched, or has no such values.
    """
    if not space:
        raise ConfigError(
            "sweep.space={}: give keys with their values, as in"
            " 'sweep.space={vae.learning_rate: {low: 1e-4, high: 1e-2, log: true}}'"
        )
    return {str(key): _values(str(key), values) for key, values in space.items()}


def population_rate(config: Config) -> tuple[str, Range]:
    """The learning rate that a population trains with, and where its first values are from.

    Raises:
        ConfigError: the sweep is of another stage or other keys, or has one interval only.
    """
    sweep = config.sweep
    why, stage = "sweep.method=population", sweep.target.name
    if sweep.target not in (Target.vae, Target.rnn):
        raise ConfigError(f"{why}: sweep.target={stage} has no epochs; give vae or rnn")
    key, space = f"{stage}.learning_rate", read_space(sweep.space)
    others = sorted(space.keys() - {key})
    if others:
        raise ConfigError(
            f"{why}: {others[0]} cannot change while a model is trained; give {key} alone in"
            " sweep.space, or sweep.method=tpe"
        )
    rates = space[key]
    if not isinstance(rates, Range):
        raise ConfigError(f"{why}: give {key} as {{low: 1e-4, high: 1e-2, log: true}}")
    epochs = getattr(config, stage).epochs
    if sweep.interval >= epochs:
        raise ConfigError(
            f"sweep.interval={sweep.interval}: with {stage}.epochs={epochs} no weights are copied;"
            f" choose fewer than {epochs} epochs"
        )
    return key, rates


def _values(key: str, values: Any) -> Range | Choices:
    section, dot, _ = key.partition(".")
    if key != "seed" and not (dot and section in SECTIONS):
        raise ConfigError(f"sweep.space: {key}: give seed, or keys of {', '.join(SECTIONS)}")
    where = f"sweep.space: {key}"
    if isinstance(values, list):
        different = len({*map(repr, values)}) == len(values) > 1
        if not different or not all(map(_scalar, values)):
            raise ConfigError(f"{where}: give two different values or more, none a list or mapping")
        return Choices(tuple(values))
    if not isinstance(values, dict) or not {*_ENDS} <= values.keys() <= {*_ENDS, "log"}:
        raise ConfigError(f"{where}: give a list of values, or {{low: 1, high: 8, log: false}}")
    low, high, log = values["low"], values["high"], values.get("log", False)
    if not (_number(low) and _number(high) and low < high and isinstance(log, bool)):
        raise ConfigError(f"{where}: give numbers low < high, and log as true or false")
    if log and low <= 0:
        raise ConfigError(f"{where}: log=true needs low > 0")
    return Range(low, high, log)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _scalar(value: Any) -> bool:
    return value is None or isinstance(value, str | bool) or _number(value)


def with_values(config: Config, values: Mapping[str, Any]) -> Config:
    """`config` with the values of some keys, and without a space; raises OmegaConf's errors, naming
    the key.

    Args:
        config: of the sweep.
        values: key -> value.
    """
    nested: dict[str, Any] = {}
    for key, value in values.items():
        *path, name = key.split(".")
        inner = nested
        for part in path:
            inner = inner.setdefault(part, {})
        inner[name] = value
    own = changed(config, nested)
    own.sweep.space = {}
    return own
