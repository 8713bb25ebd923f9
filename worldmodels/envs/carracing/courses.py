"""The courses that lanes drive on: tracks as the kernels read them, one a lane."""

from __future__ import annotations

from collections import OrderedDict
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
    """One course a lane, padded to the longest: N lanes, at most T tiles.

    Args:
        tiles: ``(N, T, 4, 2)`` float32.
        counts: ``(N,)`` int32, tiles of each.
        start: ``(N, 3)`` float64, angle and position of the car.
        cells: ``(N, cells + 1)`` int16; see `contacts.Ground`.
        near: ``(N, most)`` int16; see `contacts.Ground`.
        borders: ``(N, T, 4, 2)`` float32.
        has_border: ``(N, T)`` bool.
        palette: ``(N, 10)`` uint32; see `picture.palette`.
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


def empty_courses(lanes: int, tiles: int = 1, near: int = 1) -> Courses:
    """Zeroed courses with room for so many tiles and entries of `near`."""
    return Courses(
        np.zeros((lanes, tiles, 4, 2), np.float32),
        np.zeros(lanes, np.int32),
        np.zeros((lanes, 3), np.float64),
        np.zeros((lanes, SIDE * SIDE + 1), np.int16),
        np.zeros((lanes, near), np.int16),
        np.zeros((lanes, tiles, 4, 2), np.float32),
        np.zeros((lanes, tiles), np.bool_),
        np.zeros((lanes, COLORS), np.uint32),
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


def put(courses: Courses, lane: int, course: Course) -> Courses:
    """Write `course` into a lane; returns the courses, larger ones if it did not fit."""
    count, near = len(course.track.tiles), len(course.ground.near)
    if count > courses.tiles.shape[1] or near > courses.near.shape[1]:
        courses = _grown(courses, count + count // 8, near + near // 8)
    courses.tiles[lane, :count] = course.ground.tiles
    courses.counts[lane] = count
    courses.start[lane] = course.track.start
    courses.cells[lane] = course.ground.cells
    courses.near[lane, :near] = course.ground.near
    courses.borders[lane, :count] = course.track.borders
    courses.has_border[lane, :count] = course.track.has_border
    courses.palette[lane] = palette(course.colors)
    return courses


def _grown(courses: Courses, tiles: int, near: int) -> Courses:
    tiles, near = max(tiles, courses.tiles.shape[1]), max(near, courses.near.shape[1])
    larger = empty_courses(len(courses.counts), tiles, near)
    for name in Courses._fields:
        old: NDArray[Any] = getattr(courses, name)
        getattr(larger, name)[tuple(slice(size) for size in old.shape)] = old
    return larger
