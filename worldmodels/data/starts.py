"""Moments of recorded episodes at which episodes in the learned model begin.

A moment is kept as latents and actions of the last steps before it, from which a dynamics model's
state is computed: so the file is small whatever a state is, and serves each member of an ensemble.
Shapes are in the letters of docs/shapes.md, with S moments and W steps before each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from worldmodels.data.failures import failures
from worldmodels.data.latents import LatentSet

HISTORY = 40
"""W: most steps before a moment that are kept."""
AFTER_FAILURE = 5
"""Steps after the beginning of a failure, in which there are moments as well."""
BEFORE_FAILURE = (100, 20)
"""First and last step of the moments near a failure, in steps of the simulator before it began.
Later it can hardly be avoided any more, and earlier the model seldom predicts it."""


@dataclass(frozen=True)
class Starts:
    """Moments of recorded episodes.

    Args:
        mean: posterior means of the latents of the W steps before each moment and of the moment,
            (S, W + 1, Z) float32; 0 before the episode began.
        logvar: logarithms of their variances, likewise.
        actions: of the W steps before, (S, W, A) float32; 0 before the episode began.
        steps: how many steps before it the moment has, at most W: (S,) int64.
    """

    mean: np.ndarray
    logvar: np.ndarray
    actions: np.ndarray
    steps: np.ndarray


def draw_starts(
    latents: LatentSet,
    groups: Sequence[np.ndarray],
    branches: np.ndarray,
    count: int,
    seed: int,
    stall_steps: int | None,
    failure_share: float = 0.0,
    frame_skip: int = 1,
) -> Starts:
    """Draw moments of recorded episodes, each at most once: a quarter of them first frames.

    A branch begins in the middle of another episode, whose steps are not known here: its first
    frame is no moment.

    Args:
        latents: the episodes.
        groups: numbers of episodes; from each group an equal share of the other moments is drawn.
        branches: which of all episodes are branches, (episodes,) bool.
        count: of moments, at most.
        seed: of the draws.
        stall_steps: see `worldmodels.data.failures.failures`. There are no moments later than
            `AFTER_FAILURE` steps after the beginning of a failure: nothing happens there.
        failure_share: of the moments of a group, the share that is drawn from those that are
            `BEFORE_FAILURE`, as far as there are any; the others are drawn from all.
        frame_skip: steps of the simulator for each of an episode.
    """
    bounds = _Bounds.of(latents, stall_steps, frame_skip)
    generator = np.random.default_rng(seed)
    every = np.unique(np.concatenate(groups))
    every = every[~branches[every]]
    begun = generator.choice(every, min(count // 4, len(every)), replace=False)
    drawn = {(int(episode), 0) for episode in begun}
    least = branches.astype(np.int64)  # the first step of the moments of each episode
    for group in groups:
        wanted = (count - len(begun)) // len(groups)
        failed = group[bounds.before_last[group] >= 0]
        first, last = bounds.before_first[failed], bounds.before_last[failed]
        first = np.maximum(first, least[failed])
        near = _choose(generator, failed, first, last, int(wanted * failure_share))
        last = bounds.last[group]
        drawn |= near | _choose(generator, group, least[group], last, wanted - len(near))
    return _read(latents, sorted(drawn))


@dataclass(frozen=True)
class _Bounds:
    """Between which steps of each episode there are moments; all of shape (episodes,) int64.

    Args:
        last: the last step of all moments.
        before_first: the first step of the moments that are `BEFORE_FAILURE`.
        before_last: the last one of them; -1 where there are none.
    """

    last: np.ndarray
    before_first: np.ndarray
    before_last: np.ndarray

    @classmethod
    def of(cls, latents: LatentSet, stall_steps: int | None, frame_skip: int) -> _Bounds:
        rows, distances = [], [steps // frame_skip for steps in BEFORE_FAILURE]
        for rewards, terminated in latents.outcomes():
            failed = failures(rewards, bool(terminated[-1]), stall_steps)
            last, first, before = len(rewards) - 1, 0, -1
            if failed:
                last = min(last, failed[0] + AFTER_FAILURE)
                first, before = (failed[0] - steps for steps in distances)
            rows.append((last, max(first, 0), before))
        return cls(*np.array(rows, np.int64).T)


def _choose(
    generator: np.random.Generator,
    episodes: np.ndarray,
    first: np.ndarray,
    last: np.ndarray,
    count: int,
) -> set[tuple[int, int]]:
    """Moments (episode, step) from the steps `first` to `last` of `episodes`, each with equal
    probability; `count` of them, or all if there are no more. An episode whose `last` is
    `first` - 1 has none."""
    ends = np.cumsum(last - first + 1)
    if not len(ends) or not ends[-1]:
        return set()
    chosen = generator.choice(int(ends[-1]), min(count, int(ends[-1])), replace=False)
    rows = np.searchsorted(ends, chosen, side="right")
    steps = chosen - ends[rows] + last[rows] + 1
    return set(zip(episodes[rows].tolist(), steps.tolist(), strict=True))


def _read(latents: LatentSet, moments: Sequence[tuple[int, int]]) -> Starts:
    """The moments (episode, step), read from the file; of each episode once."""
    size, latent_size = len(moments), latents.latent_size
    mean, logvar = np.zeros((2, size, HISTORY + 1, latent_size), np.float32)
    actions = np.zeros((size, HISTORY, latents.action_size), np.float32)
    steps = np.zeros(size, np.int64)
    episodes = np.array([episode for episode, _ in moments])
    edges = [0, *(np.flatnonzero(np.diff(episodes)) + 1).tolist(), size]
    for start, stop in pairwise(edges):
        episode = latents.episode(moments[start][0])
        for row in range(start, stop):
            time = moments[row][1]
            before = steps[row] = min(HISTORY, time)
            mean[row, HISTORY - before :] = episode.mean[time - before : time + 1]
            logvar[row, HISTORY - before :] = episode.logvar[time - before : time + 1]
            actions[row, HISTORY - before :] = episode.actions[time - before : time]
    return Starts(mean, logvar, actions, steps)
