"""A picture environment that stands still while a test looks at, or kills, who simulates it.

Gymnasium imports it by itself; its ids start with ``gate_env:``. The folder that it is given holds
the file ``open`` while it does not stand still, and one file for each process that waits.
"""

import os
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

Frame = NDArray[np.uint8]
STEPS = 12
"""Length of an episode."""
GATE_AT = 6
"""The step at which an episode waits."""


class Gate(gymnasium.Env[Frame, NDArray[np.float32]]):
    """Frames are noise of the seed and the step; the reward depends on the action."""

    def __init__(self, folder: str) -> None:
        self.observation_space = Box(0, 255, (64, 64, 3), np.uint8)
        self.action_space = Box(-1, 1, (3,), np.float32)
        self._folder = Path(folder)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Frame, dict[str, Any]]:
        self._random, self._steps = np.random.default_rng(seed), 0
        return self._frame(), {}

    def step(self, action: NDArray[np.float32]) -> tuple[Frame, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        if self._steps == GATE_AT and not (self._folder / "open").exists():
            (self._folder / f"waits-{os.getpid()}").touch()
            while not (self._folder / "open").exists():
                time.sleep(0.02)
        reward = float(action.sum()) + float(self._random.normal())
        return self._frame(), reward, self._steps == STEPS, False, {}

    def _frame(self) -> Frame:
        small = self._random.integers(0, 256, (8, 8, 3), np.uint8)
        return np.kron(small, np.ones((8, 8, 1), np.uint8))


class Boundless(Gate):
    """A gate whose rewards are `reward` from the step `since` on."""

    def __init__(self, folder: str, reward: float = float("nan"), since: int = 1) -> None:
        super().__init__(folder)
        self._reward, self._since = reward, since

    def step(self, action: NDArray[np.float32]) -> tuple[Frame, float, bool, bool, dict[str, Any]]:
        frame, reward, terminated, truncated, info = super().step(action)
        if self._steps >= self._since:
            reward = self._reward
        return frame, reward, terminated, truncated, info


gymnasium.register("Gate-v0", "gate_env:Gate")
gymnasium.register("Boundless-v0", "gate_env:Boundless")
