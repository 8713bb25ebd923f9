"""How the controller's outputs become an environment's actions.

The controller acts with vectors ``(num_envs, A)`` of bounded numbers, which the dynamics model
takes and episodes record:

- A bounded box: its own numbers, rescaled to [-1, 1] where the box is neither that nor [0, 1].
- Discrete actions: a one-hot vector of n numbers.
- Discrete actions with `EnvSpec.action_bins`: one number in [-1, 1], whose lower, middle and upper
  third are three of the actions, as the paper's code steers in Doom.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from gymnasium.spaces import Box, Discrete, Space
from gymnasium.vector import VectorActionWrapper, VectorEnv
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers.utils import rescale_box
from gymnasium.wrappers.vector import RescaleAction
from numpy.typing import NDArray

from worldmodels.envs.television import NoisyTelevision
from worldmodels.envs.vector import Actions, check_actions
from worldmodels.errors import ConfigError

THIRD = 1 / 3
"""Where the outer bins begin (doomreal.py of hardmaru/WorldModelsExperiments)."""


@dataclass(frozen=True)
class ActionBounds:
    """The vectors that a controller acts with.

    Args:
        low: lower bounds, (A,).
        high: upper bounds, (A,).
        choice: the vector is one-hot.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    choice: bool = False

    @property
    def squash(self) -> tuple[str, ...]:
        """Of each output of the controller: a name of `worldmodels.models.controller`."""
        if self.choice:
            return ("choice",) * len(self.low)
        return tuple("tanh" if low < 0 else "half_tanh" for low in self.low)


@dataclass(frozen=True)
class BoxActions:
    """Actions in a bounded box of floats.

    Args:
        low: bounds of the environment's own actions, (A,).
        high: bounds of the environment's own actions, (A,).
    """

    kind: Literal["box"] = field(default="box", init=False)
    low: tuple[float, ...]
    high: tuple[float, ...]

    @property
    def rescaled(self) -> bool:
        """Whether a controller's vectors are in [-1, 1] and rescaled to these bounds."""
        return not (set(self.low) <= {-1, 0} and set(self.high) <= {1})

    @property
    def bounds(self) -> ActionBounds:
        """The bounds of a controller's vectors."""
        if self.rescaled:
            return ActionBounds((-1.0,) * len(self.low), (1.0,) * len(self.low))
        return ActionBounds(self.low, self.high)

    def from_vectors(self, vectors: Actions) -> NDArray[np.float32]:
        """The environment's actions (N, A), within the bounds, of a controller's vectors (N, A)."""
        if self.rescaled:
            vectors = _to_bounds(self.low, self.high)(vectors)
        return np.clip(vectors, self.low, self.high).astype(np.float32)


@functools.lru_cache
def _to_bounds(
    low: tuple[float, ...], high: tuple[float, ...]
) -> Callable[[Actions], NDArray[np.float32]]:
    """From vectors in [-1, 1] to actions within the bounds, as `RescaleAction` does."""
    one = np.ones(len(low), np.float32)
    return rescale_box(Box(np.array(low, np.float32), np.array(high, np.float32)), -one, one)[2]


@dataclass(frozen=True)
class DiscreteActions:
    """Discrete actions.

    Args:
        n: number of actions.
        start: the first action's number.
        action_bins: the actions of the lower, middle and upper third of one number in [-1, 1];
            None: the largest of n numbers decides.
    """

    kind: Literal["discrete"] = field(default="discrete", init=False)
    n: int
    start: int = 0
    action_bins: tuple[int, ...] | None = None

    @property
    def bounds(self) -> ActionBounds:
        """The bounds of a controller's vectors."""
        if self.action_bins is not None:
            return ActionBounds((-1.0,), (1.0,))
        return ActionBounds((0.0,) * self.n, (1.0,) * self.n, choice=True)

    def from_vectors(self, vectors: Actions) -> NDArray[np.int64]:
        """The environment's actions (N,) of vectors (N, 1), with bins, or (N, n)."""
        if self.action_bins is None:
            chosen: NDArray[np.int64] = self.start + vectors.argmax(axis=1)
            return chosen
        number = vectors[:, 0]
        third = 1 + (number > THIRD).astype(int) - (number < -THIRD)
        binned: NDArray[np.int64] = np.asarray(self.action_bins, np.int64)[third]
        return binned


ActionSpec = BoxActions | DiscreteActions
"""An environment's own actions, and how they are made of a controller's vectors."""


def actions_of(env: VectorEnv[Any, Any, Any]) -> ActionSpec:
    """The environment's own actions in environments that `wrap_actions` returned, perhaps with a
    noisy television around them."""
    if isinstance(env, NoisyTelevision):
        env = env.env
    if isinstance(env, _Discrete):
        return env.own
    own = env.env if isinstance(env, RescaleAction) else env
    return _box(own.single_action_space)


def wrap_actions(
    env_id: str, env: VectorEnv[Any, Any, Any], action_bins: Sequence[int] | None
) -> VectorEnv[Any, Any, Any]:
    """Environments that take vectors as actions.

    Args:
        env_id: for errors.
        env: environments with a bounded Box or Discrete action space.
        action_bins: the actions of the lower, middle and upper third of one number.

    Raises:
        ConfigError: actions of another kind; bins that do not fit them.
    """
    space = env.single_action_space
    if isinstance(space, Discrete):
        if action_bins is None:
            return _Discrete(env, DiscreteActions(int(space.n), int(space.start)))
        if len(action_bins) != 3 or not all(
            space.contains(np.int64(action)) for action in action_bins
        ):
            raise ConfigError(
                f"env.action_bins={list(action_bins)}: choose three actions of {space}"
            )
        return _Discrete(env, DiscreteActions(int(space.n), int(space.start), tuple(action_bins)))
    if action_bins is not None:
        raise ConfigError(
            f"env.action_bins={list(action_bins)}: {env_id} has no discrete actions but {space}"
        )
    if not _is_bounded_vector(space):
        raise ConfigError(
            f"env.id={env_id}: actions are {space}: supported are bounded vectors of floats (Box)"
            " and Discrete"
        )
    if not _box(space).rescaled:
        return env
    assert space.dtype is not None
    one = space.dtype.type(1)  # of another type, Gymnasium warns of its precision
    return RescaleAction(env, -one, one)


def _box(space: Space[Any]) -> BoxActions:
    assert isinstance(space, Box)
    low, high = (np.asarray(bound, float).tolist() for bound in (space.low, space.high))
    return BoxActions(tuple(low), tuple(high))


def _is_bounded_vector(space: Space[Any]) -> bool:
    return (
        isinstance(space, Box)
        and len(space.shape) == 1
        and np.issubdtype(space.dtype, np.floating)
        and space.is_bounded()
    )


class _Discrete(VectorActionWrapper[Any, Any, Any, Any]):
    """Takes a controller's vectors in place of an environment's own discrete actions."""

    def __init__(self, env: VectorEnv[Any, Any, Any], own: DiscreteActions) -> None:
        super().__init__(env)
        self.own = own
        bounds = own.bounds
        low, high = (np.array(bound, np.float32) for bound in (bounds.low, bounds.high))
        self.single_action_space = Box(low, high)
        self.action_space = batch_space(self.single_action_space, env.num_envs)

    def actions(self, actions: Actions) -> NDArray[np.int64]:
        return self.own.from_vectors(check_actions(actions, self.action_space))
