"""Environments simulated by Gymnasium, one after another in this process or each in its own.

Imports neither torch nor the models, because each environment's process imports this module.
"""

from __future__ import annotations

import atexit
import os
import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any

import gymnasium
from gymnasium.spaces import Dict
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorWrapper
from numpy.typing import NDArray

from worldmodels.envs.vector import (
    Actions,
    Observations,
    VectorStep,
    check_actions,
    check_seeds,
    is_picture,
)
from worldmodels.errors import ConfigError, WorkerError, install

_TERMINATED = "worldmodels.terminated"
_TRUNCATED = "worldmodels.truncated"


class _SingleEnv(gymnasium.Wrapper[Observations, Any, Observations, Any]):
    """One episode, frozen where it ends until the next reset.

    With autoreset disabled, Gymnasium's vector environments assert that no ended environment is
    stepped, but environments that run in lockstep end at different times. So this wrapper always
    returns False flags, and the real ones in `info`, from which `GymnasiumVectorEnv` takes them.
    """

    def __init__(self, env: gymnasium.Env[Observations, Any]) -> None:
        super().__init__(env)
        self._terminated = False
        self._truncated = False
        self._last_observation: Observations

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observations, dict[str, Any]]:
        self._last_observation, info = self.env.reset(seed=seed, options=options)
        self._terminated = self._truncated = False
        return self._last_observation, info

    def step(self, action: Any) -> tuple[Observations, float, bool, bool, dict[str, Any]]:
        reward = 0.0
        info: dict[str, Any] = {}
        if not (self._terminated or self._truncated):
            observation, step_reward, terminated, truncated, info = self.env.step(action)
            self._last_observation, reward = observation, float(step_reward)
            self._terminated, self._truncated = bool(terminated), bool(truncated)
        flags = {_TERMINATED: self._terminated, _TRUNCATED: self._truncated}
        return self._last_observation, reward, False, False, {**info, **flags}


