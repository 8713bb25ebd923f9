"""One lane of CarRacing as an ordinary Gymnasium environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from worldmodels.envs.carracing.vector import CarRacingVectorEnv, Frames


class CarRacingEnv(gymnasium.Env[Frames, Any]):
    """``gymnasium.make("CarRacing-v3")``, faster; see `CarRacingVectorEnv` for the arguments."""

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
        self._lane = CarRacingVectorEnv(
            1,
            None,
            lap_complete_percent,
            domain_randomize,
            continuous,
            size,
            AutoresetMode.DISABLED,
            render_mode=render_mode,
        )
        self.render_mode = render_mode
        self.observation_space = self._lane.single_observation_space
        self.action_space = self._lane.single_action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Frames, dict[str, Any]]:
        """Begin an episode; ``options={"randomize": False}`` keeps the colours of the last one."""
        super().reset(seed=seed)
        frames, _ = self._lane.reset(seed=[seed], options=options)
        return frames[0], {}

    def step(self, action: Any) -> tuple[Frames, float, bool, bool, dict[str, Any]]:
        """Step; `action` is ``(3,)``, or one of five."""
        frames, rewards, terminated, _, infos = self._lane.step(np.asarray(action)[None])
        info = {"lap_finished": bool(infos["lap_finished"][0])} if infos else {}
        return frames[0], float(rewards[0]), bool(terminated[0]), False, info

    def render(self) -> Any:
        """The frame, or None without a render mode."""
        frames = self._lane.render()
        return None if frames is None else frames[0]

    def get_state(self) -> dict[str, NDArray[Any]]:
        """See `CarRacingVectorEnv.get_state`."""
        return self._lane.get_state()

    def set_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """See `CarRacingVectorEnv.set_state`."""
        self._lane.set_state(state)
