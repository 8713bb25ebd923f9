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
from worldmodels.envs.carracing.contacts import CORNERS, SHAPES
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
"""Samples a pixel; see ``benchmarks/carracing_pictures.py`` for what they cost and give."""
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
    first = np.zeros(reduced, np.int64)
    taps = math.ceil(2 * scale) + 1
    weights = np.zeros((reduced, taps), np.float32)
    for i in range(reduced):
        center = (i + 0.5) * scale
        low, high = max(int(center - scale + 0.5), 0), min(int(center + scale + 0.5), size)
        w = [max(0.0, 1 - abs((j - center + 0.5) / scale)) for j in range(low, high)]
        first[i] = min(low, size - taps)
        weights[i, low - first[i] : high - first[i]] = np.array(w) / sum(w)
    return first, weights


FIRST_X, WEIGHTS_X = _weights(COLUMNS, SMALL)
FIRST_Y, WEIGHTS_Y = _weights(ROWS, SMALL)
TAPS_X, TAPS_Y = WEIGHTS_X.shape[1], WEIGHTS_Y.shape[1]


@njit(cache=True, error_model="numpy")
def _fill(samples, pen, count, color):
    """A convex polygon whose `count` corners are in `pen`, in pygame's pixels.

    A row's samples lie between the rightmost of the left edges and the leftmost of the right ones,
    each moved outwards by half a pixel.
    """
    x, y, base, slope = pen[0], pen[1], pen[2], pen[3]
    left, right, top, bottom = x[0], x[0], y[0], y[0]
    area = 0.0
    for i in range(count):
        j = i + 1 if i + 1 < count else 0
        left, right = min(left, x[i]), max(right, x[i])
        top, bottom = min(top, y[i]), max(bottom, y[i])
        area += x[i] * y[j] - x[j] * y[i]
    left = max((left - _HALF) / _STEP_X - 0.5, 0.0)
    right = min((right + _HALF) / _STEP_X - 0.5, samples.shape[1] - 1.0)
    first = max(math.ceil((top - _HALF) / _STEP_Y - 0.5), 0)
    last = min(math.floor((bottom + _HALF) / _STEP_Y - 0.5), samples.shape[0] - 1)
    if left > right or first > last:
        return
    # Left edges from the front of base and slope, right ones from the back, in samples.
    sense = 1.0 if area >= 0 else -1.0
    lefts, rights = 0, CORNERS_MOST
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
    for row in range(first, last + 1):
        x1, x2 = left, right
        for i in range(lefts):
            x1 = max(x1, base[i] + slope[i] * row)
        for i in range(rights, CORNERS_MOST):
            x2 = min(x2, base[i] + slope[i] * row)
        line = samples[row]
        # Unsigned, so that the compiler sees no negative index and fills whole words.
        if x1 <= x2:
            line[math.ceil(x1) : math.floor(x2) + 1] = color


@njit(cache=True, error_model="numpy")
def _view(body, time):
    """Zoom in pixels a metre, sine and cosine of the turn, and where the world's origin lies."""
    zoom = 0.1 * SCALE * max(1 - time, 0.0) + ZOOM * SCALE * min(time, 1.0)
    turn = -np.float64(body[HULL, ANGLE])
    s, c = math.sin(turn), math.cos(turn)
    x, y = -np.float64(body[HULL, PX]) * zoom, -np.float64(body[HULL, PY]) * zoom
    return zoom, s, c, WIDTH / 2 + (c * x - s * y), HEIGHT / 4 + (s * x + c * y)


@njit(cache=True, error_model="numpy")
def _project(view, x, y):
    """The centre of the pixel of a point of the world, truncated as pygame does; rows go down."""
    zoom, s, c, ox, oy = view
    px, py = (c * x - s * y) * zoom + ox, (s * x + c * y) * zoom + oy
    return math.trunc(px) + 0.5, HEIGHT - (math.trunc(py) + 0.5)


@njit(cache=True, error_model="numpy")
def _quad(samples, view, quad, pen, color):
    for i in range(4):
        pen[0, i], pen[1, i] = _project(view, quad[i, 0], quad[i, 1])
    _fill(samples, pen, 4, color)


@njit(cache=True, error_model="numpy")
def _rectangle(samples, view, x1, y1, x2, y2, pen, color):
    pen[0, 0], pen[1, 0] = _project(view, x1, y1)
    pen[0, 1], pen[1, 1] = _project(view, x2, y1)
    pen[0, 2], pen[1, 2] = _project(view, x2, y2)
    pen[0, 3], pen[1, 3] = _project(view, x1, y2)
    _fill(samples, pen, 4, color)


@njit(cache=True, error_model="numpy")
def _field(samples, view, near_x, near_y, radius, pen):
    """The ground and its squares of grass, where they can be seen from the point `near`."""
    _rectangle(samples, view, -PLAYFIELD, -PLAYFIELD, PLAYFIELD, PLAYFIELD, pen, BACKGROUND)
    low_x = max(math.floor((near_x - radius) / GRASS), -20)
    high_x = min(math.floor((near_x + radius) / GRASS), 19)
    low_y = max(math.floor((near_y - radius) / GRASS), -20)
    high_y = min(math.floor((near_y + radius) / GRASS), 19)
    for i in range(low_x, high_x + 1):
        for j in range(low_y, high_y + 1):
            if i % 2 == 0 and j % 2 == 0:
                x, y = i * GRASS, j * GRASS
                _rectangle(samples, view, x, y, x + GRASS, y + GRASS, pen, GREEN)


