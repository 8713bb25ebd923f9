"""Episodes that other programs recorded, as they become episodes of this one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from worldmodels.data.hdf5 import LARGEST_EPISODE
from worldmodels.data.shards import Episode
from worldmodels.envs.observation import ObservationSpec
from worldmodels.errors import DataError
from worldmodels.files.untrusted import printable

BLOCK_BYTES = 2**24
"""Of pictures that are reduced at once."""
LARGEST_PICTURE = 2**26
"""Pixels of a picture of another program, at most."""


@dataclass(frozen=True)
class Foreign:
    """One episode as it was recorded; T is the number of its actions.

    Args:
        name: of the episode, for messages.
        pictures: blocks (n, H, W, 3) uint8 of the T + 1 pictures, in order; read once.
        actions: (T, A), or (T,) for one number a step.
        rewards: (T,); None where none were recorded.
        terminated: (T,); None where no episode terminates.
        truncated: (T,); None for an end at the last action that is not a termination.
        seed: of the environment; None where it is not known.
    """

    name: str
    pictures: Iterable[np.ndarray]
    actions: np.ndarray
    rewards: np.ndarray | None = None
    terminated: np.ndarray | None = None
    truncated: np.ndarray | None = None
    seed: int | None = None


class Source(Protocol):
    """Recorded episodes, numbered from 0."""

    def __len__(self) -> int:
        """The number of episodes."""
        ...

    def identity(self, index: int) -> str:
        """Name and SHA-256 of what episode `index` is read from."""
        ...

    def read(self, index: int) -> Foreign:
        """Episode `index`; raises `ArtifactError` where it cannot be read."""
        ...


class Kind(NamedTuple):
    """What all episodes of a set have in common.

    Args:
        action_size: A, numbers of an action.
        rewarded: whether rewards were recorded.
    """

    action_size: int
    rewarded: bool


def as_episode(
    foreign: Foreign, spec: ObservationSpec, seed: int, like: Kind | None
) -> tuple[Episode, Kind]:
    """Check a recorded episode, and reduce its pictures to frames.

    Args:
        foreign: the episode.
        spec: of the frames.
        seed: of the episode, where it has none.
        like: of the episodes before it; None for the first.

    Returns:
        the episode, and its kind.

    Raises:
        DataError: it does not fit, in one line.
    """
    name = foreign.name
    actions = _numbers(name, "actions", foreign.actions)
    if actions.ndim == 1:
        actions = actions[:, None]
    if actions.ndim != 2 or 0 in actions.shape:
        raise DataError(
            f"{name}: actions are {foreign.actions.shape}, not (T, A) with at least one step; give"
            " one row of numbers for each step"
        )
    steps = len(actions)
    kind = Kind(actions.shape[1], foreign.rewards is not None)
    if like is not None and kind.action_size != like.action_size:
        raise DataError(
            f"{name}: its actions have {kind.action_size} numbers, those before it"
            f" {like.action_size}; remove it, or import it as another run"
        )
    if like is not None and kind.rewarded != like.rewarded:
        having = ("has no rewards, those before it have", "has rewards, those before it have none")
        raise DataError(f"{name}: {having[kind.rewarded]}; give all episodes rewards, or none")
    frames = _frames(foreign, spec, steps)
    rewards = np.zeros(steps, np.float32)
    if foreign.rewards is not None:
        rewards = _column(name, "rewards", _numbers(name, "rewards", foreign.rewards), steps)
    terminated = np.zeros(steps, bool)
    if foreign.terminated is not None:
        terminated = _flags(name, "terminations", foreign.terminated, steps)
    truncated = np.arange(steps) == steps - 1
    if foreign.truncated is not None:
        truncated = _flags(name, "truncations", foreign.truncated, steps)
    else:
        truncated &= ~terminated
    chosen = seed if foreign.seed is None else foreign.seed
    try:
        return Episode(frames, actions, rewards, terminated, truncated, chosen), kind
    except ValueError:
        raise DataError(
            f"{name}: ends before its last action; make an episode of each part"
        ) from None


def _frames(foreign: Foreign, spec: ObservationSpec, steps: int) -> np.ndarray:
    """The frames (T + 1, size, size, 3)."""
    name, needed = foreign.name, steps + 1
    if needed * spec.size**2 * 3 > LARGEST_EPISODE:
        raise DataError(
            f"{name}: {needed:,} frames of {spec.size} pixels are more than {LARGEST_EPISODE:,}"
            " bytes; make several episodes of it, or choose a smaller env.size"
        )
    count, frames = 0, np.empty((needed, spec.size, spec.size, 3), np.uint8)
    for block in foreign.pictures:
        _check_pictures(name, block, spec)
        if count + len(block) > needed:
            raise DataError(
                f"{name}: has more than {needed} pictures, which go with {steps} actions; cut it,"
                " or give the missing actions"
            )
        frames[count : count + len(block)] = spec.reduce(block)
        count += len(block)
    if count < needed:
        raise DataError(
            f"{name}: ends after {count} pictures, {steps} actions need {needed}; cut the actions,"
            " or remove the episode"
        )
    return frames


def _check_pictures(name: str, block: np.ndarray, spec: ObservationSpec) -> None:
    rows, columns = block.shape[1:3]
    if (rows, columns) == (spec.size, spec.size):
        return
    if min(rows, columns) < spec.size:
        raise DataError(
            f"{name}: pictures of {rows}x{columns} are smaller than env.size={spec.size}; choose a"
            " smaller env.size"
        )
    if spec.crop_rows is not None and rows < spec.crop_rows:
        raise DataError(
            f"{name}: pictures of {rows} rows, env.crop_rows={spec.crop_rows}; choose fewer, or"
            " null"
        )


def _numbers(name: str, what: str, array: np.ndarray) -> np.ndarray:
    """An array of finite numbers as float32."""
    if array.dtype.kind not in "fiub":
        kind = printable(str(array.dtype), 200)
        raise DataError(f"{name}: {what} are {kind}, not numbers; give numbers")
    with np.errstate(over="ignore"):
        numbers = array.astype(np.float32)
    if not np.isfinite(numbers).all():
        raise DataError(f"{name}: {what} are not all finite; remove the episode, or correct it")
    return numbers


def _flags(name: str, what: str, array: np.ndarray, steps: int) -> np.ndarray:
    """An array (T,), or (T, 1), of truth values or numbers, as bool."""
    return _column(name, what, _numbers(name, what, array), steps).astype(bool)


def _column(name: str, what: str, array: np.ndarray, steps: int) -> np.ndarray:
    """An array (T,), or (T, 1)."""
    if array.shape == (steps, 1):
        array = array[:, 0]
    if array.shape != (steps,):
        raise DataError(
            f"{name}: {what} are {array.shape} for {steps} actions; give one for each action"
        )
    return array
