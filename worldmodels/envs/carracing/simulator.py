"""The simulator on the CPU: the state, courses and frames of N environments, and a step of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from worldmodels.envs.carracing import game, picture
from worldmodels.envs.carracing.courses import Course, Courses, CourseTable
from worldmodels.envs.carracing.state import BY_TILE, Envs, empty_envs, with_room

Frames = NDArray[np.uint8]

CORES: int = vars(numba.config)["NUMBA_NUM_THREADS"]


class CpuSimulator:
    """N environments in this machine's memory.

    Args:
        num_envs: number of environments N.
        size: side of the frames, 64 or 96.
        percent: share of the tiles after which a lap counts.
        threads: how many threads compute.
    """

    def __init__(self, num_envs: int, size: int, percent: float, threads: int) -> None:
        self._percent, self._threads = percent, min(threads, CORES)
        self._envs = empty_envs(num_envs, 1)
        self._table = CourseTable()
        self._frames = np.zeros((num_envs, size, size, 3), np.uint8)
        self._draw = picture.draw_small if size == picture.SMALL else picture.draw_full

    def begin(self, envs: Sequence[int], courses: Sequence[Course]) -> None:
        """Put the cars of `envs` at the start of `courses`, one each."""
        self._table.assign(self._envs.course, envs, courses)
        self._widen()
        chosen = np.zeros(len(self._frames), np.bool_)
        chosen[envs] = True
        numba.set_num_threads(self._threads)
        game.reset(self._envs, self._table.courses, chosen, self._percent)

    def controls(self, actions: Any) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Actions as `step` takes them, and which environments' are finite ``(N,)``.

        Args:
            actions: ``(N, 3)``; a float64 array or CPU tensor is used without a copy.
        """
        # Another memory layout, or memory that is read-only, would compile the kernel again.
        controls = np.require(actions, np.float64, ["C", "W"])
        return controls, np.asarray(np.isfinite(controls).all(axis=1))

    def step(
        self, controls: Any, active: NDArray[np.bool_]
    ) -> tuple[NDArray[np.float64], NDArray[np.int8]]:
        """One step of the `active` environments; rewards and ends, see `game.step`."""
        rewards, ends = np.zeros(len(active), np.float64), np.zeros(len(active), np.int8)
        numba.set_num_threads(self._threads)
        game.step(self._envs, self._table.courses, controls, active, self._percent, rewards, ends)
        return rewards, ends

    def draw(self, chosen: NDArray[np.bool_]) -> None:
        """Draw the frames of the `chosen` environments."""
        numba.set_num_threads(self._threads)
        self._draw(self._envs, self._table.courses, chosen, self._frames)

    def frames(self, copy: bool) -> Frames:
        """What was drawn last, ``(N, size, size, 3)``: a copy, or the memory that is drawn into."""
        return self._frames.copy() if copy else self._frames

    def keep(self, mask: NDArray[np.bool_]) -> None:
        """Drop the environments where `mask` (N,) is False."""
        self._envs = Envs._make(array[mask] for array in self._envs)
        self._frames = self._frames[mask]

    def get_state(self, envs: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Copies of the arrays of `envs`; see `snapshot.State`."""
        courses, course = self._table.select(self._envs.course[envs])
        state = {f"courses.{name}": array for name, array in courses._asdict().items()}
        tiles = courses.tiles.shape[1]
        for name, array in self._envs._asdict().items():
            kept = array[envs, :tiles] if name in BY_TILE else array[envs]
            state[f"envs.{name}"] = course if name == "course" else kept
        return state | {"frames": self._frames[envs]}

    def set_state(self, state: Mapping[str, NDArray[Any]], envs: NDArray[np.int64]) -> None:
        """Overwrite `envs` with copies of the arrays that `get_state` gave.

        Args:
            state: of as many environments, or of one, which is copied to all of `envs`.
            envs: indices of different environments.
        """
        courses = Courses._make(state[f"courses.{name}"] for name in Courses._fields)
        self._table.adopt(self._envs.course, envs, courses, state["envs.course"])
        self._widen()
        for name, array in self._envs._asdict().items():
            if name in BY_TILE:
                array[envs] = False
                array[envs, : courses.tiles.shape[1]] = state[f"envs.{name}"]
            elif name != "course":
                array[envs] = state[f"envs.{name}"]
        self._frames[envs] = state["frames"]

    def _widen(self) -> None:
        tiles = self._table.courses.tiles.shape[1]
        if self._envs.visited.shape[1] < tiles:
            self._envs = with_room(self._envs, tiles)
