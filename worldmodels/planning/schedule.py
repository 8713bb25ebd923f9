"""How long jobs take on several workers, and how many of them a search has.

Shapes are in the letters of docs/shapes.md: P candidates, E episodes per candidate.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from worldmodels.config.policies import ControllerConfig
from worldmodels.config.sections import RolloutsConfig
from worldmodels.evolution.evolve import GROWTH, batch_size
from worldmodels.evolution.fitness import EpisodeSpec, eval_batches
from worldmodels.models.controller import ControllerSpec
from worldmodels.planning.timing import StepCost

STALLED = 3
"""Assumed mean length of an episode with ``stall_steps``, in units of these.
Together with episodes that grow by `GROWTH` it gives 23, 20 and 53 generations for the searches of
1.5, 2 and 24 million steps in the presets quick and laptop, where these took 31, 21 and 50."""


class Job(NamedTuple):
    """The size of a job: its episodes, the longest of them, and the steps of all."""

    episodes: float
    longest: float
    steps: float


@dataclass(frozen=True)
class WorldCost:
    """What jobs in one world cost.

    Args:
        busy: in a worker while all workers are busy.
        alone: in a worker while the others are idle.
        workers: how many there are.
        peak_bytes: memory of a worker.
    """

    busy: StepCost
    alone: StepCost
    workers: int
    peak_bytes: int

    def seconds(self, jobs: Sequence[Job]) -> float:
        """Until the last of the jobs is done; each goes to the worker that is free first."""
        if len(jobs) == 1:
            return self.alone.job(*jobs[0])
        free = [0.0] * self.workers
        for job in jobs:
            heapq.heapreplace(free, free[0] + self.busy.job(*job))
        return max(free)


def training_length(config: ControllerConfig | RolloutsConfig) -> float:
    """Assumed mean length of an episode that is trained on, in steps."""
    if config.stall_steps is None:
        return config.max_steps
    return min(config.max_steps, STALLED * config.stall_steps)


def search_size(
    config: ControllerConfig,
    num_envs: tuple[int, int],
    seconds_of: Callable[[Sequence[Job]], float],
) -> tuple[float, int, int]:
    """The length of a search.

    Args:
        config: its settings.
        num_envs: least and largest number of environments in a job.
        seconds_of: the time that jobs take.

    Returns:
        seconds of its episodes, generations, evaluations on the selection seeds.
    """
    length = training_length(config)

    @cache
    def seconds(candidates: int, episodes: int, mean: float) -> float:
        size = batch_size(num_envs, candidates * episodes)
        spec = EpisodeSpec(size, config.max_steps, ControllerSpec(()))
        batches = eval_batches(np.zeros((candidates, 1), np.float32), range(episodes), spec)
        counts = [len(batch.candidates) * len(batch.seeds) for batch in batches]
        return seconds_of([Job(count, config.max_steps, count * mean) for count in counts])

    total, steps, generations, selections = 0.0, 0.0, 0, 0
    wanted = float(config.first_episodes or config.episodes)
    over = False
    while not over:
        drawn = round(wanted)
        total += seconds(config.population, drawn, length)
        steps += config.population * drawn * length
        generations += 1
        wanted = min(wanted * GROWTH, config.episodes) if config.first_episodes else wanted
        spent = config.total_steps is not None and steps >= config.total_steps
        over = spent or generations >= config.generations
        if over or generations % config.eval_interval == 0:
            total += seconds(2, config.eval_episodes, config.max_steps)
            selections += 1
    return total, generations, selections
