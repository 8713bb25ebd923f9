"""Where things lie in a lane's picture: the view, outlines of polygons, and their edges in samples.

What pygame does to edges is kept: corners are truncated to whole pixels, and polygons include their
outline.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from worldmodels.envs.carracing import bodies
from worldmodels.envs.carracing.contacts import CORNERS, SHAPES
from worldmodels.envs.carracing.state import ANGLE, COS, HULL, PX, PY, SIN
from worldmodels.envs.carracing.track import PLAYFIELD, SCALE

WIDTH, HEIGHT = 1000, 800
COLUMNS, ROWS = 96, 84
"""The part of Gymnasium's 96x96 above the instruments."""
ACROSS, DOWN = 4, 2
"""Samples a pixel; more of them cost more than they give (``benchmarks/carracing_parity.py``)."""
ZOOM = 2.7
GRASS = PLAYFIELD / 20.0
_STEP_X, _STEP_Y = WIDTH / (COLUMNS * ACROSS), HEIGHT / 96 / DOWN
CORNERS_MOST = SHAPES.shape[1]
_VIEW_RADIUS = math.hypot(WIDTH / 2, HEIGHT / 2)
_TILE_RADIUS = 15.0
"""No tile or kerb reaches further from its first corner, in metres (their diagonal is 14)."""
_HALF = 0.5
"""How far pygame's outlines reach beyond the true edge, in its pixels."""


@njit(cache=True, error_model="numpy")
def view(body, time):
    """Zoom in pixels a metre, sine and cosine of the turn, and where the world's origin lies."""
    zoom = 0.1 * SCALE * max(1 - time, 0.0) + ZOOM * SCALE * min(time, 1.0)
    turn = -np.float64(body[HULL, ANGLE])
    s, c = math.sin(turn), math.cos(turn)
    x, y = -np.float64(body[HULL, PX]) * zoom, -np.float64(body[HULL, PY]) * zoom
    return zoom, s, c, WIDTH / 2 + (c * x - s * y), HEIGHT / 4 + (s * x + c * y)


@njit(cache=True, error_model="numpy")
def _project(seen, x, y):
    """The centre of the pixel of a point of the world, truncated as pygame does; rows go down."""
    zoom, s, c, ox, oy = seen
    px, py = (c * x - s * y) * zoom + ox, (s * x + c * y) * zoom + oy
    return math.trunc(px) + 0.5, HEIGHT - (math.trunc(py) + 0.5)


@njit(cache=True, error_model="numpy")
def quad(seen, corners, pen):
    """The corners of a tile or kerb (4, 2)."""
    for i in range(4):
        pen[0, i], pen[1, i] = _project(seen, corners[i, 0], corners[i, 1])


@njit(cache=True, error_model="numpy")
def rectangle(seen, x1, y1, x2, y2, pen):
    """The corners of a piece of the ground."""
    pen[0, 0], pen[1, 0] = _project(seen, x1, y1)
    pen[0, 1], pen[1, 1] = _project(seen, x2, y1)
    pen[0, 2], pen[1, 2] = _project(seen, x2, y2)
    pen[0, 3], pen[1, 3] = _project(seen, x1, y2)


@njit(cache=True, error_model="numpy")
def middle(body, seen):
    """The point of the world in the middle of the picture, and how far its corners are."""
    zoom, s, c = seen[0], seen[1], seen[2]
    # It is 200 pixels ahead of the hull.
    ahead = (HEIGHT / 2 - HEIGHT / 4) / zoom
    return body[HULL, PX] + s * ahead, body[HULL, PY] + c * ahead, _VIEW_RADIUS / zoom


@njit(cache=True, error_model="numpy")
def in_view(tiles, t, x, y, radius):
    """Whether a tile or its kerb may reach into the picture, whose `middle` is given."""
    dx, dy, reach = tiles[t, 0, 0] - x, tiles[t, 0, 1] - y, radius + _TILE_RADIUS
    return dx * dx + dy * dy < reach * reach


