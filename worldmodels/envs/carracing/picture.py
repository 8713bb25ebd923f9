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

from worldmodels.envs.carracing import bodies
from worldmodels.envs.carracing.contacts import CORNERS, SHAPES
from worldmodels.envs.carracing.state import ANGLE, COS, HULL, PHASE, PX, PY, SIN, TIME, WHEELS
from worldmodels.envs.carracing.track import PLAYFIELD, SCALE

WIDTH, HEIGHT = 1000, 800
COLUMNS, ROWS = 96, 84
"""The part of Gymnasium's 96x96 above the instruments."""
ACROSS, DOWN = 4, 3
"""Samples a pixel; see ``benchmarks/carracing_pictures.py`` for what they cost and give."""
ZOOM = 2.7
GRASS = PLAYFIELD / 20.0
SMALL = 64

BLACK, BACKGROUND, GREEN, ROAD, KERB_WHITE, KERB_RED, CAR, WHEEL, STRIPE = 0, 1, 2, 3, 6, 7, 8, 0, 9
"""Palette indices; `ROAD` + i % 3 is an untouched tile i, `ROAD` a touched one."""
COLORS = 10
LOSS = 2
"""Grey levels that pygame's ``smoothscale`` loses of a plain surface, one in each direction."""

_STEP_X, _STEP_Y = WIDTH / (COLUMNS * ACROSS), HEIGHT / 96 / DOWN
_VIEW_RADIUS = math.hypot(WIDTH / 2, HEIGHT / 2)
_TILE_RADIUS = 15.0
"""No tile or kerb reaches further from its first corner, in metres (their diagonal is 14)."""
_HALF = 0.5
"""How far pygame's outlines reach beyond the true edge, in its pixels."""


def palette(road: np.ndarray, background: np.ndarray, grass: np.ndarray) -> np.ndarray:
    """The (10, 3) uint8 colours of a field painted with these (each (3,) float64)."""
    colors = np.zeros((COLORS, 3), np.float64)
    colors[BACKGROUND], colors[GREEN] = background, grass
    for shade in range(3):
        colors[ROAD + shade] = road + 0.01 * shade * 255
    colors[KERB_WHITE], colors[KERB_RED] = (255, 255, 255), (255, 0, 0)
    colors[CAR], colors[STRIPE] = (int(0.8 * 255), 0, 0), (77, 77, 77)
    return colors.astype(np.uint8)


def _weights(size: int, reduced: int) -> tuple[np.ndarray, np.ndarray]:
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
def _fill(samples, x, y, count, color):
    """A convex polygon with `count` corners at (x, y), whole pixels of pygame's turned surface."""
    left, right, top, bottom = x[0], x[0], y[0], y[0]
    area = 0.0
    for i in range(count):
        j = i + 1 if i + 1 < count else 0
        left, right = min(left, x[i]), max(right, x[i])
        top, bottom = min(top, y[i]), max(bottom, y[i])
        area += x[i] * y[j] - x[j] * y[i]
    left, right, top, bottom = left - _HALF, right + _HALF, top - _HALF, bottom + _HALF
    if right < 0 or left > WIDTH or bottom < 0 or top > HEIGHT:
        return
    first = max(math.ceil(top / _STEP_Y - 0.5), 0)
    last = min(math.floor(bottom / _STEP_Y - 0.5), len(samples) - 1)
    sense = 1.0 if area >= 0 else -1.0
    for row in range(first, last + 1):
        at = (row + 0.5) * _STEP_Y
        x1, x2 = left, right
        for i in range(count):
            j = i + 1 if i + 1 < count else 0
            dy = (y[j] - y[i]) * sense
            if dy == 0:
                continue
            dx = (x[j] - x[i]) * sense
            slope = dx / dy
            edge = x[i] + (at - y[i]) * slope
            reach = _HALF * math.sqrt(1 + slope * slope)
            if dy > 0:
                x2 = min(x2, edge + reach)
            else:
                x1 = max(x1, edge - reach)
        a = max(math.ceil(x1 / _STEP_X - 0.5), 0)
        b = min(math.floor(x2 / _STEP_X - 0.5), samples.shape[1] - 1)
        for k in range(a, b + 1):
            samples[row, k] = color


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
    """The pixel of a point of the world, truncated as pygame does, its centre, rows from the top."""
    zoom, s, c, ox, oy = view
    px, py = (c * x - s * y) * zoom + ox, (s * x + c * y) * zoom + oy
    return math.trunc(px) + 0.5, HEIGHT - (math.trunc(py) + 0.5)


@njit(cache=True, error_model="numpy")
def _quad(samples, view, quad, xs, ys, color):
    for i in range(4):
        xs[i], ys[i] = _project(view, quad[i, 0], quad[i, 1])
    _fill(samples, xs, ys, 4, color)


@njit(cache=True, error_model="numpy")
def _rectangle(samples, view, x1, y1, x2, y2, xs, ys, color):
    xs[0], ys[0] = _project(view, x1, y1)
    xs[1], ys[1] = _project(view, x2, y1)
    xs[2], ys[2] = _project(view, x2, y2)
    xs[3], ys[3] = _project(view, x1, y2)
    _fill(samples, xs, ys, 4, color)