@njit(cache=True, error_model="numpy")
def _part(samples, view, body, b, shape, pen, color):
    s, c, px, py = body[b, SIN], body[b, COS], body[b, PX], body[b, PY]
    for i in range(CORNERS[shape]):
        x, y = SHAPES[shape, i, 0], SHAPES[shape, i, 1]
        pen[0, i], pen[1, i] = _project(
            view, np.float64((c * x - s * y) + px), np.float64((s * x + c * y) + py)
        )
    _fill(samples, pen, CORNERS[shape], color)


@njit(cache=True, error_model="numpy")
def _stripe(samples, view, body, b, phase, pen):
    """The white stripe that turns with a wheel (``Car.draw``)."""
    s1, s2 = math.sin(phase), math.sin(phase + 1.2)
    c1, c2 = math.cos(phase), math.cos(phase + 1.2)
    if s1 > 0 and s2 > 0:
        return
    if s1 > 0:
        c1 = np.sign(c1)
    if s2 > 0:
        c2 = np.sign(c2)
    s, c = np.float64(body[b, SIN]), np.float64(body[b, COS])
    px, py = np.float64(body[b, PX]), np.float64(body[b, PY])
    half, length = bodies.WHEEL_WIDTH * bodies.SIZE, bodies.WHEEL_RADIUS * bodies.SIZE
    for i in range(4):
        x = half if i == 1 or i == 2 else -half
        y = length * (c1 if i < 2 else c2)
        pen[0, i], pen[1, i] = _project(view, (c * x - s * y) + px, (s * x + c * y) + py)
    _fill(samples, pen, 4, STRIPE)


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
    samples[:] = BLACK
    view = _view(body, time)
    zoom, s, c = view[0], view[1], view[2]
    radius = _VIEW_RADIUS / zoom
    # The middle of the picture is 200 pixels ahead of the hull.
    ahead = (HEIGHT / 2 - HEIGHT / 4) / zoom
    near_x, near_y = body[HULL, PX] + s * ahead, body[HULL, PY] + c * ahead
    _field(samples, view, near_x, near_y, radius, pen)
    reach = (radius + _TILE_RADIUS) ** 2
    for t in range(count):
        x, y = tiles[t, 0, 0] - near_x, tiles[t, 0, 1] - near_y
        if x * x + y * y < reach:
            shade = 0 if touched[t] else t % 3
            _quad(samples, view, tiles[t], pen, ROAD + shade)
            if has_border[t]:
                color = KERB_WHITE if t % 2 == 0 else KERB_RED
                _quad(samples, view, borders[t], pen, color)
    for b in range(1, WHEELS + 1):
        _part(samples, view, body, b, 4, pen, WHEEL)
        _stripe(samples, view, body, b, wheel[b - 1, PHASE], pen)
    for shape in range(4):
        _part(samples, view, body, HULL, shape, pen, CAR)


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
            first = top[column]
            color = first & np.uint32(255)
            plain = color * np.uint32(0x01010101)
            if ((first ^ plain) | (bottom[column] ^ plain)) == 0:
                out[column] = palette[color]
            else:
                out[column] = _average(first, bottom[column], palette)


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
        w0, w1, w2, w3 = WEIGHTS_Y[row, 0], WEIGHTS_Y[row, 1], WEIGHTS_Y[row, 2], WEIGHTS_Y[row, 3]
        r0, r1, r2, r3 = picture[first], picture[first + 1], picture[first + 2], picture[first + 3]
        for k in range(COLUMNS * 4):
            line[k] = w0 * r0[k] + w1 * r1[k] + w2 * r2[k] + w3 * r3[k]
        out = frame[row]
        for column in range(SMALL):
            at = FIRST_X[column] * 4
            v0, v1, v2, v3 = (
                WEIGHTS_X[column, 0],
                WEIGHTS_X[column, 1],
                WEIGHTS_X[column, 2],
                WEIGHTS_X[column, 3],
            )
            for channel in range(3):
                k = at + channel
                value = v0 * line[k] + v1 * line[k + 4] + v2 * line[k + 8] + v3 * line[k + 12]
                out[column, channel] = np.uint8(value + np.float32(0.5))


@njit(cache=True, error_model="numpy")
def _draw_lane(lanes, courses, n, picture):
    """The upper picture of lane `n`, ``(84, 96)`` uint32."""
    samples = np.empty((ROWS * DOWN, COLUMNS * ACROSS), np.uint8)
    sample(
        lanes.body[n],
        lanes.wheel[n],
        lanes.score[n, TIME],
        courses.tiles[n],
        courses.borders[n],
        courses.has_border[n],
        courses.counts[n],
        lanes.touched[n],
        samples,
        np.empty((4, CORNERS_MOST), np.float64),
    )
    shrink(samples.view(np.uint32), courses.palette[n], picture)


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
    instruments.draw(lanes.body[n], lanes.wheel[n], lanes.score[n, SHOWN], frame[ROWS:])


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
