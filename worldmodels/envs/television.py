"""A noisy television: a part of the picture that an action turns to noise.

The noise cannot be predicted and never repeats, so a controller whose reward is novelty, or the
error of a prediction, may always choose that action (Burda et al. 2018, "Large-Scale Study of
Curiosity-Driven Learning", section 5).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv, VectorWrapper

from worldmodels.envs.streams import Stream, generator_of
from worldmodels.envs.vector import VectorStep, beginning
from worldmodels.errors import ConfigError

ON = 0.5
"""The television is on while its action is above this: three quarters of the way from -1 to 1, half
of that from 0 to 1."""
SHARE = 4
"""The side of the frame is so many times that of the square."""


class NoisyTelevision(VectorWrapper[Any, Any, Any, Any, Any]):
    """Shows a square in the upper left corner of the frames of N environments, without autoreset.

    While the television is on, each of the square's bytes is drawn anew in each step, uniform in
    0 to 255, by a generator that is seeded by the episode's seed; while it is off, and in the first
    frame of an episode, all are 0. Of an episode that has ended the last square stays.

    Args:
        env: environments with frames (N, H, W, 3) and actions (N, A).
        action: number of the action that turns it on, where it is above `ON`.

    Raises:
        ConfigError: there is no such action.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], action: int) -> None:
        super().__init__(env)
        (size,) = env.single_action_space.shape or ()
        if action >= size:
            raise ConfigError(
                f"env.television={action}: there are {size} actions; choose 0 to {size - 1}, or"
                " null"
            )
        height, width, _ = env.single_observation_space.shape or ()
        self._action = action
        self._generators = [np.random.default_rng() for _ in range(env.num_envs)]
        shape = env.num_envs, height // SHARE, width // SHARE, 3
        self._square = np.zeros(shape, np.uint8)
        self._ended = np.zeros(env.num_envs, bool)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Begin episodes; see `worldmodels.envs.engines.make_vector_env`."""
        seeds, chosen = beginning(seed, options, self.num_envs)
        for index in np.flatnonzero(chosen):
            self._generators[index] = generator_of(seeds[index], Stream.TELEVISION)
        self._square[chosen] = 0
        self._ended &= ~chosen
        frames, infos = self.env.reset(seed=seeds, options=options)  # type: ignore[arg-type]  # gymnasium's stub
        return self._shown(frames), infos

    def step(self, actions: Any) -> VectorStep:
        """Take one step in each environment."""
        frames, rewards, terminated, truncated, infos = self.env.step(actions)
        on = np.asarray(actions)[:, self._action] > ON
        running = ~self._ended
        self._square[running & ~on] = 0
        for index in np.flatnonzero(running & on):
            drawn = self._generators[index].integers(0, 256, self._square[index].shape, np.uint8)
            self._square[index] = drawn
        self._ended = terminated | truncated
        return self._shown(frames), rewards, terminated, truncated, infos

    def _shown(self, frames: Any) -> Any:
        """The frames (N, H, W, 3) with the square."""
        height, width = self._square.shape[1:3]
        if isinstance(frames, np.ndarray):
            shown = frames.copy()
            shown[:, :height, :width] = self._square
            return shown
        shown = frames.clone()  # a tensor on a GPU
        shown[:, :height, :width] = shown.new_tensor(self._square)
        return shown
