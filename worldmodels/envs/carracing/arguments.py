"""Checks of the arguments of the vector environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldmodels.errors import WorldModelsError


def check_mask(mask: Any, num_envs: int, name: str) -> NDArray[np.bool_]:
    """Return `mask` as an array ``(N,)`` bool.

    Raises:
        WorldModelsError: another shape or type, or no True. It begins with `name`.
    """
    checked: NDArray[np.bool_] = np.asarray(mask)
    if checked.shape != (num_envs,) or checked.dtype != np.bool_ or not checked.any():
        raise WorldModelsError(
            f"{name}: is {checked.dtype} of shape {checked.shape} with {np.count_nonzero(checked)}"
            f" True; give one bool for each of the {num_envs} environments, at least one True"
        )
    return checked


def check_seeds(seed: int | Sequence[int | None] | None, num_envs: int) -> list[int | None]:
    """Return a seed, or None, for each environment; one integer is the first of consecutive seeds.

    Raises:
        WorldModelsError: another number of seeds, or a negative one.
    """
    if seed is None:
        return [None] * num_envs
    if isinstance(seed, int | np.integer):
        seed = range(int(seed), int(seed) + num_envs)
    seeds = [None if one is None else int(one) for one in seed]
    if len(seeds) != num_envs:
        raise WorldModelsError(
            f"seed: has {len(seeds)} seeds for {num_envs} environments; give one for each"
        )
    for env, one in enumerate(seeds):
        if one is not None and one < 0:
            raise WorldModelsError(
                f"seed: {one} of environment {env} is negative; choose 0 or more"
            )
    return seeds


def check_indices(envs: Any, num_envs: int) -> NDArray[np.int64]:
    """Return the indices of environments as an array ``(M,)``; None is all of them.

    Raises:
        WorldModelsError: no list of integers, an empty one, or an index out of range.
    """
    if envs is None:
        return np.arange(num_envs)
    index = np.asarray(envs)
    if index.ndim != 1 or not len(index) or index.dtype.kind not in "iu":
        raise WorldModelsError(
            f"envs: is {index.dtype} of shape {index.shape}; give a list of indices"
        )
    if index.min() < 0 or index.max() >= num_envs:
        raise WorldModelsError(
            f"envs: {index.tolist()} has indices outside 0 to {num_envs - 1}; give those of"
            " environments that exist"
        )
    return index.astype(np.int64)
