"""The frames, drawn directly at the size of the observation.

Gymnasium draws polygons with pygame into 1000x800 pixels and shrinks them to 96x96. The models take
the 96x84 pixels above the instruments, shrunk to 64x64. Here each frame is sampled once, `ACROSS` x
`DOWN` times for each of these 96x84 pixels, as indices into a palette: a polygon is a run of bytes
in each row of samples, and later ones cover earlier ones. Pixels whose samples agree take their
colour from a table; the others are averaged. The 64x64 frame is the 96x84 one through the filter of
PyTorch's antialiased interpolation.

``outlines`` computes where a polygon is. As in pygame's area filter, colours are rounded down
(`LOSS`).
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from worldmodels.envs.carracing import instruments
from worldmodels.envs.carracing.contacts import WHEEL_SHAPE
from worldmodels.envs.carracing.glyphs import SUMS
from worldmodels.envs.carracing.outlines import (
    ACROSS,
    COLUMNS,
    CORNERS_MOST,
    DOWN,
    GRASS,
    ROWS,
    edges,
    in_view,
    middle,
    part,
    quad,
    rectangle,
    span,
    stripe,
    view_transform,
)
from worldmodels.envs.carracing.state import HULL, PHASE, SHOWN, TIME, WHEELS
from worldmodels.envs.carracing.track import PLAYFIELD, Colors

SMALL, FULL = 64, 96
SIZES = (SMALL, FULL)

BLACK, BACKGROUND, GREEN, ROAD, KERB_WHITE, KERB_RED, CAR, WHEEL, STRIPE = 0, 1, 2, 3, 6, 7, 8, 0, 9
"""Palette indices; `ROAD` + i % 3 is an untouched tile i, `ROAD` a touched one."""
COLORS = 10
LOSS = 2
"""Grey levels that pygame's ``smoothscale`` loses of a plain surface, one in each direction."""


def palette(colors: Colors) -> NDArray[np.uint32]:
    """The colours of a frame.

    Returns:
        ``(10,)`` uint32, each the bytes red, green, blue, 0; see `BLACK` and the following.
    """
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
def _fill(samples, outline, count, color):
    """Fill a convex polygon.

    Args:
        samples: ``(84 * DOWN, 96 * ACROSS)`` uint8, written.
        outline: ``(4, 8)`` float64: the corners, and scratch; see `outlines`.
        count: number of corners.
        color: palette index.
    """
    base, slope = outline[2], outline[3]
    left, right, first, last, lefts, rights = edges(outline, count, base, slope)
    for row in range(first, last + 1):
        x1, x2 = span(base, slope, left, right, lefts, rights, row)
        line = samples[row]
        if x1 <= x2:
            line[math.ceil(x1) : math.floor(x2) + 1] = color


@njit(cache=True, error_model="numpy")
def _field(samples, transform, near_x, near_y, radius, outline):
    """Fill the ground and the squares of grass that are inside the frame.

    Args:
        samples: ``(84 * DOWN, 96 * ACROSS)`` uint8, written.
        transform: see `outlines.view_transform`.
        near_x, near_y, radius: in metres; see `outlines.middle`.
        outline: ``(4, 8)`` float64, scratch; see `outlines`.
    """
    if max(abs(near_x), abs(near_y)) + radius < PLAYFIELD:
        samples[:] = BACKGROUND
    else:
        samples[:] = BLACK
        rectangle(transform, -PLAYFIELD, -PLAYFIELD, PLAYFIELD, PLAYFIELD, outline)
        _fill(samples, outline, 4, BACKGROUND)
    low_x = max(math.floor((near_x - radius) / GRASS), -20)
    high_x = min(math.floor((near_x + radius) / GRASS), 19)
    low_y = max(math.floor((near_y - radius) / GRASS), -20)
    high_y = min(math.floor((near_y + radius) / GRASS), 19)
    for i in range(low_x, high_x + 1):
        for j in range(low_y, high_y + 1):
            if i % 2 == 0 and j % 2 == 0:
                x, y = i * GRASS, j * GRASS
                rectangle(transform, x, y, x + GRASS, y + GRASS, outline)
                _fill(samples, outline, 4, GREEN)


