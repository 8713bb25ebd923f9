"""What a lane sees, drawn straight at the size of the observation.

Gymnasium draws polygons with pygame into 1000x800 pixels, shrinks them to 96x96, and the pipeline
cuts off the instruments and shrinks the rest to 64x64 (`worldmodels.envs.observation`). Here each
lane's view is sampled once, `ACROSS` x `DOWN` times a pixel of the 96x84 that are kept, as indices
into a palette: a polygon is a run of bytes in each row of samples, later ones hide earlier ones.
Pixels whose samples agree take their colour from a table; the others are averaged. The 64x64 view
is the 96x84 one through the filter that PyTorch's antialiased interpolation applies.

What pygame does to edges is kept: corners are truncated to whole pixels, polygons include their
outline, and its area filter loses fractions (`LOSS`).
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from worldmodels.envs.carracing import bodies, instruments
from worldmodels.envs.carracing.contacts import CORNERS, SHAPES, WHEEL_SHAPE
from worldmodels.envs.carracing.glyphs import SUMS
from worldmodels.envs.carracing.state import (
    ANGLE,
    COS,
    HULL,
    PHASE,
    PX,
    PY,
    SHOWN,
    SIN,
    TIME,
    WHEELS,
)
from worldmodels.envs.carracing.track import PLAYFIELD, SCALE, Colors

WIDTH, HEIGHT = 1000, 800
COLUMNS, ROWS = 96, 84
"""The part of Gymnasium's 96x96 above the instruments."""
ACROSS, DOWN = 4, 2
"""Samples a pixel; more of them cost more than they give (``benchmarks/carracing_parity.py``)."""
ZOOM = 2.7
GRASS = PLAYFIELD / 20.0
SMALL, FULL = 64, 96
SIZES = (SMALL, FULL)

BLACK, BACKGROUND, GREEN, ROAD, KERB_WHITE, KERB_RED, CAR, WHEEL, STRIPE = 0, 1, 2, 3, 6, 7, 8, 0, 9
"""Palette indices; `ROAD` + i % 3 is an untouched tile i, `ROAD` a touched one."""
COLORS = 10
LOSS = 2
"""Grey levels that pygame's ``smoothscale`` loses of a plain surface, one in each direction."""

_STEP_X, _STEP_Y = WIDTH / (COLUMNS * ACROSS), HEIGHT / 96 / DOWN
CORNERS_MOST = SHAPES.shape[1]
_VIEW_RADIUS = math.hypot(WIDTH / 2, HEIGHT / 2)
_TILE_RADIUS = 15.0
"""No tile or kerb reaches further from its first corner, in metres (their diagonal is 14)."""
_HALF = 0.5
"""How far pygame's outlines reach beyond the true edge, in its pixels."""


def palette(colors: Colors) -> NDArray[np.uint32]:
    """The (10,) colours that a field's picture has, each the bytes red, green, blue, 0."""
    drawn = np.zeros((COLORS, 4), np.float64)
    drawn[BACKGROUND, :3], drawn[GREEN, :3] = colors.background, colors.grass
    for shade in range(3):
        drawn[ROAD + shade, :3] = colors.road + 0.01 * shade * 255
    drawn[KERB_WHITE, :3], drawn[KERB_RED, :3] = (255, 255, 255), (255, 0, 0)
    drawn[CAR, :3], drawn[STRIPE, :3] = (int(0.8 * 255), 0, 0), (77, 77, 77)
    bytes_ = np.maximum(drawn.astype(np.uint8), LOSS) - np.uint8(LOSS)
    return bytes_.view(np.uint32)[:, 0].copy()


