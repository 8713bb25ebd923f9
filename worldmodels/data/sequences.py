"""Windows of encoded episodes for truncated back-propagation through time with carried state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from worldmodels.data.latents import LatentSet


class SequenceBatch(NamedTuple):
    """B rows of T steps; padding is zeros. The timeline is drawn in ``shards.py``."""

    mean: np.ndarray  # (B, T + 1, Z) float32
    logvar: np.ndarray  # (B, T + 1, Z) float32
    actions: np.ndarray  # (B, T, A) float32
    rewards: np.ndarray  # (B, T) float32
    terminated: np.ndarray  # (B, T) float32
    mask: np.ndarray  # (B, T) bool, True where the transition is real
    starts: np.ndarray  # (B,) bool, True where the row begins an episode


class SequenceBatches:
    """Batches in which every transition of some episodes occurs once per epoch.

    Window k of an episode is followed, in the same row of the next batch, by window k + 1, so that
    the state can be carried; after the last window the row continues with another episode. No
    window contains steps of two episodes. The order is a function of (seed, epoch), so that
    training resumes at any batch.

    Args:
        latents: the encoded episodes.
        indices: of the episodes to use.
        batch_size: B, rows of a batch.
        length: T, steps of a window; 0 is that of the longest episode, hence whole episodes. The
            attribute of this name is never 0.
        seed: of the order.
        shuffle: in random order; False is in order.
    """

    def __init__(
        self,
        latents: LatentSet,
        indices: np.ndarray,
        batch_size: int,
        length: int,
        seed: int,
        shuffle: bool,
    ) -> None:
        self._latents, self._indices = latents, np.asarray(indices)
        self._rows = min(batch_size, len(self._indices))
        self.length = length or int(latents.lengths[self._indices].max())
        self._seed, self._shuffle = seed, shuffle

    def steps(self, number: int) -> int:
        """The number of batches in epoch `number`."""
        return max(len(row) for row in self._plan(number))

    def epoch(self, number: int, start: int = 0) -> Iterator[SequenceBatch]:
        """The batches of epoch `number`, from batch `start` on."""
        plan = self._plan(number)
        for step in range(start, max(len(row) for row in plan)):
            batch = self._blank()
            for row, windows in enumerate(plan):
                if step < len(windows):
                    self._fill(batch, row, *windows[step])
            yield batch

    def _plan(self, number: int) -> list[list[tuple[int, int]]]:
        """Windows (episode, first step) by row; the next episode goes to the row free first."""
        order = self._indices
        if self._shuffle:
            order = np.random.default_rng([self._seed, number]).permutation(order)
        rows: list[list[tuple[int, int]]] = [[] for _ in range(self._rows)]
        for index in order:
            row = min(rows, key=len)
            steps = int(self._latents.lengths[index])
            row += [(int(index), start) for start in range(0, steps, self.length)]
        return rows

    def _blank(self) -> SequenceBatch:
        rows, length, latents = self._rows, self.length, self._latents
        return SequenceBatch(
            mean=np.zeros((rows, length + 1, latents.latent_size), np.float32),
            logvar=np.zeros((rows, length + 1, latents.latent_size), np.float32),
            actions=np.zeros((rows, length, latents.action_size), np.float32),
            rewards=np.zeros((rows, length), np.float32),
            terminated=np.zeros((rows, length), np.float32),
            mask=np.zeros((rows, length), bool),
            starts=np.ones(rows, bool),
        )

    def _fill(self, batch: SequenceBatch, row: int, index: int, start: int) -> None:
        stop = min(start + self.length, int(self._latents.lengths[index]))
        window = self._latents.read(index, start, stop)
        count = stop - start
        batch.mean[row, : count + 1] = window.mean
        batch.logvar[row, : count + 1] = window.logvar
        batch.actions[row, :count] = window.actions
        batch.rewards[row, :count] = window.rewards
        batch.terminated[row, :count] = window.terminated
        batch.mask[row, :count] = True
        batch.starts[row] = start == 0
