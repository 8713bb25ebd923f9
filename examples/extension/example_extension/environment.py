"""Catch: a ball falls, a paddle below it moves left or right; a ball that is missed ends it."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

Frame = NDArray[np.uint8]
SIDE, CELL = 12, 4
"""Cells of the field, and pixels of a cell."""


class Catch(gymnasium.Env[Frame, np.int64]):
    """Observations are uint8 (48, 48, 3); actions move the paddle left, not at all, or right.

    A ball that is caught is worth 1, and the next one falls; one that is missed terminates.
    """

    observation_space = Box(0, 255, (SIDE * CELL, SIDE * CELL, 3), np.uint8)
    action_space = Discrete(3)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Frame, dict[str, Any]]:
        """Begin with the paddle in the middle."""
        super().reset(seed=seed)
        self._paddle = SIDE // 2
        self._drop()
        return self._frame(), {}

    def step(self, action: np.int64) -> tuple[Frame, float, bool, bool, dict[str, Any]]:
        """Move the paddle, and the ball down by a cell."""
        self._paddle = int(np.clip(self._paddle + int(action) - 1, 1, SIDE - 2))
        self._row += 1
        landed = self._row == SIDE - 1
        caught = landed and abs(self._column - self._paddle) <= 1
        frame = self._frame()
        if caught:
            self._drop()
        return frame, float(caught), landed and not caught, False, {}

    def _drop(self) -> None:
        self._row, self._column = 0, int(self.np_random.integers(SIDE))

    def _frame(self) -> Frame:
        cells = np.zeros((SIDE, SIDE, 3), np.uint8)
        cells[-1, self._paddle - 1 : self._paddle + 2] = (80, 160, 255)
        cells[self._row, self._column] = (255, 200, 80)
        return cells.repeat(CELL, axis=0).repeat(CELL, axis=1)


gymnasium.register("Catch-v0", "example_extension.environment:Catch")
