"""Environments of this project behind the interface of Stable-Baselines3.

Imported where a baseline is trained only: Stable-Baselines3 is optional.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import VectorEnv
from stable_baselines3.common.vec_env import VecEnv

from worldmodels.baselines.actions import Actions
from worldmodels.baselines.frames import FrameStack

Seeds = Callable[[int], list[int]]
"""Number of an episode in each environment, from 0 -> seeds of these N episodes."""


class SeededVecEnv(VecEnv):
    """N environments, each reset in the step in which its episode ends.

    The k-th episode of environment i has the i-th of the seeds ``seeds(k)``, whatever happened
    before it.

    Args:
        env: Gymnasium's vector environments, whose ``reset`` takes the option ``reset_mask``. They
            act with the vectors of a controller.
        actions: of the baseline.
        seeds: of the episodes.
        frame_stack: observations are so many grey frames; None: as `env` returns them.
    """

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        actions: Actions,
        seeds: Seeds,
        frame_stack: int | None = None,
    ) -> None:
        self.env, self._actions, self._seeds_of = env, actions, seeds
        self._frames = None if frame_stack is None else FrameStack(frame_stack)
        space = observation_space(env.single_observation_space, frame_stack)
        super().__init__(env.num_envs, space, actions.space)

    def reset(self) -> Any:
        """Begin the first episode in each environment; returns observations (N, ...)."""
        self._episodes = np.zeros(self.num_envs, np.int64)
        observations, _ = self.env.reset(seed=self._seeds_of(0))  # type: ignore[arg-type]  # a stub
        self.reset_infos = [{} for _ in range(self.num_envs)]
        return observations if self._frames is None else self._frames.begin(observations)

    def step_async(self, actions: np.ndarray) -> None:
        """Keep the actions (N, ...) for `step_wait`."""
        self._taken = self._actions.vectors(actions)

    def step_wait(self) -> Any:
        """Step; returns observations (N, ...), rewards (N,) float32, dones (N,) bool, N infos."""
        observations, rewards, terminated, truncated, _ = self.env.step(self._taken)
        dones = np.asarray(terminated | truncated)
        if self._frames is not None:
            observations = self._frames.add(observations)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for index in np.flatnonzero(dones):
            infos[index]["terminal_observation"] = observations[index]
            infos[index]["TimeLimit.truncated"] = bool(truncated[index] and not terminated[index])
        if dones.any():
            observations = self._restart(dones, observations)
        return observations, rewards.astype(np.float32), dones, infos

    def _restart(self, mask: np.ndarray, observations: np.ndarray) -> np.ndarray:
        """Begin the next episodes where `mask` (N,) bool is True; returns all observations."""
        self._episodes[mask] += 1
        seeds = [self._seeds_of(int(k))[i] for i, k in enumerate(self._episodes)]
        options = {"reset_mask": mask}
        first, _ = self.env.reset(seed=seeds, options=options)  # type: ignore[arg-type]  # a stub
        if self._frames is not None:
            return self._frames.restart(mask, first)
        wide = mask.reshape(-1, *[1] * (first.ndim - 1))
        return np.where(wide, first, observations)

    def close(self) -> None:  # noqa: D102 - as in the base class, like those below
        self.env.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:  # noqa: D102
        return [getattr(self.env, attr_name)] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:  # noqa: D102
        raise NotImplementedError("the environments share their attributes")

    def env_method(self, *args: Any, **kwargs: Any) -> list[Any]:  # noqa: D102
        raise NotImplementedError("the environments share their methods")

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:  # noqa: D102
        return [False] * self.num_envs


def observation_space(
    single: gymnasium.Space[Any], frame_stack: int | None
) -> gymnasium.Space[Any]:
    """What a baseline observes in environments with observations of the space `single`."""
    if frame_stack is None:
        return single
    height, width, _ = single.shape or (0, 0, 0)
    return Box(0, 255, (frame_stack, height, width), np.uint8)
