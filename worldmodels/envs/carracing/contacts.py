"""Which tiles the car's parts touch: Box2D's sensors, without its broad phase.

A sensor touches where ``b2TestOverlap`` is true: by GJK in float32, with the polygons' skins. The
result is a function of the transforms alone; Box2D's broad phase only saves time. Here a
grid over the field lists the tiles near a point, separating axes decide all but the thin band in
which rounding could matter, and there GJK is run as ``b2Distance`` runs it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from worldmodels.envs.carracing import bodies
from worldmodels.envs.carracing.state import BODIES, COS, HULL, PX, PY, SIN, WHEELS
from worldmodels.envs.carracing.track import TRACK_RADIUS, Track

CELL = 8.0
"""Side of a grid cell in metres."""
ORIGIN = -1.5 * TRACK_RADIUS - 64.0
SIDE = math.ceil(-2 * ORIGIN / CELL)
"""Cells along a side: tracks reach little beyond 1.5 times their radius; see `Ground`."""
_REACH = 3.2
"""Further than any corner of the car from the hull's origin, skins included, in metres."""

_F = np.float32
ZERO, ONE = _F(0), _F(1)
SKIN = _F(_F(2) * _F(0.005))
SKINS = _F(SKIN + SKIN)
EPSILON_2 = _F(np.finfo(np.float32).eps * np.finfo(np.float32).eps)
_BAND = 1e-3
"""Far above the rounding of float32 coordinates of some hundred metres (3e-5)."""

WHEEL_SHAPE = 4
SHAPES = np.zeros((5, 8, 2), np.float32)
CORNERS = np.zeros(5, np.int64)
for _i, _polygon in enumerate((*bodies.HULL_POLYGONS, bodies.WHEEL_POLYGON)):
    SHAPES[_i, : len(_polygon)] = _polygon
    CORNERS[_i] = len(_polygon)


class Ground(NamedTuple):
    """The tiles of one track for contacts.

    Args:
        tiles: ``(T, 4, 2)`` float32, corners in Box2D's order.
        cells: ``(SIDE * SIDE + 1,)`` int16, where each cell's part of `near` begins.
        near: int16, tiles within reach of a car whose hull is in the cell.

    A car outside the grid is taken to be in its outermost cell, which lists what is near it: the
    tiles of every track lie inside.
    """

    tiles: NDArray[np.float32]
    cells: NDArray[np.int16]
    near: NDArray[np.int16]


def make_ground(track: Track) -> Ground:
    """The contact geometry of a track, with its tiles in the order of the track."""
    tiles = np.empty(track.tiles.shape, np.float32)
    _order(track.tiles.astype(np.float32), tiles)
    low = np.floor((tiles.min(axis=1) - _REACH - ORIGIN) / CELL).astype(np.int64)  # (T, 2)
    high = np.floor((tiles.max(axis=1) + _REACH - ORIGIN) / CELL).astype(np.int64)
    low, high = low.clip(0, SIDE - 1), high.clip(0, SIDE - 1)
    cells = np.zeros(SIDE * SIDE + 1, np.int16)
    near = np.empty(int(np.prod(high - low + 1, axis=1).sum()), np.int16)
    _fill(low, high, cells, near)
    return Ground(tiles, cells, near)


@njit(cache=True, error_model="numpy")
def _order(quads, tiles):
    """Corners (T, 4, 2) float32 in the order of ``b2PolygonShape::Set``; see `bodies.polygon`."""
    for t in range(len(quads)):
        points = quads[t]
        first = 0
        for i in range(1, 4):
            x, y = points[i, 0], points[i, 1]
            if x > points[first, 0] or (x == points[first, 0] and y < points[first, 1]):
                first = i
        corner, count = first, 0
        while count < 4:
            tiles[t, count] = points[corner]
            count += 1
            following = 0
            for j in range(1, 4):
                if following == corner:
                    following = j
                    continue
                rx, ry = (
                    points[following, 0] - points[corner, 0],
                    points[following, 1] - points[corner, 1],
                )
                vx, vy = points[j, 0] - points[corner, 0], points[j, 1] - points[corner, 1]
                turn = rx * vy - ry * vx
                if turn < ZERO or (turn == ZERO and vx * vx + vy * vy > rx * rx + ry * ry):
                    following = j
            corner = following


@njit(cache=True, error_model="numpy")
def _fill(low, high, cells, near):
    """Lists of tiles by cell, tiles in rising order."""
    for t in range(len(low)):
        for x in range(low[t, 0], high[t, 0] + 1):
            for y in range(low[t, 1], high[t, 1] + 1):
                cells[x * SIDE + y + 1] += 1
    for cell in range(SIDE * SIDE):
        cells[cell + 1] += cells[cell]
    filled = np.zeros(SIDE * SIDE, np.int32)
    for t in range(len(low)):
        for x in range(low[t, 0], high[t, 0] + 1):
            for y in range(low[t, 1], high[t, 1] + 1):
                cell = x * SIDE + y
                near[cells[cell] + filled[cell]] = t
                filled[cell] += 1


