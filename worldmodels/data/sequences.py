"""Windows of encoded episodes for truncated back-propagation through time with carried state."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from worldmodels.data.failures import failures
from worldmodels.data.latents import LatentSet

Windows = list[tuple[int, int]]
"""Windows of an episode that follow one another: (episode, first step) each."""


class SequenceBatch(NamedTuple):
    """B rows of T steps; padding is zeros. The timeline is drawn in ``shards.py``."""

    mean: np.ndarray  # (B, T + 1, Z) float32
    logvar: np.ndarray  # (B, T + 1, Z) float32
    actions: np.ndarray  # (B, T, A) float32
    rewards: np.ndarray  # (B, T) float32
    terminated: np.ndarray  # (B, T) float32
    mask: np.ndarray  # (B, T) bool, True where the transition is real
    starts: np.ndarray  # (B,) bool, True where the window does not follow the row's last one


class FailureShare(NamedTuple):
    """How many rows of a batch have windows near a failure.

    Args:
        share: of the rows, rounded to whole ones, at least one of each kind.
        steps: a window is near a failure that it contains, or that follows its end within so many.
        stall_steps: see `worldmodels.data.failures.failures`.
    """

    share: float
    steps: int
    stall_steps: int | None


class FailureEnd(NamedTuple):
    """Episodes end, terminated, at a failure that the environment's rules do not end.

    Args:
        delay: steps from the beginning of the failure to the last step.
        stall_steps: see `worldmodels.data.failures.failures`.
    """

    delay: int
    stall_steps: int


def balanced(indices: np.ndarray, newest: np.ndarray, lengths: np.ndarray, seed: int) -> np.ndarray:
    """The newest of some episodes, and about as many transitions of the others, drawn at random.

    Args:
        indices: of the episodes.
        newest: indices of the newest episodes, also others than `indices`.
        lengths: transitions of every episode, by index.
        seed: of the draw.

    Returns:
        indices in rising order; all of them where the others have fewer transitions.
    """
    kept, others = np.intersect1d(indices, newest), np.setdiff1d(indices, newest)
    drawn = np.random.default_rng(seed).permutation(others)
    before = np.cumsum(lengths[drawn]) - lengths[drawn]
    return np.sort(np.concatenate([kept, drawn[before < lengths[kept].sum()]]))


class SequenceBatches:
    """Batches in which every transition of some episodes occurs once per epoch.

    Window k of an episode is followed, in the same row of the next batch, by window k + 1, so that
    the state can be carried; after the last window the row continues with another episode. No
    window contains steps of two episodes. The order is a function of (seed, epoch), so that
    training resumes at any batch.

    With `failures`, the first rows of a batch have the windows near a failure alone, and the other
    rows all others; each kind is repeated or cut to fill an epoch of as many windows as there are
    transitions. A window whose predecessor is of the other kind begins with an empty state. Where
    the episodes have no failure, or nothing else, all rows are alike.

    Args:
        latents: the encoded episodes.
        indices: of the episodes to use.
        batch_size: B, rows of a batch.
        length: T, steps of a window; 0 is that of the longest episode, hence whole episodes. The
            attribute of this name is never 0.
        seed: of the order.
        shuffle: in random order; False is in order.
        failures: share of the windows near a failure; None: every transition once.
        failure_end: where episodes that stall end; None: at their last step, not terminated.
    """

    def __init__(
        self,
        latents: LatentSet,
        indices: np.ndarray,
        batch_size: int,
        length: int,
        seed: int,
        shuffle: bool,
        failures: FailureShare | None = None,
        failure_end: FailureEnd | None = None,
    ) -> None:
        self._latents, self._indices = latents, np.asarray(indices)
        self._ends = episode_ends(latents, failure_end)
        self._lengths = self._ends.lengths
        self._rows = min(batch_size, len(self._indices))
        self.length = length or int(self._lengths[self._indices].max())
        self._seed, self._shuffle = seed, shuffle
        self._pools = [] if failures is None else self._divided(failures)

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
                    index, first = windows[step]
                    follows = step > 0 and windows[step - 1] == (index, first - self.length)
                    self._fill(batch, row, index, first, not follows)
            yield batch

    def _divided(self, failing: FailureShare) -> list[tuple[int, list[Windows]]]:
        """Number of rows and runs of windows: near a failure, and others; none without both."""
        kinds: tuple[list[Windows], list[Windows]] = ([], [])
        outcomes = list(self._latents.outcomes())
        for index in self._indices:
            rewards, terminated = outcomes[index]
            failed = failures(rewards, bool(terminated[-1]), failing.stall_steps)
            last = -1
            for start in range(0, int(self._lengths[index]), self.length):
                stop = start + self.length
                near = any(start <= step < stop + failing.steps for step in failed)
                if near != last:
                    kinds[not near].append([])
                kinds[not near][-1].append((int(index), start))
                last = near
        if self._rows < 2 or not all(kinds):
            logging.getLogger(__name__).warning(
                "rnn.failure_share: not used, because the training episodes have no failures or"
                " nothing else, or a batch has one row"
            )
            return []
        rows = min(max(round(failing.share * self._rows), 1), self._rows - 1)
        return [(rows, kinds[0]), (self._rows - rows, kinds[1])]

    def _shared_plan(self, number: int) -> list[Windows]:
        """The plan of an epoch in which each kind of windows has its rows."""
        generator = np.random.default_rng([self._seed, number])
        windows = sum(len(run) for _, pool in self._pools for run in pool)
        steps = -(-windows // self._rows)
        plan: list[Windows] = []
        for count, pool in self._pools:
            rows: list[Windows] = [[] for _ in range(count)]
            while min(map(len, rows)) < steps:
                for run in generator.permutation(len(pool)):
                    row = min(rows, key=len)
                    row += pool[run]
            plan += [row[:steps] for row in rows]
        return plan

    def _plan(self, number: int) -> list[Windows]:
        """Windows (episode, first step) by row; the next episode goes to the row free first."""
        if self._pools:
            return self._shared_plan(number)
        order = self._indices
        if self._shuffle:
            order = np.random.default_rng([self._seed, number]).permutation(order)
        rows: list[Windows] = [[] for _ in range(self._rows)]
        for index in order:
            row = min(rows, key=len)
            steps = int(self._lengths[index])
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

    def _fill(self, batch: SequenceBatch, row: int, index: int, start: int, begins: bool) -> None:
        stop = min(start + self.length, int(self._lengths[index]))
        window = self._latents.read(index, start, stop)
        count = stop - start
        batch.mean[row, : count + 1] = window.mean
        batch.logvar[row, : count + 1] = window.logvar
        batch.actions[row, :count] = window.actions
        batch.rewards[row, :count] = window.rewards
        batch.terminated[row, :count] = window.terminated
        if self._ends.won[index]:
            batch.terminated[row] = 0.0
        elif self._ends.stalled[index] and stop == self._lengths[index]:
            batch.terminated[row, count - 1] = 1.0
        batch.mask[row, :count] = True
        batch.starts[row] = begins


class EpisodeEnds(NamedTuple):
    """Where episodes end for a model, and how; all (episodes,).

    Args:
        lengths: steps until then, int64.
        stalled: a stall is the end, bool.
        won: it terminates, bool, by a step that is no failure and for the model no termination: a
            completed lap, which no frame announces.
    """

    lengths: np.ndarray
    stalled: np.ndarray
    won: np.ndarray


def episode_ends(latents: LatentSet, failure_end: FailureEnd | None) -> EpisodeEnds:
    """Where episodes end for a model that learns `failure_end`; None: as they were recorded."""
    lengths = latents.lengths.copy()
    stalled, won = np.zeros((2, len(lengths)), bool)
    if failure_end is None:
        return EpisodeEnds(lengths, stalled, won)
    for number, (rewards, terminated) in enumerate(latents.outcomes()):
        failed = failures(rewards, bool(terminated[-1]), failure_end.stall_steps)
        if failed and not terminated[-1]:
            lengths[number] = min(len(rewards), failed[0] + failure_end.delay + 1)
            stalled[number] = True
        won[number] = terminated[-1] and not failed
    return EpisodeEnds(lengths, stalled, won)
