"""Loops of the worlds on a CPU, compiled by numba.

They use integers, sums, products and comparisons only, in the order of the tensor operations that
they replace, so that the results are equal to the bit. Exponential, logarithm, square root, sine
and cosine stay with PyTorch, whose library rounds them otherwise than numba's.

All of them are in this file, because numba looks for changes only in the file of the function that
is called. Shapes are in the letters of docs/shapes.md, with G mixtures as in
`worldmodels.models.heads.Mixture`.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np

import worldmodels.envs.carracing  # noqa: F401  (lets numba keep kernels where it has no folder)

_GOLDEN, _FIRST, _SECOND = (
    np.uint64(number) for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
_TO_TURN = 2.0 * math.pi * 2.0**-32


@numba.njit(cache=True)
def _mix(x: Any) -> Any:
    """SplitMix64's finaliser of one uint64."""
    x = (x ^ (x >> np.uint64(30))) * _FIRST
    x = (x ^ (x >> np.uint64(27))) * _SECOND
    return x ^ (x >> np.uint64(31))


@numba.njit(cache=True)
def uniform(keys: Any, steps: Any, out: Any) -> None:
    """`EpisodeNoise.uniform`.

    Args:
        keys: (N,) uint64.
        steps: (N,) uint64, of each environment.
        out: (N, size) float32, is overwritten.
    """
    size = out.shape[1]
    for row in range(len(keys)):
        first = steps[row] * np.uint64(size) + np.uint64(1)
        for i in range(size):
            bits = _mix(keys[row] + (first + np.uint64(i)) * _GOLDEN)
            out[row, i] = np.float32(np.int64(bits >> np.uint64(40))) * np.float32(2.0**-24)


@numba.njit(cache=True)
def radii_and_angles(keys: Any, steps: Any, radii: Any, angles: Any) -> None:
    """The uniform numbers of `EpisodeNoise.normal`.

    Args:
        keys: (N,) uint64.
        steps: (N,) uint64, of each environment.
        radii: (N, pairs) float64, becomes numbers between 0 and 1.
        angles: (N, pairs) float64, becomes angles in radians.
    """
    size = radii.shape[1]
    for row in range(len(keys)):
        first = steps[row] * np.uint64(size) + np.uint64(1)
        for i in range(size):
            bits = _mix(keys[row] + (first + np.uint64(i)) * _GOLDEN)
            high = np.float64(np.int64(bits >> np.uint64(32)))
            low = np.float64(np.int64(bits & np.uint64(0xFFFFFFFF)))
            radii[row, i] = (high + 0.5) * 2.0**-32
            angles[row, i] = low * _TO_TURN


@numba.njit(cache=True)
def from_polar(radii: Any, cosines: Any, sines: Any, out: Any) -> None:
    """The normal numbers of `EpisodeNoise.normal`.

    Args:
        radii: (N, pairs) float64.
        cosines: (N, pairs) float64, of the angles.
        sines: (N, pairs) float64.
        out: (N, size) float32, is overwritten: first the numbers of the cosines, then of the sines.
    """
    pairs = radii.shape[1]
    others = out.shape[1] - pairs
    for row in range(len(radii)):
        for i in range(pairs):
            out[row, i] = radii[row, i] * cosines[row, i]
        for i in range(others):
            out[row, pairs + i] = radii[row, i] * sines[row, i]


@numba.njit(cache=True)
def subtract_largest(logits: Any, components: Any) -> None:
    """Subtract from the logits of each mixture the largest of them.

    Args:
        logits: (N, G, K) float32, are overwritten.
        components: a tuple of length K. The compiler knows its length and unrolls the loops.
    """
    rows, groups, _ = logits.shape
    for row in range(rows):
        for group in range(groups):
            largest = logits[row, group, 0]
            for k in range(1, len(components)):
                largest = max(largest, logits[row, group, k])
            for k in range(len(components)):
                logits[row, group, k] -= largest


@numba.njit(cache=True)
def choose(
    weights: Any, uniform: Any, means: Any, log_stds: Any, chosen: Any, components: Any
) -> None:
    """Choose a component in each dimension, by the inverse of the cumulative distribution.

    Args:
        weights: (N, G, K) float32, of the components, not normalised.
        uniform: (N, Z) float32; a shared mixture uses the first of each row.
        means: (N, Z, K) float32.
        log_stds: (N, Z, K) float32.
        chosen: (2, N, Z) float32, becomes mean and log standard deviation of the components.
        components: a tuple of length K, as for `subtract_largest`.
    """
    rows, size, _ = means.shape
    shared = weights.shape[1] == 1
    for row in range(rows):
        for i in range(size):
            group = 0 if shared else i
            bound = weights[row, group, 0]
            total = bound
            for k in range(1, len(components)):
                total += weights[row, group, k]
            drawn = uniform[row, group] * total
            mean, log_std = means[row, i, 0], log_stds[row, i, 0]
            for k in range(1, len(components)):
                beyond = drawn >= bound
                mean = means[row, i, k] if beyond else mean
                log_std = log_stds[row, i, k] if beyond else log_std
                bound += weights[row, group, k]
            chosen[0, row, i], chosen[1, row, i] = mean, log_std
