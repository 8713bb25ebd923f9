"""Train PPO of Stable-Baselines3 on the native CarRacing, through Gymnasium's vector interface.

pip install stable-baselines3
python examples/sb3_ppo.py --steps 20000
"""

import argparse
from typing import Any

import gymnasium
import numpy as np
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecEnv, VecMonitor

import worldmodels.envs  # noqa: F401  (registers worldmodels/CarRacing-v3)


class VectorEnvAdapter(VecEnv):
    """A Gymnasium vector environment with ``autoreset_mode="SameStep"`` as a VecEnv.

    Both reset an environment in the step in which it ends, but the infos of a VecEnv are a list,
    and ``terminal_observation`` is what Gymnasium calls ``final_obs``.
    """

    def __init__(self, env: gymnasium.vector.VectorEnv[Any, Any, Any]) -> None:
        self.env = env
        super().__init__(env.num_envs, env.single_observation_space, env.single_action_space)

    def reset(self) -> Any:
        """Start episodes of the seeds that `seed` set; returns observations (N, 64, 64, 3)."""
        observations, _ = self.env.reset(seed=self._seeds)  # type: ignore[arg-type]  # a stub
        self._reset_seeds()
        return observations

    def step_async(self, actions: Any) -> None:
        """Keep the actions (N, 3) for `step_wait`."""
        self._actions = actions

    def step_wait(self) -> Any:
        """Step; returns observations, rewards and dones (N,), and N infos."""
        observations, rewards, terminated, truncated, infos = self.env.step(self._actions)
        dones = terminated | truncated
        listed: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for i in np.flatnonzero(dones):
            listed[i]["terminal_observation"] = infos["final_obs"][i]
            listed[i]["TimeLimit.truncated"] = bool(truncated[i] and not terminated[i])
        return observations, rewards.astype(np.float32), dones, listed

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


def main() -> None:
    """Train, and print the progress as Stable-Baselines3 does."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20_000, help="of all environments together")
    parser.add_argument("--num-envs", type=int, default=16)
    options = parser.parse_args()
    env = gymnasium.make_vec(
        "worldmodels/CarRacing-v3", options.num_envs, size=64, autoreset_mode="SameStep"
    )
    model = PPO("CnnPolicy", VecMonitor(VectorEnvAdapter(env)), n_steps=64, n_epochs=4, verbose=1)
    model.learn(options.steps)


if __name__ == "__main__":
    main()
