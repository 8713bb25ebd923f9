"""Random actions to collect the first episodes with, before any controller exists."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from worldmodels.envs.streams import Stream, generator_of
from worldmodels.envs.vector import Actions
from worldmodels.errors import ConfigError

_BLOCK = 256
"""Steps whose random numbers are drawn at once, so that a generator is called rarely."""

_WALK_STEP = np.sqrt(1 / 50)
"""Standard deviation of a Brownian step: one second is 50 frames (as in ctallec/world-models)."""

_LONGEST_HOLD = 10
"""A sticky action is held for 1 to 10 steps, as in the paper's Doom experiment."""

_PERSISTENT_HOLD = 200
"""The longest hold that an episode of a persistent policy can have: twice the steps from wall to
wall in Take Cover (102, measured)."""


class ActionPolicy(Protocol):
    """Chooses an action for each environment without observations."""

    def reset(self, seeds: Sequence[int]) -> None:
        """Start an episode in each of ``len(seeds)`` environments; an episode's actions depend on
        its seed alone."""

    def act(self) -> Actions:
        """Return the next actions ``(N, A)``, inside the box."""

    def keep(self, mask: NDArray[np.bool_]) -> None:
        """Drop the environments where ``mask (N,)`` is False."""


class _RandomPolicy(ABC):
    """Proposes an action at every step and takes it whenever the last one's hold is over."""

    def __init__(
        self, low: NDArray[Any], high: NDArray[Any], longest_holds: tuple[int, int]
    ) -> None:
        self._low = low  # (A,)
        self._high = high  # (A,)
        self._longest_holds = longest_holds  # the least and the greatest that an episode can have
        self._noise: NDArray[Any]  # (N, block, A)
        self._holds: NDArray[np.int64]  # (N, block)

    def reset(self, seeds: Sequence[int]) -> None:
        self._generators = [generator_of(seed, Stream.ACTIONS) for seed in seeds]
        size = self._low.shape
        self._actions = np.array(
            [generator.uniform(self._low, self._high) for generator in self._generators]
        ).reshape(len(seeds), *size)  # (N, A)
        longest = [self._draw_longest(generator) for generator in self._generators]
        self._longest = np.array(longest, dtype=np.int64)  # (N,)
        self._remaining = np.zeros(len(seeds), dtype=np.int64)  # (N,) steps left of the hold
        self._step = 0

    def act(self) -> Actions:
        column = self._step % _BLOCK
        if column == 0:
            self._draw_block()
        free = self._remaining == 0  # (N,)
        if self._step > 0:
            proposed = self._propose(self._noise[:, column])
            self._actions = np.where(free[:, None], proposed, self._actions)
        self._remaining = np.where(free, self._holds[:, column], self._remaining) - 1
        self._step += 1
        return self._actions.astype(np.float32)

    def keep(self, mask: NDArray[np.bool_]) -> None:
        self._generators = [g for g, kept in zip(self._generators, mask, strict=True) if kept]
        self._actions = self._actions[mask]
        self._longest = self._longest[mask]
        self._remaining = self._remaining[mask]
        if self._step > 0:
            self._noise = self._noise[mask]
            self._holds = self._holds[mask]

    def _draw_block(self) -> None:
        num_envs, size = self._actions.shape
        self._noise = np.empty((num_envs, _BLOCK, size))
        self._holds = np.empty((num_envs, _BLOCK), dtype=np.int64)
        for index, generator in enumerate(self._generators):
            self._noise[index] = self._draw(generator, (_BLOCK, size))
            self._holds[index] = generator.integers(1, self._longest[index] + 1, _BLOCK)

    def _draw_longest(self, generator: np.random.Generator) -> int:
        """Return an episode's longest hold, log-uniform between the least and the greatest."""
        least, greatest = self._longest_holds
        if least == greatest:
            return least
        longest: float = least * (greatest / least) ** generator.uniform()
        return round(longest)

    @abstractmethod
    def _draw(self, generator: np.random.Generator, shape: tuple[int, int]) -> NDArray[Any]:
        """Return the noise of one environment's next steps."""

    @abstractmethod
    def _propose(self, noise: NDArray[Any]) -> NDArray[Any]:
        """Turn one step's noise ``(N, A)`` into actions ``(N, A)``."""


class _Uniform(_RandomPolicy):
    """Actions uniform in the box, independent of each other."""

    def _draw(self, generator: np.random.Generator, shape: tuple[int, int]) -> NDArray[Any]:
        return generator.uniform(self._low, self._high, shape)

    def _propose(self, noise: NDArray[Any]) -> NDArray[Any]:
        return noise


class _Brownian(_RandomPolicy):
    """A random walk from a uniform start, clipped to the box."""

    def _draw(self, generator: np.random.Generator, shape: tuple[int, int]) -> NDArray[Any]:
        return generator.normal(0.0, _WALK_STEP, shape)

    def _propose(self, noise: NDArray[Any]) -> NDArray[Any]:
        walked: NDArray[Any] = np.clip(self._actions + noise, self._low, self._high)
        return walked


_POLICIES: dict[str, tuple[type[_RandomPolicy], tuple[int, int]]] = {
    "brownian": (_Brownian, (1, 1)),
    "uniform": (_Uniform, (1, 1)),
    "sticky_brownian": (_Brownian, (_LONGEST_HOLD, _LONGEST_HOLD)),
    "sticky_uniform": (_Uniform, (_LONGEST_HOLD, _LONGEST_HOLD)),
    "persistent_uniform": (_Uniform, (1, _PERSISTENT_HOLD)),
}


def make_action_policy(name: str, low: NDArray[Any], high: NDArray[Any]) -> ActionPolicy:
    """Return a policy of random actions in the box from ``low (A,)`` to ``high (A,)``.

    - "brownian": a_0 uniform in the box, then steps of N(0, 1/50), clipped to the box (the default
      of ctallec/world-models).
    - "uniform": each action uniform in the box.
    - "sticky_brownian", "sticky_uniform": the same, but each action is held for a number of steps
      uniform on 1..10, as in the Doom experiment of hardmaru/WorldModelsExperiments.
    - "persistent_uniform": each episode has its own longest hold instead of 10, log-uniform on
      1..200. Episodes with long holds reach the walls and stay there, so the data holds what
      happens at a wall.

    Args:
        name: one of these.
        low: (A,) lower bounds of the box.
        high: (A,) upper bounds of the box.

    Raises:
        ConfigError: no such policy, or a box without finite bounds.
    """
    if name not in _POLICIES:
        raise ConfigError(f"action policy {name}: choose one of {', '.join(_POLICIES)}")
    low, high = np.asarray(low, dtype=np.float64), np.asarray(high, dtype=np.float64)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise ConfigError("the action box is unbounded: random actions need finite bounds")
    policy, longest_holds = _POLICIES[name]
    return policy(low, high, longest_holds)
