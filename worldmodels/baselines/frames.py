"""What a baseline without models observes: the latest frames, grey."""

from __future__ import annotations

import numpy as np

_RED, _GREEN, _BLUE = 77, 150, 29
"""Weights of ITU-R BT.601 in 256ths."""


def grey(frames: np.ndarray) -> np.ndarray:
    """Grey frames (N, H, W) of coloured ones (N, H, W, 3), both uint8."""
    parts = frames.astype(np.uint16)
    total = _RED * parts[..., 0] + _GREEN * parts[..., 1] + _BLUE * parts[..., 2]
    return (total >> 8).astype(np.uint8)


class FrameStack:
    """The latest K grey frames of N episodes: (N, K, H, W) uint8, the oldest first.

    Before the first frame of an episode there are zeros.

    Args:
        length: K.
    """

    def __init__(self, length: int) -> None:
        self._length = length

    def begin(self, frames: np.ndarray) -> np.ndarray:
        """Begin N episodes with their first frames (N, H, W, 3); returns the stacks."""
        count, *sides, _ = frames.shape
        self._stacks = np.zeros((count, self._length, *sides), np.uint8)
        self._stacks[:, -1] = grey(frames)
        return self._stacks.copy()

    def add(self, frames: np.ndarray) -> np.ndarray:
        """Add the next frames (N, H, W, 3); returns the stacks."""
        self._stacks = np.concatenate([self._stacks[:, 1:], grey(frames)[:, None]], axis=1)
        return self._stacks.copy()

    def restart(self, mask: np.ndarray, frames: np.ndarray) -> np.ndarray:
        """Begin new episodes where `mask` (N,) bool is True, with frames (N, H, W, 3) of all
        environments; returns the stacks."""
        self._stacks[mask] = 0
        self._stacks[mask, -1] = grey(frames[mask])
        return self._stacks.copy()

    def keep(self, mask: np.ndarray) -> None:
        """Drop the episodes where `mask` (N,) bool is False."""
        self._stacks = self._stacks[mask]