@njit(cache=True, error_model="numpy")
def collide(body, tiles, cells, near, on_road, touched, fresh):
    """Begin a step as ``b2ContactManager::Collide`` does: what touches what.

    Args:
        body: (5, 11) float32; see `state.Envs`.
        tiles, cells, near: of the track's `Ground`, maybe padded.
        on_road: (4,) bool, written.
        touched: (T,) bool, tiles that any part touches are added.
        fresh: (T,) bool, tiles that wheels touch are added.

    Returns:
        how many tiles were added to `fresh`, and whether tile 0 is one of them.
    """
    x = min(max(int((body[HULL, PX] - ORIGIN) / CELL), 0), SIDE - 1)
    y = min(max(int((body[HULL, PY] - ORIGIN) / CELL), 0), SIDE - 1)
    for i in range(WHEELS):
        on_road[i] = False
    added, start = 0, False
    for k in range(cells[x * SIDE + y], cells[x * SIDE + y + 1]):
        t = near[k]
        for b in range(1, BODIES):
            if touches(body, b, WHEEL_SHAPE, tiles, t):
                on_road[b - 1] = True
                touched[t] = True
                if not fresh[t]:
                    fresh[t] = True
                    added += 1
                    start |= t == 0
        if not touched[t]:
            for shape in range(WHEEL_SHAPE):
                if touches(body, HULL, shape, tiles, t):
                    touched[t] = True
                    break
    return added, start


@njit(cache=True, error_model="numpy")
def touches(body, b, shape, tiles, t):
    """``b2TestOverlap`` of a tile and one polygon of a body.

    Args:
        body: ``(5, 11)`` float32; see `state.Envs`.
        b: index of the body.
        shape: index of the polygon in `SHAPES`.
        tiles: ``(T, 4, 2)`` float32; see `Ground`.
        t: index of the tile.
    """
    gap = max(_gap_to_tile(body, b, shape, tiles, t), _gap_to_part(body, b, shape, tiles, t))
    if gap > SKINS + _BAND:
        return False
    if gap < -_BAND:
        return True
    return _distance(body, b, shape, tiles, t) <= SKINS


@njit(cache=True, error_model="numpy")
def _corner(body, b, shape, i):
    """Corner `i` of a body's polygon in the world: ``b2Mul(transform, vertex)``."""
    x, y = SHAPES[shape, i, 0], SHAPES[shape, i, 1]
    s, c = body[b, SIN], body[b, COS]
    return (c * x - s * y) + body[b, PX], (s * x + c * y) + body[b, PY]


@njit(cache=True, error_model="numpy")
def _gap_to_tile(body, b, shape, tiles, t):
    """The widest gap between the part and a line along an edge of the tile, in metres."""
    widest = -1e9
    for e in range(4):
        x1, y1 = tiles[t, e, 0], tiles[t, e, 1]
        dx, dy = tiles[t, (e + 1) % 4, 0] - x1, tiles[t, (e + 1) % 4, 1] - y1
        nearest = 1e9
        for i in range(CORNERS[shape]):
            x, y = _corner(body, b, shape, i)
            nearest = min(nearest, dy * (x - x1) - dx * (y - y1))
        widest = max(widest, nearest / math.sqrt(dx * dx + dy * dy))
        if widest > SKINS + _BAND:
            break
    return widest


@njit(cache=True, error_model="numpy")
def _gap_to_part(body, b, shape, tiles, t):
    """The widest gap between the tile and a line along an edge of the part, in metres."""
    widest = -1e9
    x1, y1 = _corner(body, b, shape, 0)
    for e in range(CORNERS[shape]):
        x2, y2 = _corner(body, b, shape, (e + 1) % CORNERS[shape])
        dx, dy = x2 - x1, y2 - y1
        nearest = 1e9
        for i in range(4):
            nearest = min(nearest, dy * (tiles[t, i, 0] - x1) - dx * (tiles[t, i, 1] - y1))
        widest = max(widest, nearest / math.sqrt(dx * dx + dy * dy))
        if widest > SKINS + _BAND:
            break
        x1, y1 = x2, y2
    return widest


@njit(cache=True, error_model="numpy")
def _support_tile(tiles, t, dx, dy):
    """``b2DistanceProxy::GetSupport`` of a tile."""
    best, value = 0, tiles[t, 0, 0] * dx + tiles[t, 0, 1] * dy
    for i in range(1, 4):
        other = tiles[t, i, 0] * dx + tiles[t, i, 1] * dy
        if other > value:
            best, value = i, other
    return best


@njit(cache=True, error_model="numpy")
def _support_part(body, b, shape, dx, dy):
    """``b2DistanceProxy::GetSupport`` of a body's polygon, for a direction in the world."""
    s, c = body[b, SIN], body[b, COS]
    lx, ly = c * dx + s * dy, -s * dx + c * dy
    best, value = 0, SHAPES[shape, 0, 0] * lx + SHAPES[shape, 0, 1] * ly
    for i in range(1, CORNERS[shape]):
        other = SHAPES[shape, i, 0] * lx + SHAPES[shape, i, 1] * ly
        if other > value:
            best, value = i, other
    return best


