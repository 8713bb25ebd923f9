"""How the controller's outputs become an environment's actions.

The controller acts with vectors ``(num_envs, A)`` of bounded numbers, which the dynamics model
takes and episodes record:

- A bounded box: its own numbers, rescaled to [-1, 1] where the box is neither that nor [0, 1].
- Discrete actions: a one-hot vector of n numbers.
- Discrete actions with `EnvSpec.action_bins`: one number in [-1, 1], whose lower, middle and upper
  third are three of the actions, as the paper's code steers in Doom.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete, Space
from gymnasium.vector import VectorActionWrapper, VectorEnv
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers.vector import RescaleAction
from numpy.typing import NDArray

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


def action_bounds(env: VectorEnv[Any, Any, Any]) -> ActionBounds:
    """The vectors that environments returned by `wrap_actions` take."""
    space = env.single_action_space
    assert isinstance(space, Box)
    choice = isinstance(env, _ArgmaxAction)
    low, high = (np.asarray(bound, float).tolist() for bound in (space.low, space.high))
    return ActionBounds(tuple(low), tuple(high), choice)


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
            return _ArgmaxAction(env, int(space.n), int(space.start))
        if len(action_bins) != 3 or not all(
            space.contains(np.int64(action)) for action in action_bins
        ):
            raise ConfigError(
                f"env.action_bins={list(action_bins)}: choose three actions of {space}"
            )
        return _BinnedAction(env, action_bins)
    if action_bins is not None:
        raise ConfigError(
            f"env.action_bins={list(action_bins)}: {env_id} has no discrete actions but {space}"
        )
    if not _is_bounded_vector(space):
        raise ConfigError(
            f"env.id={env_id}: actions are {space}: supported are bounded vectors of floats (Box)"
            " and Discrete"
        )
    assert isinstance(space, Box)
    usual = np.isin(space.low, (-1, 0)).all() and (space.high == 1).all()
    return env if usual else RescaleAction(env, -1.0, 1.0)


def _is_bounded_vector(space: Space[Any]) -> bool:
    return (
        isinstance(space, Box)
        and len(space.shape) == 1
        and np.issubdtype(space.dtype, np.floating)
        and space.is_bounded()
    )


class _ArgmaxAction(VectorActionWrapper[Any, Any, Any, Any]):
    """Takes the action whose number is largest: ``(N, n)`` to ``(N,)``."""

    def __init__(self, env: VectorEnv[Any, Any, Any], count: int, start: int) -> None:
        super().__init__(env)
        self._start = start
        self.single_action_space = Box(0, 1, (count,), np.float32)
        self.action_space = batch_space(self.single_action_space, env.num_envs)

    def actions(self, actions: Actions) -> NDArray[np.int64]:
        chosen: NDArray[np.int64] = check_actions(actions, self.action_space).argmax(axis=1)
        return self._start + chosen


class _BinnedAction(VectorActionWrapper[Any, Any, Any, Any]):
    """Takes one of three actions by the third that a number is in: ``(N, 1)`` to ``(N,)``."""

    def __init__(self, env: VectorEnv[Any, Any, Any], action_bins: Sequence[int]) -> None:
        super().__init__(env)
        self._action_bins = np.asarray(action_bins)
        self.single_action_space = Box(-1, 1, (1,), np.float32)
        self.action_space = batch_space(self.single_action_space, env.num_envs)

    def actions(self, actions: Actions) -> NDArray[np.int64]:
        number = check_actions(actions, self.action_space)[:, 0]
        third = 1 + (number > THIRD).astype(int) - (number < -THIRD)
        chosen: NDArray[np.int64] = self._action_bins[third]
        return chosen
