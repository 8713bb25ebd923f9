"""Checks of spaces, seeds and actions that all engines share, and the types of environments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Space
from numpy.typing import NDArray

from worldmodels.errors import WorldModelsError

Observations = NDArray[Any]
Actions = NDArray[np.float32]
VectorStep = tuple[Observations, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]
"""``observations (N, ...), rewards (N,) float64, terminated (N,) bool, truncated (N,) bool,
infos`` as `gymnasium.vector.VectorEnv.step` returns them."""

_MAX_SEED = 2**31 - 1
"""The largest seed that every engine takes (EnvPool's are int32)."""


def is_picture(space: Space[Any]) -> bool:
    """Whether observations are colour pictures, ``uint8 (H, W, 3)``."""
    shape = space.shape or ()
    return isinstance(space, Box) and space.dtype == np.uint8 and len(shape) == 3 and shape[2] == 3


def check_seeds(seed: int | Sequence[int | None] | None, num_envs: int) -> list[int]:
    """Return one seed for each environment, as plain integers.

    Args:
        seed: one seed for each environment; or the first of consecutive ones, as Gymnasium defines
            it. None, for one environment or for all, is an unpredictable one.
        num_envs: number of environments N.

    Raises:
        WorldModelsError: not N seeds, or one that is negative or above 2**31 - 1.
    """
    given: list[int | None] = [None] * num_envs
    if isinstance(seed, int | np.integer):
        given = [int(seed) + index for index in range(num_envs)]
    elif seed is not None:
        given = list(seed)
    if len(given) != num_envs:
        raise WorldModelsError(
            f"{len(given)} seeds for {num_envs} environments: give one for each environment"
        )
    fresh = np.random.SeedSequence().generate_state(num_envs)
    seeds = [
        int(word) & _MAX_SEED if one is None else int(one)
        for one, word in zip(given, fresh, strict=True)
    ]
    for index, episode_seed in enumerate(seeds):
        if not 0 <= episode_seed <= _MAX_SEED:
            raise WorldModelsError(
                f"environment {index}: seed {episode_seed} is not in 0..{_MAX_SEED}; choose another"
                " seed"
            )
    return seeds


def beginning(
    seed: int | Sequence[int | None] | None, options: dict[str, Any] | None, num_envs: int
) -> tuple[list[int], NDArray[np.bool_]]:
    """The seeds of a reset, one for each environment, and which environments begin an episode.

    Args:
        seed: see `check_seeds`, which raises the errors.
        options: of the reset; its ``reset_mask`` (N,) bool chooses the environments, else all.
        num_envs: number of environments N.
    """
    return check_seeds(seed, num_envs), np.asarray(
        (options or {}).get("reset_mask", np.ones(num_envs, bool))
    )


def check_actions(actions: NDArray[Any], space: Space[Any]) -> NDArray[Any]:
    """Return the actions as the space's own type, or raise an error that names the environment.

    Args:
        actions: one action for each environment, ended environments included.
        space: of all environments, ``(N, A)`` floats or ``(N,)`` integers.

    Raises:
        WorldModelsError: another shape, or a number that is not finite.
    """
    actions = np.asarray(actions)
    if actions.shape != space.shape:
        raise WorldModelsError(
            f"actions have shape {actions.shape}, not (num_envs, action size) = {space.shape}: "
            "give one action for each environment"
        )
    finite = np.isfinite(actions)
    if not finite.all():
        index = int(np.flatnonzero(~finite.all(axis=1))[0])
        raise WorldModelsError(
            f"environment {index}: action {actions[index].tolist()} is not finite: "
            "the controller or the model before it has diverged"
        )
    return actions.astype(space.dtype, copy=False)
