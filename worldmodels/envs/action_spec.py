"""How an agent's numbers become an environment's actions.

An agent acts with vectors ``(num_envs, A)`` of bounded numbers, which M sees and episodes record:

- A bounded box: its own numbers, rescaled to [-1, 1] where the box is neither that nor [0, 1].
- A choice among n actions: n numbers of which one is 1, that of the action.
- An action bin, where `EnvSpec.action_bins` says so: one number in [-1, 1] whose thirds are three
  actions, as the paper's code steers in Doom.
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
"""Beyond it an action bin is pulled (doomreal.py of hardmaru/WorldModelsExperiments)."""


@dataclass(frozen=True)
class ActionSpec:
    """What an agent has in its hands.

    Args:
        low: bounds of its numbers, (A,).
        high: bounds of its numbers, (A,).
        choice: one of the numbers is 1 and all others are 0.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    choice: bool = False

    @property
    def squash(self) -> tuple[str, ...]:
        """How C's outputs become these numbers: names of `worldmodels.models.controller`."""
        if self.choice:
            return ("choice",) * len(self.low)
        return tuple("tanh" if low < 0 else "half_tanh" for low in self.low)


def action_spec(env: VectorEnv[Any, Any, Any]) -> ActionSpec:
    """What an agent has in its hands in environments that `wrap_actions` returned."""
    space = env.single_action_space
    assert isinstance(space, Box)
    choice = isinstance(env, _ArgmaxAction)
    low, high = (np.asarray(bound, float).tolist() for bound in (space.low, space.high))
    return ActionSpec(tuple(low), tuple(high), choice)


def wrap_actions(
    env_id: str, env: VectorEnv[Any, Any, Any], action_bins: Sequence[int] | None
) -> VectorEnv[Any, Any, Any]:
    """Environments that are acted in with vectors.

    Args:
        env_id: for errors.
        env: environments of a bounded box or of a choice.
        action_bins: the actions of an action bin's lower, middle and upper third.

    Raises:
        ConfigError: actions of another kind; an action bin that does not fit.
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
            f"env.action_bins={list(action_bins)}: {env_id} has no choice of actions but {space}"
        )
    if not _is_bounded_vector(space):
        raise ConfigError(
            f"env.id={env_id}: actions are {space}: supported are bounded vectors of floats (Box)"
            " and choices (Discrete)"
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
    """Does the action whose number is largest: ``(N, n)`` to ``(N,)``."""

    def __init__(self, env: VectorEnv[Any, Any, Any], count: int, start: int) -> None:
        super().__init__(env)
        self._start = start
        self.single_action_space = Box(0, 1, (count,), np.float32)
        self.action_space = batch_space(self.single_action_space, env.num_envs)

    def actions(self, actions: Actions) -> NDArray[np.int64]:
        chosen: NDArray[np.int64] = check_actions(actions, self.action_space).argmax(axis=1)
        return self._start + chosen


class _BinnedAction(VectorActionWrapper[Any, Any, Any, Any]):
    """Does one of three actions by the third that a number is in: ``(N, 1)`` to ``(N,)``."""

    def __init__(self, env: VectorEnv[Any, Any, Any], action_bins: Sequence[int]) -> None:
        super().__init__(env)
        self._action_bins = np.asarray(action_bins)
        self.single_action_space = Box(-1, 1, (1,), np.float32)
        self.action_space = batch_space(self.single_action_space, env.num_envs)

    def actions(self, actions: Actions) -> NDArray[np.int64]:
        pulled = check_actions(actions, self.action_space)[:, 0]
        third = 1 + (pulled > THIRD).astype(int) - (pulled < -THIRD)
        chosen: NDArray[np.int64] = self._action_bins[third]
        return chosen
