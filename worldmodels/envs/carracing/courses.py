"""Courses: tracks as the kernels read them. Environments with the same track share one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from gymnasium.utils import seeding
from numpy.typing import NDArray

from worldmodels.envs.carracing.contacts import SIDE, Ground, make_ground
from worldmodels.envs.carracing.picture import COLORS, palette
from worldmodels.envs.carracing.track import DEFAULT_COLORS, Colors, Track, draw_colors, draw_track

_KEPT = 256
"""Courses remembered by seed; the candidates of a generation share a few."""


class Courses(NamedTuple):
    """K courses, padded to the longest: at most T tiles. `state.Envs.course` has the row of each
    environment.

    Args:
        tiles: ``(K, T, 4, 2)`` float32.
        counts: ``(K,)`` int32, tiles of each.
        start: ``(K, 3)`` float64, angle and position of the car.
        cells: ``(K, cells + 1)`` int16; see `contacts.Ground`.
        near: ``(K, most)`` int16; see `contacts.Ground`.
        borders: ``(K, T, 4, 2)`` float32.
        has_border: ``(K, T)`` bool.
        palette: ``(K, 10)`` uint32; see `picture.palette`.
    """

    tiles: NDArray[np.float32]
    counts: NDArray[np.int32]
    start: NDArray[np.float64]
    cells: NDArray[np.int16]
    near: NDArray[np.int16]
    borders: NDArray[np.float32]
    has_border: NDArray[np.bool_]
    palette: NDArray[np.uint32]


@dataclass(frozen=True)
class Course:
    """What a seed gives: a track, its colours, and the generator after they were drawn."""

    track: Track
    ground: Ground
    colors: Colors
    generator: dict[str, Any]


def empty_courses(count: int, tiles: int = 1, near: int = 1) -> Courses:
    """Zeroed courses with room for so many tiles and entries of `near`."""
    return Courses(
        np.zeros((count, tiles, 4, 2), np.float32),
        np.zeros(count, np.int32),
        np.zeros((count, 3), np.float64),
        np.zeros((count, SIDE * SIDE + 1), np.int16),
        np.zeros((count, near), np.int16),
        np.zeros((count, tiles, 4, 2), np.float32),
        np.zeros((count, tiles), np.bool_),
        np.zeros((count, COLORS), np.uint32),
    )


def draw_course(rng: np.random.Generator, colors: Colors | None) -> Course:
    """A random course: colours unless they are given, then the track, as Gymnasium draws them."""
    if colors is None:
        colors = draw_colors(rng)
    track = draw_track(rng)
    return Course(track, make_ground(track), colors, dict(rng.bit_generator.state))


_drawn: OrderedDict[tuple[int, bool], Course] = OrderedDict()


def seeded_course(seed: int, randomize: bool) -> Course:
    """The course that a reset with `seed` gives, remembered for a while."""
    key = (seed, randomize)
    if key not in _drawn:
        rng, _ = seeding.np_random(seed)
        _drawn[key] = draw_course(rng, None if randomize else DEFAULT_COLORS)
        if len(_drawn) > _KEPT:
            _drawn.popitem(last=False)
    _drawn.move_to_end(key)
    return _drawn[key]


class CourseTable:
    """The courses of N environments; environments on the same course share a row.

    The methods take `rows` ``(N,)`` int32, the row of each environment, which the simulator keeps,
    and rewrite it for `envs`, the indices of the environments that change course.
    """

    def __init__(self) -> None:
        self.courses = empty_courses(1)
        self._rows: dict[int, int] = {}
        self._held: list[Course | None] = [None]

    def assign(
        self, rows: NDArray[np.int32], envs: Sequence[int], wanted: Sequence[Course]
    ) -> list[int]:
        """Give `envs` the courses that are `wanted`, one each.

        Returns:
            the rows of `courses` that were written. All arrays are new ones where it grew.
        """
        used = self._used_by_others(rows, envs)
        new = {}
        for course in wanted:
            row = self._rows.get(id(course))
            if row is None:
                new[id(course)] = course
            else:
                used[row] = True
        fresh = list(new.values())
        tiles = max((len(course.track.tiles) for course in fresh), default=0)
        near = max((len(course.ground.near) for course in fresh), default=0)
        written = self._free_rows(used, len(fresh), tiles, near)
        for row, course in zip(written, fresh, strict=True):
            self._rows[id(course)], self._held[row] = row, course
            self._put(row, course)
        rows[envs] = [self._rows[id(course)] for course in wanted]
        return written

    def adopt(
        self,
        rows: NDArray[np.int32],
        envs: NDArray[np.int64],
        courses: Courses,
        course: NDArray[np.int32],
    ) -> list[int]:
        """Give `envs` courses of another table.

        Args:
            rows: ``(N,)`` int32, rewritten for `envs`.
            envs: ``(S,)`` indices of the environments that change course.
            courses: K courses.
            course: ``(S,)`` or ``(1,)``, the index in `courses` for each of `envs`, or for all.

        Returns:
            the rows of `courses` that were written. All arrays are new ones where it grew.
        """
        tiles, near = courses.tiles.shape[1], courses.near.shape[1]
        used = self._used_by_others(rows, envs)
        written = self._free_rows(used, len(courses.counts), tiles, near)
        for name in Courses._fields:
            given: NDArray[Any] = getattr(courses, name)
            part = tuple(slice(size) for size in given.shape[1:])
            getattr(self.courses, name)[(written, *part)] = given
        rows[envs] = np.array(written, np.int32)[course]
        return written

    def select(self, rows: NDArray[np.int32]) -> tuple[Courses, NDArray[np.int32]]:
        """Copies of the courses in `rows`, each once and without padding, and the index of each."""
        chosen, course = np.unique(rows, return_inverse=True)
        tiles = max(1, int(self.courses.counts[chosen].max()))
        near = max(1, int(self.courses.cells[chosen, -1].max()))
        longest = {"tiles": tiles, "borders": tiles, "has_border": tiles, "near": near}
        selected = Courses._make(
            array[chosen, : longest[name]] if name in longest else array[chosen]
            for name, array in self.courses._asdict().items()
        )
        # A row may have held a longer course before.
        padding = np.arange(tiles) >= selected.counts[:, None]
        for array in (selected.tiles, selected.borders, selected.has_border):
            array[padding] = 0
        selected.near[np.arange(near) >= selected.cells[:, -1:]] = 0
        return selected, course.astype(np.int32)

    def _used_by_others(self, rows: NDArray[np.int32], envs: Any) -> NDArray[np.bool_]:
        """Which rows the environments that are not in `envs` use."""
        used = np.zeros(len(self._held), np.bool_)
        others = np.ones(len(rows), np.bool_)
        others[envs] = False
        used[rows[others]] = True
        return used

    def _free_rows(self, used: NDArray[np.bool_], count: int, tiles: int, near: int) -> list[int]:
        """Rows to write new courses to, as many as `count`; the courses in them are forgotten."""
        if count:
            self._make_room(count - int((~used).sum()), tiles, near)
        free = np.flatnonzero(~np.pad(used, (0, len(self._held) - len(used))))[:count].tolist()
        for row in free:
            old, self._held[row] = self._held[row], None
            if old is not None:
                del self._rows[id(old)]
        return list(free)

    def _put(self, row: int, course: Course) -> None:
        count, near = len(course.track.tiles), len(course.ground.near)
        courses = self.courses
        courses.tiles[row, :count] = course.ground.tiles
        courses.counts[row] = count
        courses.start[row] = course.track.start
        courses.cells[row] = course.ground.cells
        courses.near[row, :near] = course.ground.near
        courses.borders[row, :count] = course.track.borders
        courses.has_border[row, :count] = course.track.has_border
        courses.palette[row] = palette(course.colors)

    def _make_room(self, lacking: int, tiles: int, near: int) -> None:
        """Have `lacking` more rows, each with room for so many tiles and entries of `near`."""
        rows, most, widest = len(self._held), *self._widths()
        if lacking <= 0 and tiles <= most and near <= widest:
            return
        if lacking > 0:
            rows += max(lacking, rows // 2)
        if tiles > most:
            most = tiles + tiles // 8
        if near > widest:
            widest = near + near // 8
        larger = empty_courses(rows, most, widest)
        for name in Courses._fields:
            old: NDArray[Any] = getattr(self.courses, name)
            getattr(larger, name)[tuple(slice(size) for size in old.shape)] = old
        self.courses = larger
        self._held += [None] * (rows - len(self._held))

    def _widths(self) -> tuple[int, int]:
        return self.courses.tiles.shape[1], self.courses.near.shape[1]