@njit(cache=True, error_model="numpy")
def part(seen, body, b, shape, pen):
    """The corners of one polygon of a body; their number."""
    s, c, px, py = body[b, SIN], body[b, COS], body[b, PX], body[b, PY]
    for i in range(CORNERS[shape]):
        x, y = SHAPES[shape, i, 0], SHAPES[shape, i, 1]
        pen[0, i], pen[1, i] = _project(
            seen, np.float64((c * x - s * y) + px), np.float64((s * x + c * y) + py)
        )
    return CORNERS[shape]


@njit(cache=True, error_model="numpy")
def stripe(seen, body, b, phase, pen):
    """The corners of the stripe that turns with a wheel (``Car.draw``); whether it is seen."""
    s1, s2 = math.sin(phase), math.sin(phase + 1.2)
    c1, c2 = math.cos(phase), math.cos(phase + 1.2)
    if s1 > 0 and s2 > 0:
        return False
    if s1 > 0:
        c1 = math.copysign(1.0, c1)
    if s2 > 0:
        c2 = math.copysign(1.0, c2)
    s, c = np.float64(body[b, SIN]), np.float64(body[b, COS])
    px, py = np.float64(body[b, PX]), np.float64(body[b, PY])
    half, length = bodies.WHEEL_WIDTH * bodies.SIZE, bodies.WHEEL_RADIUS * bodies.SIZE
    for i in range(4):
        x = half if i == 1 or i == 2 else -half
        y = length * (c1 if i < 2 else c2)
        pen[0, i], pen[1, i] = _project(seen, (c * x - s * y) + px, (s * x + c * y) + py)
    return True


@njit(cache=True, error_model="numpy")
def edges(pen, count, base, slope):
    """The edges of a convex polygon, in samples.

    A row's samples lie between the rightmost of the left edges and the leftmost of the right ones,
    each moved outwards by half a pixel.

    Args:
        pen: ``(2, 8)``, x and y of its `count` corners in pygame's pixels.
        base, slope: ``(8,)``, written: where an edge crosses row 0, and how far it goes in a row;
            left edges from the front, right ones from the back.

    Returns:
        its leftmost and rightmost sample, its first and last row (the last before the first where
        nothing of it is in the picture), where the left edges end and where the right ones begin.
    """
    x, y = pen[0], pen[1]
    left, right, top, bottom = x[0], x[0], y[0], y[0]
    area = 0.0
    for i in range(count):
        j = i + 1 if i + 1 < count else 0
        left, right = min(left, x[i]), max(right, x[i])
        top, bottom = min(top, y[i]), max(bottom, y[i])
        area += x[i] * y[j] - x[j] * y[i]
    left = max((left - _HALF) / _STEP_X - 0.5, 0.0)
    right = min((right + _HALF) / _STEP_X - 0.5, ACROSS * COLUMNS - 1.0)
    first = max(math.ceil((top - _HALF) / _STEP_Y - 0.5), 0)
    last = min(math.floor((bottom + _HALF) / _STEP_Y - 0.5), DOWN * ROWS - 1)
    lefts, rights = 0, CORNERS_MOST
    if left > right or first > last:
        return left, right, 0, -1, lefts, rights
    sense = 1.0 if area >= 0 else -1.0
    for i in range(count):
        j = i + 1 if i + 1 < count else 0
        dy = (y[j] - y[i]) * sense
        if dy == 0:
            continue
        rise = (x[j] - x[i]) * sense / dy
        reach = _HALF * math.sqrt(1 + rise * rise)
        start = x[i] + (0.5 * _STEP_Y - y[i]) * rise
        if dy < 0:
            at, reach = lefts, -reach
            lefts += 1
        else:
            rights -= 1
            at = rights
        base[at] = (start + reach) / _STEP_X - 0.5
        slope[at] = rise * (_STEP_Y / _STEP_X)
    return left, right, first, last, lefts, rights


@njit(cache=True, error_model="numpy", inline="always")
def span(base, slope, left, right, lefts, rights, row):
    """Where a polygon with these `edges` begins and ends in a row of samples."""
    for i in range(lefts):
        left = max(left, base[i] + slope[i] * row)
    for i in range(rights, CORNERS_MOST):
        right = min(right, base[i] + slope[i] * row)
    return left, right