@njit(cache=True, error_model="numpy")
def _point(body, b, shape, tiles, t, i, j):
    """A vertex of GJK's simplex: corner `i` of the tile, `j` of the part, and their difference."""
    ax, ay = tiles[t, i, 0], tiles[t, i, 1]
    bx, by = _corner(body, b, shape, j)
    return ax, ay, bx, by, bx - ax, by - ay, i, j


@njit(cache=True, error_model="numpy")
def _distance(body, b, shape, tiles, t):
    """``b2Distance`` from a tile to a body's polygon, without skins."""
    v1 = _point(body, b, shape, tiles, t, 0, 0)
    v2, v3 = v1, v1
    a1, a2 = ONE, ZERO
    count = 1
    for _ in range(20):
        saved, i1, j1, i2, j2, i3, j3 = count, v1[6], v1[7], v2[6], v2[7], v3[6], v3[7]
        if count == 2:
            v1, v2, a1, a2, count = _solve2(v1, v2)
        elif count == 3:
            v1, v2, v3, a1, a2, count = _solve3(v1, v2, v3)
        if count == 3:
            break
        if count == 1:
            dx, dy = -v1[4], -v1[5]
        else:
            ex, ey = v2[4] - v1[4], v2[5] - v1[5]
            if ex * -v1[5] - ey * -v1[4] > ZERO:
                dx, dy = -ey, ex
            else:
                dx, dy = ey, -ex
        if dx * dx + dy * dy < EPSILON_2:
            break
        i = _support_tile(tiles, t, -dx, -dy)
        j = _support_part(body, b, shape, dx, dy)
        if (
            (i == i1 and j == j1)
            or (saved > 1 and i == i2 and j == j2)
            or (saved > 2 and i == i3 and j == j3)
        ):
            # The vertex is written all the same, but not counted.
            break
        if count == 1:
            v2 = _point(body, b, shape, tiles, t, i, j)
        else:
            v3 = _point(body, b, shape, tiles, t, i, j)
        count += 1
    if count == 3:
        return ZERO
    if count == 1:
        x, y = v1[0] - v1[2], v1[1] - v1[3]
    else:
        x = (a1 * v1[0] + a2 * v2[0]) - (a1 * v1[2] + a2 * v2[2])
        y = (a1 * v1[1] + a2 * v2[1]) - (a1 * v1[3] + a2 * v2[3])
    return math.sqrt(x * x + y * y)


@njit(cache=True, error_model="numpy")
def _solve2(v1, v2):
    """``b2Simplex::Solve2``: the part of a segment that is nearest the origin."""
    ex, ey = v2[4] - v1[4], v2[5] - v1[5]
    d2 = -(v1[4] * ex + v1[5] * ey)
    if d2 <= ZERO:
        return v1, v2, ONE, ZERO, 1
    d1 = v2[4] * ex + v2[5] * ey
    if d1 <= ZERO:
        return v2, v2, ONE, ZERO, 1
    inverse = ONE / (d1 + d2)
    return v1, v2, d1 * inverse, d2 * inverse, 2


@njit(cache=True, error_model="numpy")
def _solve3(v1, v2, v3):
    """``b2Simplex::Solve3``: the part of a triangle that is nearest the origin."""
    x1, y1, x2, y2, x3, y3 = v1[4], v1[5], v2[4], v2[5], v3[4], v3[5]
    e12x, e12y, e13x, e13y, e23x, e23y = x2 - x1, y2 - y1, x3 - x1, y3 - y1, x3 - x2, y3 - y2
    d12_1, d12_2 = x2 * e12x + y2 * e12y, -(x1 * e12x + y1 * e12y)
    d13_1, d13_2 = x3 * e13x + y3 * e13y, -(x1 * e13x + y1 * e13y)
    d23_1, d23_2 = x3 * e23x + y3 * e23y, -(x2 * e23x + y2 * e23y)
    n = e12x * e13y - e12y * e13x
    d1, d2, d3 = n * (x2 * y3 - y2 * x3), n * (x3 * y1 - y3 * x1), n * (x1 * y2 - y1 * x2)
    if d12_2 <= ZERO and d13_2 <= ZERO:
        return v1, v2, v3, ONE, ZERO, 1
    if d12_1 > ZERO and d12_2 > ZERO and d3 <= ZERO:
        inverse = ONE / (d12_1 + d12_2)
        return v1, v2, v3, d12_1 * inverse, d12_2 * inverse, 2
    if d13_1 > ZERO and d13_2 > ZERO and d2 <= ZERO:
        inverse = ONE / (d13_1 + d13_2)
        return v1, v3, v3, d13_1 * inverse, d13_2 * inverse, 2
    if d12_1 <= ZERO and d23_2 <= ZERO:
        return v2, v2, v3, ONE, ZERO, 1
    if d13_1 <= ZERO and d23_1 <= ZERO:
        return v3, v2, v3, ONE, ZERO, 1
    if d23_1 > ZERO and d23_2 > ZERO and d1 <= ZERO:
        inverse = ONE / (d23_1 + d23_2)
        return v3, v2, v3, d23_2 * inverse, d23_1 * inverse, 2
    return v1, v2, v3, ONE, ZERO, 3  # the origin is inside: they overlap
