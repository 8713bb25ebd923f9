"""Environments simulated by EnvPool, in C++ threads of this process."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from worldmodels.envs.vector import Actions, Observations, VectorStep, check_actions, check_seeds
from worldmodels.errors import ConfigError, WorldModelsError


def envpool_has(env_id: str) -> bool:
    """Whether EnvPool is installed here and simulates this environment."""
    if importlib.util.find_spec("envpool") is None:
        return False
    return env_id in importlib.import_module("envpool").list_all_envs()


class EnvPoolVectorEnv(VectorEnv[Observations, Actions, NDArray[Any]]):
    """N copies of an EnvPool environment, in lockstep, without autoreset.

    Episodes are a function of the seed, but drawn and computed by EnvPool: they are not
    Gymnasium's episodes of the same seed. Of CarRacing's tracks two thirds are Gymnasium's (26 of
    the seeds 0..39 in EnvPool 1.2.5), the others differ, and edges are not antialiased. An ended
    environment is frozen: stepping it simulates nothing and returns its last observation, reward 0
    and its flags.

    Args:
        env_id: an id of `envpool.list_all_envs`.
        num_envs: number of environments N.
        threads: how many threads simulate them.
        max_steps: time limit; the step that reaches it is truncated.
        kwargs: further arguments of `envpool.make`.

    Raises:
        ConfigError: EnvPool cannot make this environment.
    """

    def __init__(
        self,
        env_id: str,
        num_envs: int,
        threads: int,
        max_steps: int,
        kwargs: Mapping[str, Any],
    ) -> None:
        self._envpool = importlib.import_module("envpool")
        self._env_id = env_id
        self._threads = threads
        self._config = {**kwargs, "max_episode_steps": max_steps}
        self._pool: Any = None
        try:
            spec = self._envpool.make_spec(env_id, **self._config)
        except (AssertionError, TypeError, ValueError) as error:
            reason = str(error).partition("\n")[0]
            raise ConfigError(
                f"env.id={env_id}: EnvPool cannot make it ({reason}): check env.id and env.kwargs, "
                "or use env.engine=gymnasium"
            ) from error
        with _float64_bounds_ignored():
            self.single_observation_space = spec.gymnasium_observation_space
            self.single_action_space = spec.gymnasium_action_space
        self.num_envs = num_envs
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.metadata = {"autoreset_mode": AutoresetMode.DISABLED}
        self._observations: Observations = np.empty(0)
        self._terminated = np.zeros(num_envs, dtype=np.bool_)
        self._truncated = np.zeros(num_envs, dtype=np.bool_)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Observations, dict[str, Any]]:
        """Start the episodes of these seeds, one for each environment.

        Raises:
            WorldModelsError: seeds that do not fit the environments, or options: EnvPool has none.
        """
        seeds = check_seeds(seed, self.num_envs)
        if options:
            raise WorldModelsError(
                f"EnvPool cannot reset with options {sorted(options)}: use env.engine=gymnasium"
            )
        # EnvPool ignores the seeds of `reset`, and a second reset continues with each environment's
        # generator; only a new pool starts the episodes of given seeds (about 8 ms an environment,
        # nearly all of it the making of the tracks).
        with _float64_bounds_ignored():
            self._pool = self._envpool.make(
                self._env_id,
                env_type="gymnasium",
                num_envs=self.num_envs,
                num_threads=self._threads,
                seed=seeds,
                **self._config,
            )
            self._observations = np.array(self._pool.reset()[0])  # a copy that may be written
        self._terminated[:] = False
        self._truncated[:] = False
        return self._observations.copy(), {}

    def step(self, actions: Actions) -> VectorStep:
        """Step the environments that have not ended; ``actions (N, A)``.

        Raises:
            ResetNeeded: nothing was reset yet, or the environments are closed.
            WorldModelsError: actions of another shape, or not finite.
        """
        if self._pool is None:
            raise ResetNeeded("Cannot step environments before reset or after close")
        actions = check_actions(actions, self.action_space)
        rewards = np.zeros(self.num_envs, dtype=np.float64)
        # EnvPool restarts an ended environment when it is stepped again, so only the others are.
        running = np.flatnonzero(~(self._terminated | self._truncated)).astype(np.int32)
        if running.size:
            observations, step_rewards, terminated, truncated, info = self._pool.step(
                actions[running], running
            )
            indices = info["env_id"]  # the order in which the environments of this batch came back
            self._observations[indices] = observations
            rewards[indices] = step_rewards
            self._terminated[indices] = terminated
            self._truncated[indices] = truncated
        return (
            self._observations.copy(),
            rewards,
            self._terminated.copy(),
            self._truncated.copy(),
            {},
        )

    def close_extras(self, **kwargs: Any) -> None:
        """Drop the pool, which joins its threads."""
        self._pool = None


@contextmanager
def _float64_bounds_ignored() -> Iterator[None]:
    """EnvPool makes float32 boxes of float64 bounds, which Gymnasium warns of; nothing is lost."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*precision lowered by casting", UserWarning)
        yield