def _weights(size: int, reduced: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """First pixel and weights of each output of an antialiased bilinear filter.

    The triangle filter of PIL's and PyTorch's ``antialias=True``.
    """
    scale = size / reduced
    centers = (np.arange(reduced) + 0.5) * scale
    low = (centers - scale + 0.5).astype(np.int64).clip(0, size)
    high = (centers + scale + 0.5).astype(np.int64).clip(0, size)
    taps = int((high - low).max())
    first = low.clip(None, size - taps)
    at = first[:, None] + np.arange(taps)  # (reduced, taps)
    weights = (1 - np.abs((at - centers[:, None] + 0.5) / scale)).clip(0)
    weights[(at < low[:, None]) | (at >= high[:, None])] = 0
    return first, (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)


FIRST_X, WEIGHTS_X = _weights(COLUMNS, SMALL)
FIRST_Y, WEIGHTS_Y = _weights(ROWS, SMALL)
TAPS_X, TAPS_Y = WEIGHTS_X.shape[1], WEIGHTS_Y.shape[1]


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


@njit(cache=True, error_model="numpy")
def _fill(samples, pen, count, color):
    """A convex polygon whose `count` corners are in `pen` (4, 8), the rest of which is scratch."""
    base, slope = pen[2], pen[3]
    left, right, first, last, lefts, rights = edges(pen, count, base, slope)
    for row in range(first, last + 1):
        x1, x2 = span(base, slope, left, right, lefts, rights, row)
        line = samples[row]
        if x1 <= x2:
            line[math.ceil(x1) : math.floor(x2) + 1] = color


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
def _field(samples, seen, near_x, near_y, radius, pen):
    """The ground and its squares of grass, where they can be seen."""
    if max(abs(near_x), abs(near_y)) + radius < PLAYFIELD:
        samples[:] = BACKGROUND
    else:
        samples[:] = BLACK
        rectangle(seen, -PLAYFIELD, -PLAYFIELD, PLAYFIELD, PLAYFIELD, pen)
        _fill(samples, pen, 4, BACKGROUND)
    low_x = max(math.floor((near_x - radius) / GRASS), -20)
    high_x = min(math.floor((near_x + radius) / GRASS), 19)
    low_y = max(math.floor((near_y - radius) / GRASS), -20)
    high_y = min(math.floor((near_y + radius) / GRASS), 19)
    for i in range(low_x, high_x + 1):
        for j in range(low_y, high_y + 1):
            if i % 2 == 0 and j % 2 == 0:
                x, y = i * GRASS, j * GRASS
                rectangle(seen, x, y, x + GRASS, y + GRASS, pen)
                _fill(samples, pen, 4, GREEN)


@njit(cache=True, error_model="numpy")
def sample(body, wheel, time, tiles, borders, has_border, count, touched, samples, pen):
    """Draw one lane's view as palette indices.

    Args:
        body: ``(5, 11)`` float32; see `state.Lanes`, also for `wheel` and `touched`.
        tiles, borders: ``(T, 4, 2)`` float32 of its track, of which `count` count.
        has_border: ``(T,)`` bool.
        samples: ``(84 * DOWN, 96 * ACROSS)`` uint8, written.
        pen: ``(4, 8)`` float64, scratch.
    """
    seen = view(body, time)
    near_x, near_y, radius = middle(body, seen)
    _field(samples, seen, near_x, near_y, radius, pen)
    for t in range(count):
        if in_view(tiles, t, near_x, near_y, radius):
            quad(seen, tiles[t], pen)
            _fill(samples, pen, 4, road_color(t, touched[t]))
            if has_border[t]:
                quad(seen, borders[t], pen)
                _fill(samples, pen, 4, kerb_color(t))
    for b in range(1, WHEELS + 1):
        _fill(samples, pen, part(seen, body, b, WHEEL_SHAPE, pen), WHEEL)
        if stripe(seen, body, b, wheel[b - 1, PHASE], pen):
            _fill(samples, pen, 4, STRIPE)
    for shape in range(WHEEL_SHAPE):
        _fill(samples, pen, part(seen, body, HULL, shape, pen), CAR)


@njit(cache=True, error_model="numpy")
def road_color(t, touched):
    """Palette index of tile `t`."""
    return ROAD if touched else ROAD + t % 3


@njit(cache=True, error_model="numpy")
def kerb_color(t):
    """Palette index of the kerb beside tile `t`."""
    return KERB_WHITE if t % 2 == 0 else KERB_RED


@njit(cache=True, error_model="numpy")
def shrink(samples, palette, picture):
    """Average samples to a picture.

    Args:
        samples: ``(84 * DOWN, 96)`` uint32, the `ACROSS` samples of a pixel in one word.
        palette: ``(10,)`` uint32, the bytes red, green, blue, 0.
        picture: ``(84, 96)`` uint32 of the same bytes, written.
    """
    for row in range(ROWS):
        top, bottom = samples[row * 2], samples[row * 2 + 1]
        out = picture[row]
        for column in range(COLUMNS):
            out[column] = pixel(top[column], bottom[column], palette)


@njit(cache=True, error_model="numpy", inline="always")
def pixel(first, second, palette):
    """The colour of a pixel whose eight samples are in two words."""
    color = first & np.uint32(255)
    plain = color * np.uint32(0x01010101)
    if ((first ^ plain) | (second ^ plain)) == 0:
        return palette[color]
    return _average(first, second, palette)


@njit(cache=True, error_model="numpy")
def _average(first, second, palette):
    """The mean colour of the eight samples in two words."""
    # Two bytes side by side in a word, so that one sum serves two channels.
    red_blue, green = np.uint32(0), np.uint32(0)
    for shift in range(0, 32, 8):
        for word in (first, second):
            color = palette[(word >> np.uint32(shift)) & np.uint32(255)]
            red_blue += color & np.uint32(0x00FF00FF)
            green += (color >> np.uint32(8)) & np.uint32(255)
    half = np.uint32(ACROSS * DOWN // 2)
    red = ((red_blue & np.uint32(0xFFFF)) + half) // np.uint32(ACROSS * DOWN)
    blue = ((red_blue >> np.uint32(16)) + half) // np.uint32(ACROSS * DOWN)
    green = (green + half) // np.uint32(ACROSS * DOWN)
    return red | (green << np.uint32(8)) | (blue << np.uint32(16))


@njit(cache=True, error_model="numpy")
def reduce(picture, line, frame):
    """Filter a picture ``(84, 96 * 4)`` to a frame ``(64, 64, 3)``, both uint8.

    `line` is scratch, ``(96 * 4,)`` float32. Rows first, for these are long runs of memory.
    """
    for row in range(SMALL):
        first = FIRST_Y[row]
        w0, w1, w2 = WEIGHTS_Y[row, 0], WEIGHTS_Y[row, 1], WEIGHTS_Y[row, 2]
        r0, r1, r2 = picture[first], picture[first + 1], picture[first + 2]
        for k in range(COLUMNS * 4):
            line[k] = w0 * r0[k] + w1 * r1[k] + w2 * r2[k]
        out = frame[row]
        for column in range(SMALL):
            at = FIRST_X[column] * 4
            v0, v1, v2 = WEIGHTS_X[column, 0], WEIGHTS_X[column, 1], WEIGHTS_X[column, 2]
            for channel in range(3):
                k = at + channel
                value = v0 * line[k] + v1 * line[k + 4] + v2 * line[k + 8]
                out[column, channel] = np.uint8(value + np.float32(0.5))


@njit(cache=True, error_model="numpy")
def _draw_lane(lanes, courses, n, picture):
    """The upper picture of lane `n`, ``(84, 96)`` uint32."""
    k = lanes.course[n]
    samples = np.empty((ROWS * DOWN, COLUMNS * ACROSS), np.uint8)
    sample(
        lanes.body[n],
        lanes.wheel[n],
        lanes.score[n, TIME],
        courses.tiles[k],
        courses.borders[k],
        courses.has_border[k],
        courses.counts[k],
        lanes.touched[n],
        samples,
        np.empty((4, CORNERS_MOST), np.float64),
    )
    shrink(samples.view(np.uint32), courses.palette[k], picture)


@njit(cache=True, error_model="numpy")
def _draw_small_lane(lanes, courses, n, frame):
    picture = np.empty((ROWS, COLUMNS), np.uint32)
    _draw_lane(lanes, courses, n, picture)
    reduce(picture.view(np.uint8), np.empty(COLUMNS * 4, np.float32), frame)


@njit(cache=True, error_model="numpy")
def _draw_full_lane(lanes, courses, n, frame):
    picture = np.empty((ROWS, COLUMNS), np.uint32)
    _draw_lane(lanes, courses, n, picture)
    for row in range(ROWS):
        for column in range(COLUMNS):
            color = picture[row, column]
            frame[row, column, 0] = color & np.uint32(255)
            frame[row, column, 1] = (color >> np.uint32(8)) & np.uint32(255)
            frame[row, column, 2] = (color >> np.uint32(16)) & np.uint32(255)
    score = lanes.score[n, SHOWN]
    instruments.draw(lanes.body[n], lanes.wheel[n], score, SUMS, frame[ROWS:])


@njit(cache=True, error_model="numpy", parallel=True)
def draw_small(lanes, courses, active, frames):
    """Draw what the `active` lanes (N,) bool see into `frames` (N, 64, 64, 3) uint8."""
    for n in prange(len(active)):
        if active[n]:
            _draw_small_lane(lanes, courses, n, frames[n])


@njit(cache=True, error_model="numpy", parallel=True)
def draw_full(lanes, courses, active, frames):
    """Draw Gymnasium's pictures of the `active` lanes (N,) bool into (N, 96, 96, 3) uint8."""
    for n in prange(len(active)):
        if active[n]:
            _draw_full_lane(lanes, courses, n, frames[n])
