"""The bar below Gymnasium's picture: speed, wheels, steering, turning, and the score."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from worldmodels.envs.carracing import glyphs
from worldmodels.envs.carracing.state import ANGLE, HULL, OMEGA, VX, VY, W

ROWS, COLUMNS = 12, 96
WIDTH, HEIGHT = 1000, 800
TOP = 700
"""The first of Gymnasium's 1000x800 pixels that belongs to the bar."""
STEP_X, STEP_Y = WIDTH / COLUMNS, HEIGHT / 96
UNIT_X, UNIT_Y = WIDTH / 40.0, HEIGHT / 40.0
TEXT_X, TEXT_Y = 60, 750
LEAST = 1e-4
"""Values below it are not shown."""
LOSS = 2.0

_ADVANCE = glyphs.ADVANCE
_MINUS, _LAST, _TALL = glyphs.MINUS, len(glyphs.CHARACTERS), glyphs.HEIGHT
_WIDE = glyphs.SUMS.shape[2] - 1


@njit(cache=True, error_model="numpy")
def draw(body, wheel, score, sums, bar):
    """Draw the instruments of one environment.

    Args:
        body: ``(5, 11)`` float32; see `state.Envs`.
        wheel: ``(4, 5)`` float64; see `state.Envs`.
        score: the return to show.
        sums: `glyphs.SUMS`, an argument because a GPU has no room for so large a constant.
        bar: ``(12, 96, 3)`` uint8, written.
    """
    bar[:] = 0
    vx, vy = np.float64(body[HULL, VX]), np.float64(body[HULL, VY])
    _vertical(bar, 5, 0.02, math.sqrt(vx * vx + vy * vy), 255, 255, 255)
    _vertical(bar, 7, 0.01, wheel[0, OMEGA], 0, 0, 255)
    _vertical(bar, 8, 0.01, wheel[1, OMEGA], 0, 0, 255)
    _vertical(bar, 9, 0.01, wheel[2, OMEGA], 51, 0, 255)
    _vertical(bar, 10, 0.01, wheel[3, OMEGA], 51, 0, 255)
    _horizontal(bar, 20, -10.0, np.float64(body[1, ANGLE] - body[HULL, ANGLE]), 0, 255, 0)
    _horizontal(bar, 30, -0.8, np.float64(body[HULL, W]), 255, 0, 0)
    _score(bar, score, sums)


@njit(cache=True, error_model="numpy")
def _vertical(bar, place, scale, value, red, green, blue):
    if abs(value) > LEAST:
        high = HEIGHT - (UNIT_Y + UNIT_Y * (scale * value))
        low = HEIGHT - UNIT_Y
        _rectangle(bar, place * UNIT_X, (place + 1) * UNIT_X, high, low, red, green, blue)


@njit(cache=True, error_model="numpy")
def _horizontal(bar, place, scale, value, red, green, blue):
    if abs(value) > LEAST:
        end = (place + scale * value) * UNIT_X
        top, bottom = HEIGHT - 4 * UNIT_Y, HEIGHT - 2 * UNIT_Y
        _rectangle(bar, place * UNIT_X, end, top, bottom, red, green, blue)


@njit(cache=True, error_model="numpy")
def _rectangle(bar, x1, x2, y1, y2, red, green, blue):
    """Blend a rectangle of whole pixels, its outline included, by the area it covers."""
    left, right = math.trunc(min(x1, x2)) / STEP_X, (math.trunc(max(x1, x2)) + 1) / STEP_X
    top = (math.trunc(min(y1, y2)) - TOP) / STEP_Y
    bottom = (math.trunc(max(y1, y2)) + 1 - TOP) / STEP_Y
    for row in range(max(math.floor(top), 0), min(math.ceil(bottom), ROWS)):
        tall = min(bottom, row + 1.0) - max(top, float(row))
        for column in range(max(math.floor(left), 0), min(math.ceil(right), COLUMNS)):
            share = tall * (min(right, column + 1.0) - max(left, float(column)))
            _blend(bar, row, column, 0, share, red)
            _blend(bar, row, column, 1, share, green)
            _blend(bar, row, column, 2, share, blue)


@njit(cache=True, error_model="numpy")
def _blend(bar, row, column, channel, share, value):
    shown = max(value - LOSS, 0.0)
    mixed = bar[row, column, channel] * (1 - share) + shown * share
    bar[row, column, channel] = np.uint8(mixed)


@njit(cache=True, error_model="numpy")
def _digits(score):
    """The text ``f"{score:04.0f}"`` as characters from the last to the first, and how many."""
    number = abs(round(score))
    negative = score < 0 or (score == 0 and math.copysign(1.0, score) < 0)
    packed, count = 0, 0
    least = 3 if negative else 4
    while count < least or number > 0:
        packed = packed * 16 + number % 10
        number //= 10
        count += 1
    # `packed` now has the first digit in its lowest four bits.
    if negative:
        packed, count = packed * 16 + _MINUS, count + 1
    return packed, count


@njit(cache=True, error_model="numpy")
def _score(bar, score, sums):
    packed, count = _digits(score)
    width, rest = 0, packed
    for i in range(count):
        character = rest % 16
        rest //= 16
        width += _ADVANCE[
            _LAST if i == count - 1 else character, rest % 16 if i < count - 1 else character
        ]
    left, top = TEXT_X - width // 2, TEXT_Y - _TALL // 2 - TOP
    rest = packed
    for i in range(count):
        character = rest % 16
        rest //= 16
        _character(bar, sums[character], left, top)
        if i < count - 1:
            left += _ADVANCE[character, rest % 16]


@njit(cache=True, error_model="numpy")
def _sum(sums, x, y):
    """Coverage of a character above and left of (x, y) in its own pixels, between them linear."""
    x, y = min(max(x, 0.0), float(_WIDE)), min(max(y, 0.0), float(_TALL))
    i, j = min(int(y), _TALL - 1), min(int(x), _WIDE - 1)
    v, u = y - i, x - j
    above = sums[i, j] * (1 - u) + sums[i, j + 1] * u
    below = sums[i + 1, j] * (1 - u) + sums[i + 1, j + 1] * u
    return above * (1 - v) + below * v


@njit(cache=True, error_model="numpy")
def _character(bar, sums, left, top):
    first_row, last_row = math.floor(top / STEP_Y), math.ceil((top + _TALL) / STEP_Y)
    first, last = math.floor(left / STEP_X), math.ceil((left + _WIDE) / STEP_X)
    for row in range(max(first_row, 0), min(last_row, ROWS)):
        y1, y2 = row * STEP_Y - top, (row + 1) * STEP_Y - top
        for column in range(max(first, 0), min(last, COLUMNS)):
            x1, x2 = column * STEP_X - left, (column + 1) * STEP_X - left
            covered = _sum(sums, x2, y2) - _sum(sums, x1, y2)
            covered += _sum(sums, x1, y1) - _sum(sums, x2, y1)
            share = covered / (STEP_X * STEP_Y)
            for channel in range(3):
                value = bar[row, column, channel] + 255.0 * share
                bar[row, column, channel] = np.uint8(min(value, 255.0 - LOSS))
