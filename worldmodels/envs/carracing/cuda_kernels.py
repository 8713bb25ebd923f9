"""The kernels of a GPU.

A thread steps an environment. A block draws a quarter of a frame: its threads compute the outlines
of a batch of polygons, then each fills its own piece of a row of samples with them in their order,
and then they average the samples to pixels, all in the block's shared memory. The functions that
they call for a step, an outline and a pixel are those of the CPU's kernels.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, njit

from worldmodels.envs.carracing import game, instruments, outlines, picture
from worldmodels.envs.carracing.contacts import WHEEL_SHAPE
from worldmodels.envs.carracing.outlines import ACROSS, COLUMNS, DOWN, ROWS
from worldmodels.envs.carracing.picture import SMALL
from worldmodels.envs.carracing.state import HULL, PHASE, SHOWN, TIME, WHEELS
from worldmodels.envs.carracing.track import PLAYFIELD

BANDS = 4
SMALL_BAND, FULL_BAND = SMALL // BANDS, ROWS // BANDS
"""Rows of the frame in a band."""
BAND_ROWS = max(
    FULL_BAND,
    *(
        int(picture.FIRST_Y[last - 1] + picture.TAPS_Y - picture.FIRST_Y[last - SMALL_BAND])
        for last in range(SMALL_BAND, SMALL + 1, SMALL_BAND)
    ),
)
"""Rows of the 96x84 picture that a band of either frame is made of, at most."""
PIECES = 4
"""Threads that share a row of samples."""
PIECE = COLUMNS * ACROSS // PIECES
THREADS = BAND_ROWS * DOWN * PIECES
STRIDE = COLUMNS * ACROSS + 4
"""Bytes from a row of samples to the next, so that rows begin in different banks of memory."""
# The shapes of shared arrays; numba needs them as constants.
BAND = (BAND_ROWS, COLUMNS)
SAMPLES = (BAND_ROWS * DOWN, STRIDE)
EDGES, EXTENTS = (THREADS, outlines.CORNERS_MOST), (THREADS, 2)
OUTLINE = (2, outlines.CORNERS_MOST)
ENVS_PER_BLOCK = 64
SQUARES = 20
"""Squares of grass along a side of the field."""
FIRST, LAST, LEFTS, RIGHTS, COLOR = range(5)
LIMITS = (THREADS, COLOR + 1)


class Batch(NamedTuple):
    """What goes in and out of a step: see `game.step`, `picture.draw_small`, `glyphs.SUMS`."""

    font: Any
    active: Any
    controls: Any
    rewards: Any
    ends: Any
    frames: Any


@cuda.jit(cache=True)
def reset(envs, courses, batch, percent):
    """See `game.reset`."""
    n = cuda.grid(1)
    if n < len(batch.active) and batch.active[n]:
        game.reset_env(envs, courses, n, percent)


@cuda.jit(cache=True)
def step(envs, courses, batch, percent):
    """See `game.step`."""
    n = cuda.grid(1)
    if n < len(batch.active) and batch.active[n]:
        steer, gas, brake = batch.controls[n, 0], batch.controls[n, 1], batch.controls[n, 2]
        reward, end = game.step_env(envs, courses, n, steer, gas, brake, percent)
        batch.rewards[n] = reward
        batch.ends[n] = end


@njit(cache=True, error_model="numpy")
def _outline(p, envs, courses, n, transform, x, y, radius, outline):
    """The corners of polygon `p` in the order of drawing, their number (0: out of view), colour."""
    k = envs.course[n]
    body, count = envs.body[n], courses.counts[k]
    if p == 0:
        outlines.rectangle(transform, -PLAYFIELD, -PLAYFIELD, PLAYFIELD, PLAYFIELD, outline)
        return 4, picture.BACKGROUND
    p -= 1
    if p < SQUARES * SQUARES:
        side = outlines.GRASS
        left, low = (2 * (p // SQUARES) - SQUARES) * side, (2 * (p % SQUARES) - SQUARES) * side
        if abs(left + side / 2 - x) > radius + side or abs(low + side / 2 - y) > radius + side:
            return 0, 0
        outlines.rectangle(transform, left, low, left + side, low + side, outline)
        return 4, picture.GREEN
    p -= SQUARES * SQUARES
    if p < 2 * count:
        t = p // 2
        if not outlines.in_view(courses.tiles[k], t, x, y, radius):
            return 0, 0
        if p % 2 == 0:
            outlines.quad(transform, courses.tiles[k, t], outline)
            return 4, picture.road_color(t, envs.touched[n, t])
        if not courses.has_border[k, t]:
            return 0, 0
        outlines.quad(transform, courses.borders[k, t], outline)
        return 4, picture.kerb_color(t)
    p -= 2 * count
    if p >= 2 * WHEELS:
        return outlines.part(transform, body, HULL, p - 2 * WHEELS, outline), picture.CAR
    b = p // 2 + 1
    if p % 2 == 0:
        return outlines.part(transform, body, b, WHEEL_SHAPE, outline), picture.WHEEL
    if outlines.stripe(transform, body, b, envs.wheel[n, b - 1, PHASE], outline):
        return 4, picture.STRIPE
    return 0, 0


@njit(cache=True, error_model="numpy")
def _note(outline, count, color, base, slope, extent, limits):
    """Write down the `outlines.edges` of an outline; whether any of it is in the picture."""
    limits[LAST] = -1
    if count == 0:
        return False
    left, right, first, last, lefts, rights = outlines.edges(outline, count, base, slope)
    extent[0], extent[1] = left, right
    limits[FIRST], limits[LAST], limits[COLOR] = first, last, color
    limits[LEFTS], limits[RIGHTS] = lefts, rights
    return last >= 0


@njit(cache=True, error_model="numpy")
def _fill_piece(line, row, begin, base, slope, extent, limits):
    """Fill samples from `begin` of a `line`, which is `row` of the picture, with all outlines."""
    for i in range(len(limits)):
        if limits[i, FIRST] <= row and row <= limits[i, LAST]:
            left, right = outlines.span(
                base[i],
                slope[i],
                extent[i, 0],
                extent[i, 1],
                limits[i, LEFTS],
                limits[i, RIGHTS],
                np.float32(row),
            )
            first, last = max(math.ceil(left), begin), min(math.floor(right), begin + PIECE - 1)
            for column in range(first, last + 1):
                line[column] = limits[i, COLOR]


@njit(cache=True, error_model="numpy")
def _word(line, column):
    """The four samples of a pixel in one word."""
    first = 4 * column
    return np.uint32(
        np.uint32(line[first])
        | np.uint32(line[first + 1]) << np.uint32(8)
        | np.uint32(line[first + 2]) << np.uint32(16)
        | np.uint32(line[first + 3]) << np.uint32(24)
    )


@cuda.jit(device=True)
def _draw_band(envs, courses, n, first, rows, band):
    """Draw `rows` rows of the 96x84 frame of environment `n`, from row `first` on, into `band`."""
    samples = cuda.shared.array(SAMPLES, np.uint8)
    base = cuda.shared.array(EDGES, np.float32)
    slope = cuda.shared.array(EDGES, np.float32)
    extent = cuda.shared.array(EXTENTS, np.float32)
    limits = cuda.shared.array(LIMITS, np.int16)
    outline = cuda.local.array(OUTLINE, np.float64)
    thread = cuda.threadIdx.x
    line, begin = samples[thread // PIECES], thread % PIECES * PIECE
    row = first * DOWN + thread // PIECES
    for column in range(begin, begin + PIECE):
        line[column] = picture.BLACK
    transform = outlines.view_transform(envs.body[n], envs.score[n, TIME])
    x, y, radius = outlines.middle(envs.body[n], transform)
    polygons = 1 + SQUARES * SQUARES + 2 * courses.counts[envs.course[n]] + 2 * WHEELS + WHEELS
    for start in range(0, polygons, THREADS):
        count, color = 0, 0
        if start + thread < polygons:
            count, color = _outline(
                start + thread, envs, courses, n, transform, x, y, radius, outline
            )
        some = _note(
            outline, count, color, base[thread], slope[thread], extent[thread], limits[thread]
        )
        if cuda.syncthreads_or(np.int32(some)):
            _fill_piece(line, row, begin, base, slope, extent, limits)
        cuda.syncthreads()
    palette = courses.palette[envs.course[n]]
    for place in range(thread, rows * COLUMNS, THREADS):
        r, column = place // COLUMNS, place % COLUMNS
        upper, lower = _word(samples[DOWN * r], column), _word(samples[DOWN * r + 1], column)
        band[r, column] = picture.pixel(upper, lower, palette)
    cuda.syncthreads()


@njit(cache=True, error_model="numpy")
def _channel(color, shift):
    return np.float32((color >> np.uint32(shift)) & np.uint32(255))


@njit(cache=True, error_model="numpy")
def _reduce_pixel(band, first, row, column, pixel):
    """One pixel (3,) of the 64x64 frame: see `picture.reduce`."""
    top, left = picture.FIRST_Y[row] - first, picture.FIRST_X[column]
    for channel in range(3):
        value = np.float32(0)
        for i in range(picture.TAPS_X):
            line = np.float32(0)
            for j in range(picture.TAPS_Y):
                color = band[top + j, left + i]
                line += picture.WEIGHTS_Y[row, j] * _channel(color, 8 * channel)
            value += picture.WEIGHTS_X[column, i] * line
        pixel[channel] = np.uint8(value + np.float32(0.5))


@cuda.jit(cache=True)
def draw_small(envs, courses, batch):
    """See `picture.draw_small`; a block an environment and band."""
    n, band_row = cuda.blockIdx.x, cuda.blockIdx.y * SMALL_BAND
    if batch.active[n]:
        band = cuda.shared.array(BAND, np.uint32)
        first = picture.FIRST_Y[band_row]
        rows = picture.FIRST_Y[band_row + SMALL_BAND - 1] + picture.TAPS_Y - first
        _draw_band(envs, courses, n, first, rows, band)
        for place in range(cuda.threadIdx.x, SMALL_BAND * SMALL, THREADS):
            row, column = band_row + place // SMALL, place % SMALL
            _reduce_pixel(band, first, row, column, batch.frames[n, row, column])


@cuda.jit(cache=True)
def draw_full(envs, courses, batch):
    """The part above the bar of `picture.draw_full`; a block an environment and band."""
    n, first = cuda.blockIdx.x, cuda.blockIdx.y * FULL_BAND
    if batch.active[n]:
        band = cuda.shared.array(BAND, np.uint32)
        _draw_band(envs, courses, n, first, FULL_BAND, band)
        for place in range(cuda.threadIdx.x, FULL_BAND * COLUMNS, THREADS):
            row, column = place // COLUMNS, place % COLUMNS
            for channel in range(3):
                shift = np.uint32(8 * channel)
                batch.frames[n, first + row, column, channel] = np.uint8(
                    (band[row, column] >> shift) & np.uint32(255)
                )


@cuda.jit(cache=True)
def draw_bars(envs, courses, batch):
    """The bar of `picture.draw_full`."""
    n = cuda.grid(1)
    if n < len(batch.active) and batch.active[n]:
        score, bar = envs.score[n, SHOWN], batch.frames[n, ROWS:]
        instruments.draw(envs.body[n], envs.wheel[n], score, batch.font, bar)
