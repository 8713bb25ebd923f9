"""The tracks of CarRacing, tile for tile those of Gymnasium's ``CarRacing._create_track``."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

SCALE = 6.0
TRACK_RADIUS = 900 / SCALE
PLAYFIELD = 2000 / SCALE
"""Half the side of the square field: a hull beyond it ends the episode."""

_CHECKPOINTS = 12
_STEP = 21 / SCALE
_TURN_RATE = 0.31
_WIDTH = 40 / SCALE
_BORDER = 8 / SCALE
_BORDER_MIN_COUNT = 4
_MAX_STEPS = 2500
_START_ALPHA = 2 * math.pi * (-0.5) / _CHECKPOINTS

WHITE, RED = (255, 255, 255), (255, 0, 0)


class Colors(NamedTuple):
    """What a field is painted with; each ``(3,)`` float64, truncated when drawn."""

    road: NDArray[np.float64]
    background: NDArray[np.float64]
    grass: NDArray[np.float64]


DEFAULT_COLORS = Colors(
    np.array([102.0, 102.0, 102.0]),
    np.array([102.0, 204.0, 102.0]),
    np.array([102.0, 230.0, 102.0]),
)


class Track(NamedTuple):
    """One closed road.

    Args:
        tiles: ``(T, 4, 2)`` float64, the corners of each tile in Gymnasium's order.
        start: ``(3,)`` float64, angle and position of the car: ``track[0][1:4]``.
        borders: ``(T, 4, 2)`` float64, the red or white kerb beside a tile.
        has_border: ``(T,)`` bool, whether there is one.
    """

    tiles: NDArray[np.float64]
    start: NDArray[np.float64]
    borders: NDArray[np.float64]
    has_border: NDArray[np.bool_]


def draw_colors(rng: np.random.Generator) -> Colors:
    """Random colours, drawn as ``CarRacing._reinit_colors`` draws them."""
    road = rng.uniform(0, 210, size=3)
    background = rng.uniform(0, 210, size=3)
    grass = np.copy(background)
    grass[rng.integers(3)] += 20
    return Colors(road, background, grass)


def draw_track(rng: np.random.Generator) -> Track:
    """A random track, drawn as ``CarRacing.reset`` draws it: repeated until one closes."""
    while True:
        checkpoints = _draw_checkpoints(rng)
        points = np.empty((_MAX_STEPS, 4))
        first, last = _walk(checkpoints, points)
        if last - first > 0:
            points = points[first:last]
            if _is_glued_well(points):
                tiles, borders = np.empty((2, len(points), 4, 2))
                has_border = np.zeros(len(points), np.bool_)
                _pave(points, tiles, borders, has_border)
                return Track(tiles, points[0, 1:4].copy(), borders, has_border)


def _draw_checkpoints(rng: np.random.Generator) -> NDArray[np.float64]:
    """``(12, 3)``: angle and position of the points that the road bends towards."""
    checkpoints = np.empty((_CHECKPOINTS, 3))
    for c in range(_CHECKPOINTS):
        noise = rng.uniform(0, 2 * math.pi * 1 / _CHECKPOINTS)
        alpha = 2 * math.pi * c / _CHECKPOINTS + noise
        radius = rng.uniform(TRACK_RADIUS / 3, TRACK_RADIUS)
        if c == 0:
            alpha, radius = 0.0, 1.5 * TRACK_RADIUS
        if c == _CHECKPOINTS - 1:
            alpha, radius = 2 * math.pi * c / _CHECKPOINTS, 1.5 * TRACK_RADIUS
        checkpoints[c] = alpha, radius * math.cos(alpha), radius * math.sin(alpha)
    return checkpoints


@njit(cache=True, error_model="numpy")
def _walk(checkpoints, points):
    """Walk round from checkpoint to checkpoint, writing `points` (steps, 4); the second lap.

    Returns the range of the points of that lap, empty where the walk never closes.
    """
    x, y, beta = 1.5 * TRACK_RADIUS, 0.0, 0.0
    destination, laps, count = 0, 0, 0
    visited_other_side = False
    while count < _MAX_STEPS:
        alpha = math.atan2(y, x)
        if visited_other_side and alpha > 0:
            laps += 1
            visited_other_side = False
        if alpha < 0:
            visited_other_side = True
            alpha += 2 * math.pi
        while True:
            found = False
            while True:
                if alpha <= checkpoints[destination % _CHECKPOINTS, 0]:
                    found = True
                    break
                destination += 1
                if destination % _CHECKPOINTS == 0:
                    break
            if found:
                break
            alpha -= 2 * math.pi
        target = checkpoints[destination % _CHECKPOINTS]
        ahead_x, ahead_y = math.cos(beta), math.sin(beta)
        projection = ahead_x * (target[1] - x) + ahead_y * (target[2] - y)
        while beta - alpha > 1.5 * math.pi:
            beta -= 2 * math.pi
        while beta - alpha < -1.5 * math.pi:
            beta += 2 * math.pi
        before = beta
        projection *= SCALE
        if projection > 0.3:
            beta -= min(_TURN_RATE, abs(0.001 * projection))
        if projection < -0.3:
            beta += min(_TURN_RATE, abs(0.001 * projection))
        x += -ahead_y * _STEP
        y += ahead_x * _STEP
        points[count, 0] = alpha
        points[count, 1] = before * 0.5 + beta * 0.5
        points[count, 2] = x
        points[count, 3] = y
        count += 1
        if laps > 4:
            break
    last = -1
    for i in range(count - 1, 0, -1):
        if points[i, 0] > _START_ALPHA and points[i - 1, 0] <= _START_ALPHA:
            if last != -1:
                return i, last - 1
            last = i
    return 0, 0


def _is_glued_well(points: NDArray[np.float64]) -> bool:
    """Whether the end of the lap `points` (T, 4) meets its beginning."""
    beta = points[0, 1]
    gap = np.sqrt(
        np.square(math.cos(beta) * (points[0, 2] - points[-1, 2]))
        + np.square(math.sin(beta) * (points[0, 3] - points[-1, 3]))
    )
    return bool(gap <= _STEP)


@njit(cache=True, error_model="numpy")
def _pave(points, tiles, borders, has_border):
    """Tiles and kerbs (both (T, 4, 2)) along the lap `points` (T, 4)."""
    count = len(points)
    hard = np.empty(count, np.bool_)
    for i in range(count):
        good, one_side = True, 0.0
        for back in range(_BORDER_MIN_COUNT):
            bend = points[i - back, 1] - points[i - back - 1, 1]
            good &= abs(bend) > _TURN_RATE * 0.2
            one_side += np.sign(bend)
        hard[i] = good and abs(one_side) == _BORDER_MIN_COUNT
    for i in range(count):
        has_border[i] = hard[i]
    # In place and in this order, as Gymnasium spreads them.
    for i in range(count):
        for back in range(_BORDER_MIN_COUNT):
            has_border[i - back] |= has_border[i]
    for i in range(count):
        side = np.sign(points[i - 1, 1] - points[i, 1])
        for end in range(2):
            beta, x, y = points[i - end, 1], points[i - end, 2], points[i - end, 3]
            c, s = math.cos(beta), math.sin(beta)
            left, right = (0, 1) if end == 0 else (3, 2)
            tiles[i, left, 0] = x - _WIDTH * c
            tiles[i, left, 1] = y - _WIDTH * s
            tiles[i, right, 0] = x + _WIDTH * c
            tiles[i, right, 1] = y + _WIDTH * s
            borders[i, left, 0] = x + side * _WIDTH * c
            borders[i, left, 1] = y + side * _WIDTH * s
            borders[i, right, 0] = x + side * (_WIDTH + _BORDER) * c
            borders[i, right, 1] = y + side * (_WIDTH + _BORDER) * s
