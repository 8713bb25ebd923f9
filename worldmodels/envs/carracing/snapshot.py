"""Saved states: which arrays they hold, and whether given ones fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldmodels.envs.carracing.courses import Courses, empty_courses
from worldmodels.envs.carracing.state import Envs, empty_envs
from worldmodels.errors import WorldModelsError

State = dict[str, NDArray[Any]]
"""The state of M environments on K courses, as arrays by name.

    envs.<field>      (M, ...) what the simulator keeps; fields of `state.Envs`
    courses.<field>   (K, ...) their tracks and colours; fields of `courses.Courses`
    frames            (M, size, size, 3) uint8, the observations
    steps             (M,) int64, since the reset
    terminated        (M,) bool
    truncated         (M,) bool
    started           (M,) bool, whether it was ever reset
    generator         (M, 6) uint64, of the next random tracks; see `pack_generator`
    colors            (M, 3, 3) float64, of road, background and grass; red, green, blue of each

``numpy.savez(path, **state)`` writes it, ``dict(numpy.load(path))`` reads it.
"""

_WORD = 2**64


def own_arrays(num_envs: int) -> State:
    """Zeroed arrays of what the vector environment itself keeps of N environments.

    They are those of `State` that have no prefix, except the frames.
    """
    return {
        "steps": np.zeros(num_envs, np.int64),
        "terminated": np.zeros(num_envs, np.bool_),
        "truncated": np.zeros(num_envs, np.bool_),
        "started": np.zeros(num_envs, np.bool_),
        "generator": np.zeros((num_envs, 6), np.uint64),
        "colors": np.zeros((num_envs, 3, 3), np.float64),
    }


def pack_generator(state: Mapping[str, Any]) -> NDArray[np.uint64]:
    """``numpy.random.PCG64.state`` as ``(6,)`` uint64: state, increment, and half a word left."""
    state_, increment = state["state"]["state"], state["state"]["inc"]
    words = (*divmod(state_, _WORD), *divmod(increment, _WORD))
    return np.array([*words, state["has_uint32"], state["uinteger"]], np.uint64)


def unpack_generator(words: NDArray[np.uint64]) -> np.random.Generator:
    """The generator whose state `pack_generator` packed."""
    high, low, increment_high, increment_low, has_half, half = words.tolist()
    bits = np.random.PCG64()
    bits.state = {
        "bit_generator": "PCG64",
        "state": {"state": high * _WORD + low, "inc": increment_high * _WORD + increment_low},
        "has_uint32": has_half,
        "uinteger": half,
    }
    return np.random.Generator(bits)


def select_state(state: Mapping[str, NDArray[Any]], envs: Any) -> State:
    """The state of some of the environments of a state.

    Args:
        state: of M environments; see `State`.
        envs: ``(S,)`` indices below M, in the order wanted; repeated ones repeat the environment.

    Returns:
        copies, of S environments.
    """
    chosen = np.asarray(envs, np.int64)
    rows, course = np.unique(state["envs.course"][chosen], return_inverse=True)
    selected = {
        name: array[rows if name.startswith("courses.") else chosen]
        for name, array in state.items()
    }
    return selected | {"envs.course": course.astype(np.int32)}


def check_state(state: Mapping[str, NDArray[Any]], size: int) -> int:
    """Return the number M of environments of a state that fits.

    Args:
        state: see `State`.
        size: side of the frames.

    Raises:
        WorldModelsError: an array is missing, or has another shape or type than it should, or
            contains indices of nothing.
    """
    template = _template(state, size)
    for name, wanted in template.items():
        array = state.get(name)
        if not isinstance(array, np.ndarray):
            found = "is missing" if array is None else f"is a {type(array).__name__}, not an array"
            raise WorldModelsError(f"state[{name!r}]: {found}; give what get_state returned")
        if (array.shape, array.dtype) != (wanted.shape, wanted.dtype):
            raise WorldModelsError(
                f"state[{name!r}]: is {array.dtype} of shape {array.shape}, not {wanted.dtype} of"
                f" shape {wanted.shape}; give what get_state returned for frames of size {size}"
            )
    _check_indices(state)
    return len(state["frames"])


def _template(state: Mapping[str, NDArray[Any]], size: int) -> State:
    """Zeroed arrays of the sizes M, K, T and of `near` that a state says it has."""

    def length(name: str, axis: int) -> int:
        shape = getattr(state.get(name), "shape", ())
        return shape[axis] if len(shape) > axis else 1

    num_envs, tiles = length("envs.course", 0), length("courses.tiles", 1)
    envs = empty_envs(num_envs, tiles)
    courses = empty_courses(length("courses.counts", 0), tiles, length("courses.near", 1))
    template: State = {f"envs.{name}": getattr(envs, name) for name in Envs._fields}
    template |= {f"courses.{name}": getattr(courses, name) for name in Courses._fields}
    template["frames"] = np.zeros((num_envs, size, size, 3), np.uint8)
    return template | own_arrays(num_envs)


def _check_indices(state: Mapping[str, NDArray[Any]]) -> None:
    """Raise for indices out of range: the kernels would read other memory."""
    tiles, near = state["courses.tiles"].shape[1], state["courses.near"].shape[1]
    bounds = {
        "envs.course": len(state["courses.counts"]) - 1,
        "courses.counts": tiles,
        "courses.cells": near,
        "courses.near": tiles - 1,
    }
    for name, most in bounds.items():
        array = state[name]
        if array.size and not (array.min() >= 0 and array.max() <= most):
            raise WorldModelsError(
                f"state[{name!r}]: has values outside 0 to {most}; give what get_state returned"
            )
