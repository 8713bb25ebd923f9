"""A picture environment whose state can be read off its frames, for what CarRacing cannot show.

Gymnasium imports it by itself, in environment processes too: its ids start with ``picture_env:``.
"""

import multiprocessing
import os
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Space
from numpy.typing import NDArray

Frame = NDArray[np.uint8]


class Countdown(gymnasium.Env[Frame, Any]):
    """Terminates after `seed` steps; every pixel of a frame is the number of steps simulated.

    Its process dies at the step `dies_at` if that is also the last one; at 0, as it starts. Infos
    tell what was done.
    """

    def __init__(self, dies_at: int | None = None, actions: Space[Any] | None = None) -> None:
        self.observation_space = Box(0, 255, (8, 8, 3), np.uint8)
        self.action_space = actions or Box(-1, 1, (2,), np.float32)
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
        return self._frame(), 1.0, self._steps == self._length, False, self._info(action)

    def _info(self, action: Any) -> dict[str, Any]:
        return {"steps": self._steps, "done": np.asarray(action)}


class Console(Countdown):
    """A countdown beside other observations; the step that ends it shows nothing, as ViZDoom's."""

    def __init__(self, pictures: int = 1) -> None:
        super().__init__()
        spaces: dict[str, Space[Any]] = {"health": Box(0, 1, (1,), np.float32)}
        spaces |= {f"screen-{number}": self.observation_space for number in range(pictures)}
        self.observation_space = Dict(spaces)  # type: ignore[assignment]  # not a Box here

    def _frame(self) -> Any:
        shown = self._steps if self._steps < (self._length or 0) else 0
        spaces = self.observation_space.spaces  # type: ignore[attr-defined]  # a Dict
        return {name: np.full(space.shape, shown, space.dtype) for name, space in spaces.items()}


class Numbered(Countdown):
    """A countdown whose every pixel is (seed, number of steps simulated, 0)."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = Box(0, 255, (16, 16, 3), np.uint8)

    def _frame(self) -> Frame:
        return np.full((16, 16, 3), (self._length, self._steps, 0), np.uint8)


gymnasium.register("Countdown-v0", "picture_env:Countdown")
gymnasium.register("Numbered-v0", "picture_env:Numbered")
gymnasium.register("Console-v0", "picture_env:Console")
