"""The fitness of candidates: episodes in a world, shared out to workers in evaluation batches.

How many episodes a generation deserves is `wanted_episodes`: few while candidates differ much, more
as they come close.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from worldmodels.models.controller import ControllerSpec
from worldmodels.workers import Heartbeat, Pool
from worldmodels.worlds.rollout import Outcome, PopulationPolicy, Recorder, rollout
from worldmodels.worlds.world import World


@dataclass(frozen=True)
class EvalBatch:
    """Some candidates, each to play the same seeds; a job for a worker.

    Evaluation batches are cut by their number of environments and not by the number of workers:
    matrix products round differently at different batch sizes, and a result must not depend on who
    computes it.

    Args:
        candidates: (candidates, parameters) float32.
        seeds: of the episodes each candidate plays.
        max_steps: of an episode.
        spec: from features to actions.
        stall_steps: see `rollout`.
    """

    candidates: np.ndarray
    seeds: tuple[int, ...]
    max_steps: int
    spec: ControllerSpec
    stall_steps: int | None = None

    def __call__(self, tool: World, heartbeat: Heartbeat) -> Outcome:
        """Play it in the world `tool`."""
        return self.play(tool, heartbeat, None)

    def play(self, world: World, heartbeat: Heartbeat, recorder: Recorder | None) -> Outcome:
        """Play it and let `recorder` see all of it."""
        episodes = len(self.seeds)
        seeds = list(self.seeds) * len(self.candidates)
        policy = PopulationPolicy(
            self.candidates, episodes, world.feature_size, self.spec, world.device
        )
        return rollout(world, policy, seeds, self.max_steps, recorder, heartbeat, self.stall_steps)


def eval_batches(
    candidates: np.ndarray,
    seeds: Sequence[int],
    num_envs: int,
    max_steps: int,
    spec: ControllerSpec,
    stall_steps: int | None = None,
) -> list[EvalBatch]:
    """Cut candidates x seeds into batches of at most `num_envs` environments.

    Whole candidates share an evaluation batch while they fit; the episodes of one that does not
    are split. Evaluation batches are about equal, for the last of them is what all workers wait
    for.
    """
    if len(seeds) > num_envs:
        parts = [tuple(seeds[i : i + num_envs]) for i in range(0, len(seeds), num_envs)]
        return [
            EvalBatch(row[None], part, max_steps, spec, stall_steps)
            for row in candidates
            for part in parts
        ]
    together = num_envs // len(seeds)
    groups = np.array_split(candidates, math.ceil(len(candidates) / together))
    return [EvalBatch(group, tuple(seeds), max_steps, spec, stall_steps) for group in groups]


def fitness(
    pool: Pool[World],
    candidates: np.ndarray,
    seeds: Sequence[int],
    num_envs: int,
    max_steps: int,
    spec: ControllerSpec,
    stall_steps: int | None = None,
) -> Outcome:
    """Play every candidate on every seed; arrays of the outcome are (candidates, episodes)."""
    work = eval_batches(candidates, seeds, num_envs, max_steps, spec, stall_steps)
    outcomes = pool.map(work)
    shape = (len(candidates), len(seeds))
    return Outcome(*(np.concatenate(part).reshape(shape) for part in zip(*outcomes, strict=True)))


def wanted_episodes(returns: np.ndarray, reliability: float) -> float:
    """How many episodes a candidate should play for its mean to tell candidates apart.

    Candidates play the same seeds, so a return is a seed's effect, a candidate's and noise; the
    variances of the latter two come from the mean squares of a two-way table without repetition
    (Shrout and Fleiss 1979, ICC(3, k)).

    Args:
        returns: (candidates, episodes), two of each at least.
        reliability: share of the variance of candidates' means that is to be the candidates' own.

    Returns:
        the number, not rounded; infinite where the candidates do not differ beyond the noise.
    """
    candidates, episodes = returns.shape
    own, seed = returns.mean(axis=1, keepdims=True), returns.mean(axis=0, keepdims=True)
    rest = returns - own - seed + returns.mean()
    noise = (rest**2).sum() / ((candidates - 1) * (episodes - 1))
    signal = own.var(ddof=1) - noise / episodes
    if signal <= 0:
        return float("inf")
    return float(noise / signal * reliability / (1 - reliability))