class _Screen(gymnasium.ObservationWrapper[Observations, Any, Any]):
    """The one picture among several observations; of a step that has none, the one before.

    ViZDoom returns zeros in the step that ends an episode, because its game has ended by then.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        assert isinstance(env.observation_space, Dict)
        spaces = env.observation_space.spaces
        pictures = [name for name, space in spaces.items() if is_picture(space)]
        if len(pictures) != 1:
            raise ConfigError(
                f"env.id: {len(pictures)} of its observations ({', '.join(spaces)}) are uint8"
                " pictures (H, W, 3): supported are environments with one"
            )
        self._name = pictures[0]
        self.observation_space = spaces[self._name]
        self._last: Observations | None = None

    def reset(self, **kwargs: Any) -> tuple[Observations, dict[str, Any]]:
        self._last = None
        return super().reset(**kwargs)

    def observation(self, observation: Any) -> Observations:
        picture: Observations = observation[self._name]
        if self._last is None or picture.any():
            self._last = picture
        return self._last


class GymnasiumVectorEnv(VectorWrapper[Observations, Actions, Observations, Actions, NDArray[Any]]):
    """N copies of a Gymnasium environment, in lockstep, without autoreset.

    `reset(seed=[...])` gives environment i bitwise the episode of
    ``gymnasium.make(id).reset(seed=s_i)``, and ``options={"reset_mask": (N,) bool}`` resets only
    these environments. An ended environment is frozen: stepping it simulates nothing and returns
    its last observation, reward 0 and its flags.

    Args:
        env_id: a registered Gymnasium id.
        num_envs: number of environments N.
        processes: 1 simulates all environments here; more start one process for each environment,
            of which at most so many compute at a time.
        max_steps: time limit; the step that reaches it is truncated.
        kwargs: further arguments of `gymnasium.make`.

    Raises:
        ConfigError: the environment cannot be made, or, in `reset`, cannot begin an episode.
        WorkerError: an environment's process died; also raised by `reset` and `step`.
    """

    def __init__(
        self,
        env_id: str,
        num_envs: int,
        processes: int,
        max_steps: int,
        kwargs: Mapping[str, Any],
    ) -> None:
        make_single_env = partial(_make_single_env, env_id, max_steps, dict(kwargs), os.getpid())
        try:
            super().__init__(
                SyncVectorEnv([make_single_env] * num_envs, autoreset_mode=AutoresetMode.DISABLED)
                if processes == 1
                else AsyncVectorEnv(
                    [make_single_env] * num_envs,
                    # Forked children would inherit torch and the display in an inconsistent state.
                    context="spawn",
                    autoreset_mode=AutoresetMode.DISABLED,
                    max_concurrency=processes,
                )
            )
        except ModuleNotFoundError as error:
            reason = str(error).partition(". ")[0]
            raise ConfigError(
                f"env.id={env_id}: {reason}: install what has it (for Doom: {install('doom')})"
            ) from error
        except ConfigError:
            raise
        except (EOFError, ConnectionError) as error:
            raise WorkerError(
                f"env.id={env_id}: an environment's process died as it started (out of memory, or a"
                ' script without `if __name__ == "__main__":`?); use fewer environments, or one'
                " process"
            ) from error
        except Exception as error:  # an environment may raise any
            raise _refusal(env_id, kwargs, "be made", error) from error
        self._env_id, self._kwargs = env_id, kwargs
        # At an exit without `close` they must be killed: they ignore the SIGTERM by which Python
        # ends its children.
        self._kill = partial(_kill, getattr(self.env, "processes", []))
        atexit.register(self._kill)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Observations, dict[str, Any]]:
        """Start the episodes of these seeds, one for each environment."""
        seeds: Any = check_seeds(seed, self.num_envs)  # VectorWrapper's hint has no list
        with self._naming_dead_processes():
            try:
                # A copy, because Gymnasium takes the mask out of the dictionary.
                return self.env.reset(seed=seeds, options=None if options is None else {**options})
            except (EOFError, ConnectionError):
                raise
            except Exception as error:  # an environment may open its files here
                raise _refusal(self._env_id, self._kwargs, "begin an episode", error) from error

    def step(self, actions: Actions) -> VectorStep:
        """Step the environments that have not ended; ``actions (N, A)``."""
        actions = check_actions(actions, self.action_space)
        with self._naming_dead_processes():
            observations, rewards, _, _, infos = self.env.step(actions)
        flags = {name: infos.pop(name) for name in (_TERMINATED, _TRUNCATED)}
        for name in flags:
            del infos[f"_{name}"]  # Gymnasium's mask of the environments that sent it: all of them
        return observations, rewards, flags[_TERMINATED], flags[_TRUNCATED], infos

    def close(self, **kwargs: Any) -> None:
        """End the environments and their processes; may be called again."""
        super().close(**kwargs)
        atexit.unregister(self._kill)

    @contextmanager
    def _naming_dead_processes(self) -> Iterator[None]:
        # Gymnasium prints each environment's error, which is raised as well.
        level = gymnasium.logger.min_level
        gymnasium.logger.min_level = gymnasium.logger.ERROR + 1
        try:
            yield
        except (EOFError, ConnectionError) as error:
            assert isinstance(self.env, AsyncVectorEnv)  # only these have pipes
            ended = wait([process.sentinel for process in self.env.processes], timeout=1.0)
            dead = [index for index, p in enumerate(self.env.processes) if p.sentinel in ended]
            # Gymnasium would wait for answers that never come, also when it closes.
            self._kill()
            self.closed = True
            raise WorkerError(
                f"environments {dead}: their processes died (out of memory?): "
                "use fewer environments, or one process"
            ) from error
        finally:
            gymnasium.logger.min_level = level


def _make_single_env(
    env_id: str, max_steps: int, kwargs: dict[str, Any], parent: int
) -> _SingleEnv:
    if os.getpid() != parent:
        # Ctrl-C and a scheduler's SIGTERM reach every process at once, but only the parent handles
        # them: it finishes its step. If the parent dies, the closed pipe ends the environment.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    env: gymnasium.Env[Observations, Any] = gymnasium.make(
        env_id, max_episode_steps=max_steps, disable_env_checker=True, **kwargs
    )
    return _SingleEnv(_Screen(env) if isinstance(env.observation_space, Dict) else env)


def _refusal(env_id: str, kwargs: Mapping[str, Any], what: str, error: Exception) -> ConfigError:
    reason = str(error).strip().partition("\n")[0]
    remedy = f"check env.id and env.kwargs={dict(kwargs)}"
    if not os.environ.get("DISPLAY") and re.search("display|video|x11", reason, re.IGNORECASE):
        remedy = "set env.needs_display=true if it opens a window"
    return ConfigError(
        f"env.id={env_id}: it cannot {what} ({type(error).__name__}: {reason}): {remedy}"
    )


def _kill(processes: Sequence[BaseProcess]) -> None:
    for process in processes:
        process.kill()
        process.join()
