"""An environment that opens an X11 window, and whose frames are what the window shows.

Gymnasium imports it by itself: its id is ``window_env:Window-v0``.
"""

import os
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

Frame = NDArray[np.uint8]


class Window(gymnasium.Env[Frame, NDArray[np.float32]]):
    """Every pixel is 20 times the number of steps. It leaves its window open."""

    observation_space = Box(0, 255, (64, 64, 3), np.uint8)
    action_space = Box(-1, 1, (2,), np.float32)

    def __init__(self) -> None:
        os.environ["SDL_VIDEODRIVER"] = "x11"
        import pygame

        pygame.display.init()
        self._pygame, self._screen = pygame, pygame.display.set_mode((64, 64))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Frame, dict[str, Any]]:
        self._steps = 0
        return self._draw(), {}

    def step(self, action: NDArray[np.float32]) -> tuple[Frame, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        return self._draw(), 0.0, False, False, {}

    def _draw(self) -> Frame:
        self._screen.fill([20 * self._steps] * 3)
        self._pygame.display.flip()
        return np.asarray(self._pygame.surfarray.array3d(self._screen), np.uint8)


gymnasium.register("Window-v0", "window_env:Window")