@njit(cache=True, error_model="numpy")
def _sample(envs, courses, n, samples, outline):
    """Draw the frame of environment `n` as palette indices.

    Args:
        envs, courses: see `state.Envs` and `courses.Courses`.
        n: index of the environment.
        samples: ``(84 * DOWN, 96 * ACROSS)`` uint8, written.
        outline: ``(4, 8)`` float64, scratch; see `outlines`.
    """
    k, body, wheel, touched = envs.course[n], envs.body[n], envs.wheel[n], envs.touched[n]
    tiles, borders, has_border = courses.tiles[k], courses.borders[k], courses.has_border[k]
    transform = view_transform(body, envs.score[n, TIME])
    near_x, near_y, radius = middle(body, transform)
    _field(samples, transform, near_x, near_y, radius, outline)
    for t in range(courses.counts[k]):  # the arrays are padded
        if in_view(tiles, t, near_x, near_y, radius):
            quad(transform, tiles[t], outline)
            _fill(samples, outline, 4, road_color(t, touched[t]))
            if has_border[t]:
                quad(transform, borders[t], outline)
                _fill(samples, outline, 4, kerb_color(t))
    for b in range(1, WHEELS + 1):
        _fill(samples, outline, part(transform, body, b, WHEEL_SHAPE, outline), WHEEL)
        if stripe(transform, body, b, wheel[b - 1, PHASE], outline):
            _fill(samples, outline, 4, STRIPE)
    for shape in range(WHEEL_SHAPE):
        _fill(samples, outline, part(transform, body, HULL, shape, outline), CAR)


@njit(cache=True, error_model="numpy")
def road_color(t, touched):
    """Palette index of tile `t`, which a part of the car has `touched` or not."""
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
    """The colour of a pixel.

    Args:
        first, second: uint32, the four samples of its upper and lower row, a byte each.
        palette: ``(10,)`` uint32; see `palette`.

    Returns:
        uint32, the bytes red, green, blue, 0.
    """
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
    """Reduce a frame to 64x64 with an antialiased bilinear filter.

    Rows are filtered first, since they are contiguous in memory.

    Args:
        picture: ``(84, 96 * 4)`` uint8, the bytes red, green, blue, 0 of each pixel.
        line: ``(96 * 4,)`` float32, scratch.
        frame: ``(64, 64, 3)`` uint8, written.
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
def _draw_env(envs, courses, n, picture):
    """Draw the part above the instruments of environment `n` into `picture` (84, 96) uint32."""
    samples = np.empty((ROWS * DOWN, COLUMNS * ACROSS), np.uint8)
    _sample(envs, courses, n, samples, np.empty((4, CORNERS_MOST), np.float64))
    shrink(samples.view(np.uint32), courses.palette[envs.course[n]], picture)


@njit(cache=True, error_model="numpy")
def _draw_small_env(envs, courses, n, frame):
    picture = np.empty((ROWS, COLUMNS), np.uint32)
    _draw_env(envs, courses, n, picture)
    reduce(picture.view(np.uint8), np.empty(COLUMNS * 4, np.float32), frame)


@njit(cache=True, error_model="numpy")
def _draw_full_env(envs, courses, n, frame):
    picture = np.empty((ROWS, COLUMNS), np.uint32)
    _draw_env(envs, courses, n, picture)
    for row in range(ROWS):
        for column in range(COLUMNS):
            color = picture[row, column]
            frame[row, column, 0] = color & np.uint32(255)
            frame[row, column, 1] = (color >> np.uint32(8)) & np.uint32(255)
            frame[row, column, 2] = (color >> np.uint32(16)) & np.uint32(255)
    score = envs.score[n, SHOWN]
    instruments.draw(envs.body[n], envs.wheel[n], score, SUMS, frame[ROWS:])


@njit(cache=True, error_model="numpy", parallel=True)
def draw_small(envs, courses, active, frames):
    """Draw 64x64 frames without instruments.

    Args:
        envs, courses: see `state.Envs` and `courses.Courses`.
        active: ``(N,)`` bool, the environments to draw.
        frames: ``(N, 64, 64, 3)`` uint8, written for active environments.
    """
    for n in prange(len(active)):
        if active[n]:
            _draw_small_env(envs, courses, n, frames[n])


@njit(cache=True, error_model="numpy", parallel=True)
def draw_full(envs, courses, active, frames):
    """Draw Gymnasium's 96x96 frames, instruments included.

    Args:
        envs, courses: see `state.Envs` and `courses.Courses`.
        active: ``(N,)`` bool, the environments to draw.
        frames: ``(N, 96, 96, 3)`` uint8, written for active environments.
    """
    for n in prange(len(active)):
        if active[n]:
            _draw_full_env(envs, courses, n, frames[n])
