"""How an agent's numbers become an environment's actions.

An agent acts with vectors ``(lanes, A)`` of bounded numbers, which M sees and episodes record:

- A bounded box: its own numbers, rescaled to [-1, 1] where the box is neither that nor [0, 1].
- A choice among n actions: n numbers of which one is 1, that of the action.
- A lever, where `EnvSpec.lever` says so: one number in [-1, 1] whose thirds are three actions, as
  the paper's code steers in Doom.
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

from worldmodels.envs.lanes import Actions, check_actions
from worldmodels.errors import ConfigError

THIRD = 1 / 3
"""Beyond it a lever is pulled (doomreal.py of hardmaru/WorldModelsExperiments)."""


@dataclass(frozen=True)
class Controls:
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


def controls_of(env: VectorEnv[Any, Any, Any]) -> Controls:
    """What an agent has in its hands in lanes that `in_hand` returned."""
    space = env.single_action_space
    assert isinstance(space, Box)
    choice = isinstance(env, _Chosen)
    low, high = (np.asarray(bound, float).tolist() for bound in (space.low, space.high))
    return Controls(tuple(low), tuple(high), choice)


def in_hand(
    env_id: str, env: VectorEnv[Any, Any, Any], lever: Sequence[int] | None
) -> VectorEnv[Any, Any, Any]:
    """Lanes that are acted in with vectors.

    Args:
        env_id: for errors.
        env: lanes of a bounded box or of a choice.
        lever: the actions of a lever's lower, middle and upper third.

    Raises:
        ConfigError: actions of another kind; a lever that does not fit.
    """
    space = env.single_action_space
    if isinstance(space, Discrete):
        if lever is None:
            return _Chosen(env, int(space.n), int(space.start))
        if len(lever) != 3 or not all(space.contains(np.int64(action)) for action in lever):
            raise ConfigError(f"env.lever={list(lever)}: choose three actions of {space}")
        return _Pulled(env, lever)
    if lever is not None:
        raise ConfigError(f"env.lever={list(lever)}: {env_id} has no choice of actions but {space}")
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


class _Chosen(VectorActionWrapper[Any, Any, Any, Any]):
    """Does the action whose number is largest: ``(N, n)`` to ``(N,)``."""

    def __init__(self, env: VectorEnv[Any, Any, Any], count: int, start: int) -> None:
        super().__init__(env)
        self._start = start
        self.single_action_space = Box(0, 1, (count,), np.float32)
        self.action_space = batch_space(self.single_action_space, env.num_envs)

    def actions(self, actions: Actions) -> NDArray[np.int64]:
        chosen: NDArray[np.int64] = check_actions(actions, self.action_space).argmax(axis=1)
        return self._start + chosen


class _Pulled(VectorActionWrapper[Any, Any, Any, Any]):
    """Does one of three actions by the third that a number is in: ``(N, 1)`` to ``(N,)``."""

    def __init__(self, env: VectorEnv[Any, Any, Any], lever: Sequence[int]) -> None:
        super().__init__(env)
        self._lever = np.asarray(lever)
        self.single_action_space = Box(-1, 1, (1,), np.float32)
        self.action_space = batch_space(self.single_action_space, env.num_envs)

    def actions(self, actions: Actions) -> NDArray[np.int64]:
        pulled = check_actions(actions, self.action_space)[:, 0]
        third = 1 + (pulled > THIRD).astype(int) - (pulled < -THIRD)
        chosen: NDArray[np.int64] = self._lever[third]
        return chosen
