"""Lanes on this machine's cores: their state, courses and frames, and what is done to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from worldmodels.envs.carracing import game, picture
from worldmodels.envs.carracing.courses import Course, Courses, CourseTable
from worldmodels.envs.carracing.state import Lanes, empty_lanes, with_room

Frames = NDArray[np.uint8]

CORES: int = vars(numba.config)["NUMBA_NUM_THREADS"]


class CpuSimulator:
    """N lanes in this machine's memory.

    Args:
        lanes: their number N.
        size: side of the frames, 64 or 96.
        percent: share of the tiles after which a lap counts.
        threads: how many threads compute.
    """

    def __init__(self, lanes: int, size: int, percent: float, threads: int) -> None:
        self._percent, self._threads = percent, min(threads, CORES)
        self._lanes = empty_lanes(lanes, 1)
        self._table = CourseTable()
        self._frames = np.zeros((lanes, size, size, 3), np.uint8)
        self._draw = picture.draw_small if size == picture.SMALL else picture.draw_full

    def begin(self, lanes: Sequence[int], courses: Sequence[Course]) -> None:
        """Put the cars of `lanes` at the start of `courses`, one each."""
        self._table.assign(self._lanes.course, lanes, courses)
        tiles = self._table.courses.tiles.shape[1]
        if self._lanes.visited.shape[1] < tiles:
            self._lanes = with_room(self._lanes, tiles)
        chosen = np.zeros(len(self._frames), np.bool_)
        chosen[lanes] = True
        numba.set_num_threads(self._threads)
        game.reset(self._lanes, self._table.courses, chosen, self._percent)

    def controls(self, actions: Any) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Actions ``(N, 3)`` as `step` takes them, and which lanes' are finite."""
        controls = np.asarray(actions, np.float64)
        return controls, np.asarray(np.isfinite(controls).all(axis=1))

    def step(
        self, controls: Any, active: NDArray[np.bool_]
    ) -> tuple[NDArray[np.float64], NDArray[np.int8]]:
        """One step of the `active` lanes; rewards and ends, see `game.step`."""
        rewards, ends = np.zeros(len(active), np.float64), np.zeros(len(active), np.int8)
        numba.set_num_threads(self._threads)
        game.step(self._lanes, self._table.courses, controls, active, self._percent, rewards, ends)
        return rewards, ends

    def draw(self, chosen: NDArray[np.bool_]) -> None:
        """Draw what the `chosen` lanes see."""
        numba.set_num_threads(self._threads)
        self._draw(self._lanes, self._table.courses, chosen, self._frames)

    def frames(self) -> Frames:
        """A copy of what was drawn last, ``(N, size, size, 3)``."""
        return self._frames.copy()

    def keep(self, mask: NDArray[np.bool_]) -> None:
        """Drop the lanes where `mask` (N,) is False."""
        self._lanes = Lanes._make(array[mask] for array in self._lanes)
        self._frames = self._frames[mask]

    def get_state(self) -> dict[str, NDArray[Any]]:
        """Copies of all arrays by name."""
        state = {f"lanes.{name}": array.copy() for name, array in self._lanes._asdict().items()}
        for name, array in self._table.courses._asdict().items():
            state[f"courses.{name}"] = array.copy()
        return state | {"frames": self._frames.copy()}

    def set_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take copies of the arrays that `get_state` gave."""
        self._lanes = Lanes._make(state[f"lanes.{name}"].copy() for name in Lanes._fields)
        self._table.replace(
            Courses._make(state[f"courses.{name}"].copy() for name in Courses._fields)
        )
        self._frames = state["frames"].copy()
