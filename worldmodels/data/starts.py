"""Moments of recorded episodes at which episodes in the learned model begin.

A moment is kept as latents and actions of the last steps before it, from which a dynamics model's
state is computed: so the file is small whatever a state is, and serves each member of an ensemble.
Shapes are in the letters of docs/shapes.md, with S moments and W steps before each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from worldmodels.data.failures import failures
from worldmodels.data.latents import LatentSet

HISTORY = 40
"""W: most steps before a moment that are kept."""
AFTER_FAILURE = 5
"""Steps after the beginning of a failure, in which there are moments as well."""


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
    count: int,
    seed: int,
    stall_steps: int | None,
) -> Starts:
    """Draw moments of recorded episodes, each at most once: a quarter of them first frames.

    Args:
        latents: the episodes.
        groups: numbers of episodes; from each group an equal share of the other moments is drawn,
            every moment of its episodes with equal probability.
        count: of moments, at most.
        seed: of the draws.
        stall_steps: see `worldmodels.data.failures.failures`. There are no moments later than
            `AFTER_FAILURE` steps after the beginning of a failure: nothing happens there.
    """
    last = np.fromiter(_last_steps(latents, stall_steps), np.int64)
    generator = np.random.default_rng(seed)
    every = np.unique(np.concatenate(groups))
    begun = generator.choice(every, min(count // 4, len(every)), replace=False)
    drawn = {(int(episode), 0) for episode in begun}
    for group in groups:
        ends = np.cumsum(last[group] + 1)
        most = min((count - len(begun)) // len(groups), int(ends[-1]))
        for moment in generator.choice(int(ends[-1]), most, replace=False):
            row = int(np.searchsorted(ends, moment, side="right"))
            episode = int(group[row])
            drawn.add((episode, int(moment - ends[row] + last[episode] + 1)))
    return _read(latents, sorted(drawn))


def _last_steps(latents: LatentSet, stall_steps: int | None) -> Iterator[int]:
    """The last step of each episode at which there is a moment."""
    for rewards, terminated in latents.outcomes():
        failed = failures(rewards, bool(terminated[-1]), stall_steps)
        last = len(rewards) - 1
        yield min(last, failed[0] + AFTER_FAILURE) if failed else last


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
