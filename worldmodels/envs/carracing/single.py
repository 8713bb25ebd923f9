"""One environment of CarRacing as an ordinary Gymnasium environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from worldmodels.envs.carracing.snapshot import State
from worldmodels.envs.carracing.vector import CarRacingVectorEnv, Frames


class CarRacingEnv(gymnasium.Env[Frames, Any]):
    """CarRacing-v3 behind `gymnasium.Env`.

    Args:
        render_mode, lap_complete_percent, domain_randomize, continuous, size: see
            `CarRacingVectorEnv`.

    Raises:
        WorldModelsError: a size that is not supported.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012  (Gymnasium's)
        "render_modes": CarRacingVectorEnv.metadata["render_modes"],
        "render_fps": CarRacingVectorEnv.metadata["render_fps"],
    }

    def __init__(
        self,
        render_mode: str | None = None,
        lap_complete_percent: float = 0.95,
        domain_randomize: bool = False,
        continuous: bool = True,
        size: int = 96,
    ) -> None:
        self._env = CarRacingVectorEnv(
            1,
            None,
            lap_complete_percent,
            domain_randomize=domain_randomize,
            continuous=continuous,
            size=size,
            autoreset_mode=AutoresetMode.DISABLED,
            render_mode=render_mode,
        )
        self.render_mode = render_mode
        self.observation_space = self._env.single_observation_space
        self.action_space = self._env.single_action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Frames, dict[str, Any]]:
        """Begin an episode.

        Args:
            seed: of the track; None continues with the generator of the last one.
            options: ``{"randomize": False}`` keeps the colours of ``domain_randomize``.

        Returns:
            the observation ``(size, size, 3)`` uint8, and no info.

        Raises:
            WorldModelsError: an unknown option, or a negative seed.
        """
        super().reset(seed=seed)
        frames, _ = self._env.reset(seed=[seed], options=options)
        return frames[0], {}

    def step(self, action: Any) -> tuple[Frames, float, bool, bool, dict[str, Any]]:
        """Advance by 1/50 s.

        Args:
            action: ``(3,)``: steering, gas and brake; or an integer below 5.

        Returns:
            observation ``(size, size, 3)`` uint8, reward, terminated, False, and ``lap_finished``
            when it terminated.

        Raises:
            ResetNeeded: it was never reset.
            WorldModelsError: an action of another shape, or not finite.
            gymnasium.error.InvalidAction: a discrete action that does not exist.
        """
        frames, rewards, terminated, _, infos = self._env.step(np.asarray(action)[None])
        info = {"lap_finished": bool(infos["lap_finished"][0])} if infos else {}
        return frames[0], float(rewards[0]), bool(terminated[0]), False, info

    def render(self) -> Any:
        """The frame ``(size, size, 3)`` uint8, or None without a render mode."""
        frames = self._env.render()
        return None if frames is None else frames[0]

    def get_state(self) -> State:
        """See `CarRacingVectorEnv.get_state`."""
        return self._env.get_state()

    def set_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """See `CarRacingVectorEnv.set_state`."""
        self._env.set_state(state)
