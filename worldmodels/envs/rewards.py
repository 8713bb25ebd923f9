"""The check of an environment's rewards."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv, VectorWrapper

from worldmodels.envs.vector import VectorStep
from worldmodels.errors import ConfigError

_LARGEST = float(np.finfo(np.float32).max)
"""Episodes record rewards as float32."""


class FiniteRewards(VectorWrapper[Any, Any, Any, Any, Any]):
    """N environments whose rewards are finite numbers of float32.

    Args:
        env: the environments.
        env_id: for errors.

    Raises:
        ConfigError: in `step`, a reward is not finite or too large.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], env_id: str) -> None:
        super().__init__(env)
        self._env_id = env_id

    def step(self, actions: Any) -> VectorStep:
        """Take one step in each environment."""
        frames, rewards, terminated, truncated, infos = self.env.step(actions)
        fits = np.abs(rewards) <= _LARGEST  # NaN does not
        if not fits.all():
            index = int(np.flatnonzero(~fits)[0])
            raise ConfigError(
                f"env.id={self._env_id}: the reward of environment {index} is {rewards[index]:g};"
                " correct the environment"
            )
        return frames, rewards, terminated, truncated, infos
