"""Actions that an environment repeats: sticky actions and frame skips."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv, VectorWrapper

from worldmodels.envs.carracing.vector import CarRacingVectorEnv
from worldmodels.envs.streams import Stream, generator_of
from worldmodels.envs.vector import VectorStep, beginning


class RepeatedActions(VectorWrapper[Any, Any, Any, Any, Any]):
    """Takes several steps of N environments, without autoreset, for each action.

    Each of these steps repeats, with some probability, the action of the step before it in place of
    the one that is given (sticky actions: Machado et al. 2018, "Revisiting the Arcade Learning
    Environment"); the first step of an episode does not. What is repeated in an episode depends on
    its seed alone.

    Args:
        env: the environments; those that have ended stay as they are until the next reset.
        sticky: the probability.
        skip: steps of the simulator for each action; their rewards are added up. An episode may
            end in any of them.
        together: each step of `env` is all steps of an action, so that none is sticky.
    """

    def __init__(
        self, env: VectorEnv[Any, Any, Any], sticky: float, skip: int, together: bool = False
    ) -> None:
        super().__init__(env)
        self._sticky, self._calls = sticky, 1 if together else skip
        # Only the last step of an action is observed.
        self._between = {"draw": False} if isinstance(env, CarRacingVectorEnv) else {}
        self._generators = [np.random.default_rng() for _ in range(env.num_envs)]
        self.metadata = {**env.metadata}
        if "render_fps" in self.metadata:
            self.metadata["render_fps"] /= skip
        self._begun = np.zeros(env.num_envs, bool)  # (N,) the episode has had an action
        self._last: np.ndarray | None = None  # actions of the last step, shaped as those given

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Begin episodes; see `worldmodels.envs.engines.make_vector_env`."""
        seeds, chosen = beginning(seed, options, self.num_envs)
        for index in np.flatnonzero(chosen):
            self._generators[index] = generator_of(seeds[index], Stream.REPETITIONS)
        self._begun &= ~chosen
        return self.env.reset(seed=seeds, options=options)  # type: ignore[arg-type]  # gymnasium's stub

    def step(self, actions: Any) -> VectorStep:
        """Take the steps of one action (N, ...) for each environment."""
        given, rewards = np.asarray(actions), np.zeros(self.num_envs)
        for left in reversed(range(self._calls)):
            options = self._between if left else {}
            frames, reward, *ends = self.env.step(self._taken(given), **options)
            rewards += reward
        return (frames, rewards, *ends)

    def _taken(self, given: np.ndarray) -> np.ndarray:
        """The actions of the next step."""
        if not self._sticky:
            return given
        drawn = np.array([generator.random() for generator in self._generators])  # (N,)
        repeated = (drawn < self._sticky) & self._begun
        if self._last is None:
            self._last = given
        repeated = repeated.reshape(-1, *[1] * (given.ndim - 1))
        self._last = np.where(repeated, self._last, given)
        self._begun[:] = True
        return self._last