@njit(cache=True, error_model="numpy")
def _field(samples, view, near_x, near_y, radius, xs, ys):
    """The ground and its squares of grass, where they can be seen from the point `near`."""
    _rectangle(samples, view, -PLAYFIELD, -PLAYFIELD, PLAYFIELD, PLAYFIELD, xs, ys, BACKGROUND)
    low_x = max(math.floor((near_x - radius) / GRASS), -20)
    high_x = min(math.floor((near_x + radius) / GRASS), 19)
    low_y = max(math.floor((near_y - radius) / GRASS), -20)
    high_y = min(math.floor((near_y + radius) / GRASS), 19)
    for i in range(low_x, high_x + 1):
        for j in range(low_y, high_y + 1):
            if i % 2 == 0 and j % 2 == 0:
                x, y = i * GRASS, j * GRASS
                _rectangle(samples, view, x, y, x + GRASS, y + GRASS, xs, ys, GREEN)


@njit(cache=True, error_model="numpy")
def _part(samples, view, body, b, shape, xs, ys, color):
    s, c, px, py = body[b, SIN], body[b, COS], body[b, PX], body[b, PY]
    for i in range(CORNERS[shape]):
        x, y = SHAPES[shape, i, 0], SHAPES[shape, i, 1]
        xs[i], ys[i] = _project(
            view, np.float64((c * x - s * y) + px), np.float64((s * x + c * y) + py)
        )
    _fill(samples, xs, ys, CORNERS[shape], color)


@njit(cache=True, error_model="numpy")
def _stripe(samples, view, body, b, phase, xs, ys):
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
        xs[i], ys[i] = _project(view, (c * x - s * y) + px, (s * x + c * y) + py)
    _fill(samples, xs, ys, 4, STRIPE)


@njit(cache=True, error_model="numpy")
def sample(body, wheel, time, tiles, borders, has_border, count, touched, samples, xs, ys):
    """Draw one lane's view as palette indices.

    Args:
        body: ``(5, 11)`` float32; see `state.Lanes`, also for `wheel` and `touched`.
        tiles, borders: ``(T, 4, 2)`` float64 of its track, of which `count` count.
        has_border: ``(T,)`` bool.
        samples: ``(84 * DOWN, 96 * ACROSS)`` uint8, written.
        xs, ys: ``(8,)`` float64, scratch.
    """
    samples[:] = BLACK
    view = _view(body, time)
    zoom, s, c = view[0], view[1], view[2]
    radius = _VIEW_RADIUS / zoom
    # The middle of the picture is 200 pixels ahead of the hull.
    ahead = (HEIGHT / 2 - HEIGHT / 4) / zoom
    near_x, near_y = body[HULL, PX] + s * ahead, body[HULL, PY] + c * ahead
    _field(samples, view, near_x, near_y, radius, xs, ys)
    reach = (radius + _TILE_RADIUS) ** 2
    for t in range(count):
        x, y = tiles[t, 0, 0] - near_x, tiles[t, 0, 1] - near_y
        if x * x + y * y < reach:
            shade = 0 if touched[t] else t % 3
            _quad(samples, view, tiles[t], xs, ys, ROAD + shade)
            if has_border[t]:
                color = KERB_WHITE if t % 2 == 0 else KERB_RED
                _quad(samples, view, borders[t], xs, ys, color)
    for b in range(1, WHEELS + 1):
        _part(samples, view, body, b, 4, xs, ys, WHEEL)
        _stripe(samples, view, body, b, wheel[b - 1, PHASE], xs, ys)
    for shape in range(4):
        _part(samples, view, body, HULL, shape, xs, ys, CAR)


@njit(cache=True, error_model="numpy")
def shrink(samples, palette, picture):
    """Average samples ``(84 * DOWN, 96 * ACROSS)`` to a picture ``(84, 96, 3)`` uint8."""
    for row in range(ROWS):
        for column in range(COLUMNS):
            first = samples[row * DOWN, column * ACROSS]
            plain = True
            for i in range(DOWN):
                for j in range(ACROSS):
                    plain &= samples[row * DOWN + i, column * ACROSS + j] == first
            if plain:
                for channel in range(3):
                    picture[row, column, channel] = max(palette[first, channel], LOSS) - LOSS
                continue
            for channel in range(3):
                total = 0
                for i in range(DOWN):
                    for j in range(ACROSS):
                        total += palette[samples[row * DOWN + i, column * ACROSS + j], channel]
                value = total / (ACROSS * DOWN) - 1.0
                picture[row, column, channel] = np.uint8(max(value, 0.0))


@njit(cache=True, error_model="numpy")
def reduce(picture, wide, frame):
    """Filter a picture ``(84, 96, 3)`` to a frame ``(64, 64, 3)``, both uint8."""
    for row in range(ROWS):
        for column in range(SMALL):
            first = FIRST_X[column]
            for channel in range(3):
                total = np.float32(0.5)
                for tap in range(TAPS_X):
                    total += WEIGHTS_X[column, tap] * picture[row, first + tap, channel]
                wide[row, column, channel] = np.uint8(total)
    for row in range(SMALL):
        first = FIRST_Y[row]
        for column in range(SMALL):
            for channel in range(3):
                total = np.float32(0.5)
                for tap in range(TAPS_Y):
                    total += WEIGHTS_Y[row, tap] * wide[first + tap, column, channel]
                frame[row, column, channel] = np.uint8(total)
