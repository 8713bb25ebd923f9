"""The courses that lanes drive on: tracks as the kernels read them, each stored once."""

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
"""Courses remembered by seed; a generation of candidates drives on the same few."""


class Courses(NamedTuple):
    """K courses, padded to the longest: at most T tiles. `state.Lanes.course` says whose is which.

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
    """The courses of some lanes; lanes on the same course share a row of it."""

    def __init__(self) -> None:
        self.courses = empty_courses(1)
        self._rows: dict[int, int] = {}
        self._held: list[Course | None] = [None]

    def assign(
        self, rows: NDArray[np.int32], lanes: Sequence[int], wanted: Sequence[Course]
    ) -> list[int]:
        """Give `lanes` the courses that are `wanted`, one each.

        Args:
            rows: ``(N,)``, the course of every lane; rewritten for `lanes`.

        Returns:
            the rows of `courses` that were written. All arrays are new ones where it grew.
        """
        used = np.zeros(len(self._held), np.bool_)
        others = np.ones(len(rows), np.bool_)
        others[lanes] = False
        used[rows[others]] = True
        new = {}
        for course in wanted:
            row = self._rows.get(id(course))
            if row is None:
                new[id(course)] = course
            else:
                used[row] = True
        self._make_room(list(new.values()), int((~used).sum()))
        free = iter(np.flatnonzero(~np.pad(used, (0, len(self._held) - len(used)))).tolist())
        written = [self._put(next(free), course) for course in new.values()]
        rows[lanes] = [self._rows[id(course)] for course in wanted]
        return written

    def replace(self, courses: Courses) -> None:
        """Hold other courses, which came from elsewhere."""
        self.courses = courses
        self._rows = {}
        self._held = [None] * len(courses.counts)

    def _put(self, row: int, course: Course) -> int:
        old = self._held[row]
        if old is not None:
            del self._rows[id(old)]
        self._rows[id(course)], self._held[row] = row, course
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
        return row

    def _make_room(self, new: Sequence[Course], free: int) -> None:
        """Have a row for each of the `new` courses, and each row long enough."""
        if not new:
            return
        rows, most, near = len(self._held), self.courses.tiles.shape[1], self.courses.near.shape[1]
        lacking = len(new) - free
        longest = max(len(course.track.tiles) for course in new)
        nearest = max(len(course.ground.near) for course in new)
        if lacking <= 0 and longest <= most and nearest <= near:
            return
        if lacking > 0:
            rows += max(lacking, rows // 2)
        if longest > most:
            most = longest + longest // 8
        if nearest > near:
            near = nearest + nearest // 8
        larger = empty_courses(rows, most, near)
        for name in Courses._fields:
            old: NDArray[Any] = getattr(self.courses, name)
            getattr(larger, name)[tuple(slice(size) for size in old.shape)] = old
        self.courses = larger
        self._held += [None] * (rows - len(self._held))
