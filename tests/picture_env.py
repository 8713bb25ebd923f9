"""A picture environment whose state can be read off its frames, for what CarRacing cannot show.

Gymnasium imports it by itself, in lane processes too: its ids start with ``picture_env:``.
"""

import multiprocessing
import os
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

Frame = NDArray[np.uint8]


class Countdown(gymnasium.Env[Frame, Any]):
    """Terminates after `seed` steps; every pixel of a frame is the number of steps simulated.

    Its process dies at the step `dies_at` if that is also the last one; at 0, as it starts.
    """

    def __init__(self, dies_at: int | None = None, discrete: bool = False) -> None:
        self.observation_space = Box(0, 255, (8, 8, 3), np.uint8)
        self.action_space = Discrete(2) if discrete else Box(-1, 1, (2,), np.float32)
        self._dies_at = dies_at
        if dies_at == 0 and multiprocessing.parent_process() is not None:
            os._exit(1)

    def _frame(self) -> Frame:
        return np.full((8, 8, 3), self._steps, dtype=np.uint8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Frame, dict[str, Any]]:
        self._length = seed
        self._steps = 0
        return self._frame(), {}

    def step(self, action: Any) -> tuple[Frame, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        if self._steps == self._dies_at == self._length:
            os._exit(1)
        return self._frame(), 1.0, self._steps == self._length, False, {"steps": self._steps}


gymnasium.register("Countdown-v0", "picture_env:Countdown")
