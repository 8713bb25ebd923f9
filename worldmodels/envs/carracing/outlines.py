"""Geometry of a frame: the view transform, outlines of polygons, and their edges in samples.

What pygame does to edges is kept: corners are truncated to whole pixels, and polygons include their
outline. Coordinates are of three kinds:

    world     metres, y upwards
    pixels    of pygame's 1000x800 surface, x to the right, y downwards
    samples   of the 384x168 grid (`ACROSS` x `DOWN` for each of the 96x84 pixels of the frame)

An `outline` is a float64 array whose rows 0 and 1 are x and y of a polygon's corners in pixels. It
is allocated once for a frame and overwritten by each polygon: `(2, 8)` on a GPU, `(4, 8)` on a CPU,
where rows 2 and 3 are the scratch arrays `base` and `slope` of `edges`.
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
"""Size in pixels of the part of Gymnasium's 96x96 frame above the instruments."""
ACROSS, DOWN = 4, 2
"""Samples per pixel; more cost time and change little (``benchmarks/carracing_parity.py``)."""
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
def view_transform(body, time):
    """The transform from the world to pixels: the camera follows and turns with the hull.

    Follows ``CarRacing._render``.

    Args:
        body: ``(5, 11)`` float32, the bodies of one environment; see `state.Envs`.
        time: seconds since the reset; the camera zooms in during the first second.

    Returns:
        zoom in pixels per metre, sine and cosine of the rotation, and x and y (upwards) of the
        world's origin in pixels.
    """
    zoom = 0.1 * SCALE * max(1 - time, 0.0) + ZOOM * SCALE * min(time, 1.0)
    turn = -np.float64(body[HULL, ANGLE])
    s, c = math.sin(turn), math.cos(turn)
    x, y = -np.float64(body[HULL, PX]) * zoom, -np.float64(body[HULL, PY]) * zoom
    return zoom, s, c, WIDTH / 2 + (c * x - s * y), HEIGHT / 4 + (s * x + c * y)


@njit(cache=True, error_model="numpy")
def _project(transform, x, y):
    """The centre of the pixel that contains a point (x, y) of the world, truncated as by pygame."""
    zoom, s, c, ox, oy = transform
    px, py = (c * x - s * y) * zoom + ox, (s * x + c * y) * zoom + oy
    return math.trunc(px) + 0.5, HEIGHT - (math.trunc(py) + 0.5)


@njit(cache=True, error_model="numpy")
def quad(transform, corners, outline):
    """Project a tile or kerb.

    Args:
        transform: see `view_transform`.
        corners: ``(4, 2)`` float32, in metres.
        outline: written; see the module.
    """
    for i in range(4):
        outline[0, i], outline[1, i] = _project(transform, corners[i, 0], corners[i, 1])


@njit(cache=True, error_model="numpy")
def rectangle(transform, x1, y1, x2, y2, outline):
    """Project an axis-aligned rectangle of the ground.

    Args:
        transform: see `view_transform`.
        x1, y1, x2, y2: opposite corners in metres.
        outline: written; see the module.
    """
    outline[0, 0], outline[1, 0] = _project(transform, x1, y1)
    outline[0, 1], outline[1, 1] = _project(transform, x2, y1)
    outline[0, 2], outline[1, 2] = _project(transform, x2, y2)
    outline[0, 3], outline[1, 3] = _project(transform, x1, y2)


@njit(cache=True, error_model="numpy")
def middle(body, transform):
    """The part of the world that the frame shows.

    Args:
        body: ``(5, 11)`` float32; see `state.Envs`.
        transform: see `view_transform`.

    Returns:
        x and y of the centre of the frame and the distance from it to the corners, in metres.
    """
    zoom, s, c = transform[0], transform[1], transform[2]
    # It is 200 pixels ahead of the hull.
    ahead = (HEIGHT / 2 - HEIGHT / 4) / zoom
    return body[HULL, PX] + s * ahead, body[HULL, PY] + c * ahead, _VIEW_RADIUS / zoom


@njit(cache=True, error_model="numpy")
def in_view(tiles, t, x, y, radius):
    """Whether a tile or its kerb may be inside the frame.

    Args:
        tiles: ``(T, 4, 2)`` float32, in metres.
        t: index of the tile.
        x, y, radius: what `middle` returned.
    """
    dx, dy, reach = tiles[t, 0, 0] - x, tiles[t, 0, 1] - y, radius + _TILE_RADIUS
    return dx * dx + dy * dy < reach * reach


@njit(cache=True, error_model="numpy")
def part(transform, body, b, shape, outline):
    """Project one polygon of a body.

    Args:
        transform: see `view_transform`.
        body: ``(5, 11)`` float32; see `state.Envs`.
        b: index of the body.
        shape: index of the polygon in `contacts.SHAPES`.
        outline: written; see the module.

    Returns:
        the number of corners.
    """
    s, c, px, py = body[b, SIN], body[b, COS], body[b, PX], body[b, PY]
    for i in range(CORNERS[shape]):
        x, y = SHAPES[shape, i, 0], SHAPES[shape, i, 1]
        outline[0, i], outline[1, i] = _project(
            transform, np.float64((c * x - s * y) + px), np.float64((s * x + c * y) + py)
        )
    return CORNERS[shape]


@njit(cache=True, error_model="numpy")
def stripe(transform, body, b, phase, outline):
    """Project the stripe on a wheel that shows its rotation: ``Car.draw``.

    Args:
        transform: see `view_transform`.
        body: ``(5, 11)`` float32; see `state.Envs`.
        b: index of the wheel's body.
        phase: rotation of the wheel in radians.
        outline: written, if the stripe is on the visible half of the wheel; see the module.

    Returns:
        whether it is on the visible half.
    """
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
        outline[0, i], outline[1, i] = _project(
            transform, (c * x - s * y) + px, (s * x + c * y) + py
        )
    return True


@njit(cache=True, error_model="numpy")
def edges(outline, count, base, slope):
    """The edges of a convex polygon, in samples.

    A row's samples lie between the rightmost of the left edges and the leftmost of the right ones,
    each moved outwards by half a pixel.

    Args:
        outline: see the module.
        count: number of corners.
        base, slope: ``(8,)``, written: where an edge crosses row 0, and how far it goes in a row;
            left edges from the front, right ones from the back.

    Returns:
        its leftmost and rightmost sample, its first and last row (the last before the first if it
        is outside the frame), the index after the last left edge, the index of the first right one.
    """
    x, y = outline[0], outline[1]
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
    """The first and last sample of a polygon in a row, not rounded.

    Args:
        base, slope, left, right, lefts, rights: written and returned by `edges`.
        row: index of the row of samples.
    """
    for i in range(lefts):
        left = max(left, base[i] + slope[i] * row)
    for i in range(rights, CORNERS_MOST):
        right = min(right, base[i] + slope[i] * row)
    return left, right
