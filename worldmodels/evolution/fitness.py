"""The fitness of candidates: their episodes in a world, distributed to workers in batches.

`wanted_episodes` computes how many episodes per candidate a generation needs: few while candidates
differ much, more as their scores become similar. Shapes are in the letters of docs/shapes.md:
P candidates, E episodes per candidate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from worldmodels.models.controller import ControllerSpec
from worldmodels.workers.jobs import Heartbeat, Pool
from worldmodels.workers.queue import Batch
from worldmodels.worlds.dream import DreamWorld
from worldmodels.worlds.novelty import NoveltyWorld
from worldmodels.worlds.rollout import Outcome, PopulationPolicy, Recorder, rollout
from worldmodels.worlds.world import World

FEW_ENVS = 4
"""Environments in a batch of an evaluation in Gymnasium's own simulator."""


@dataclass(frozen=True)
class EpisodeSpec:
    """How the episodes of an evaluation are run.

    Args:
        num_envs: environments of one batch, at most.
        max_steps: time limit of an episode in steps.
        controller: layers of the controllers.
        stall_steps: see `rollout`.
        horizons: see `rollout`.
        temperature: of the learned model; None: that of the world.
    """

    num_envs: int
    max_steps: int
    controller: ControllerSpec
    stall_steps: int | None = None
    horizons: tuple[int, ...] = ()
    temperature: float | None = None


@dataclass(frozen=True)
class EvalBatch:
    """A job for a worker: episodes of some candidates on the same seeds, in one batch.

    The size of the batch depends on the number of environments and not on the number of workers:
    matrix products round differently at different batch sizes, and results must not depend on the
    number of workers.

    Args:
        candidates: (P, parameters) float32.
        seeds: of the E episodes of each candidate.
        spec: how they are run.
    """

    candidates: np.ndarray
    seeds: tuple[int, ...]
    spec: EpisodeSpec

    def __call__(self, tool: World, heartbeat: Heartbeat) -> Outcome:
        """Run the episodes in the world `tool`; see `play`."""
        return self.play(tool, heartbeat, None)

    def play(self, world: World, heartbeat: Heartbeat, recorder: Recorder | None) -> Outcome:
        """Run the episodes.

        Args:
            world: that they are run in; it is reset.
            heartbeat: called with the number of environment steps after each step.
            recorder: called with every transition, if there is one.

        Returns:
            arrays (P * E,), the episodes of a candidate one after another.
        """
        episodes = len(self.seeds)
        seeds = list(self.seeds) * len(self.candidates)
        spec, begin = self.spec, world.reset
        if spec.temperature is not None:
            assert isinstance(world, DreamWorld | NoveltyWorld)
            begin = partial(world.reset, temperature=spec.temperature)
        policy = PopulationPolicy(
            self.candidates, episodes, world.feature_size, spec.controller, world.device
        )
        return rollout(
            world,
            policy,
            seeds,
            spec.max_steps,
            recorder,
            heartbeat,
            spec.stall_steps,
            begin,
            horizons=spec.horizons,
        )


def eval_batches(
    candidates: np.ndarray, seeds: Sequence[int], spec: EpisodeSpec
) -> list[EvalBatch]:
    """Divide P candidates x E seeds into jobs of at most `spec.num_envs` environments.

    A job has several candidates with all their episodes if these fit; else one candidate with some
    of its episodes. Jobs have about equal sizes, because all workers wait for the last one.

    Args:
        candidates: (P, parameters) float32.
        seeds: of the E episodes of each candidate.
        spec: how they are run.

    Returns:
        the jobs, ordered by candidate and then by seed, so that their concatenated outcomes have
        the shape (P, E).
    """
    size = spec.num_envs
    if len(seeds) > size:
        parts = [tuple(seeds[i : i + size]) for i in range(0, len(seeds), size)]
        return [EvalBatch(row[None], part, spec) for row in candidates for part in parts]
    together = size // len(seeds)
    groups = np.array_split(candidates, math.ceil(len(candidates) / together))
    return [EvalBatch(group, tuple(seeds), spec) for group in groups]


def evaluation_num_envs(engine: str, num_envs: int) -> int:
    """The number of environments in a batch of an evaluation.

    Args:
        engine: of the environment. With Gymnasium's the simulator, and not the models, takes most
            of the time.
        num_envs: of the environment's configuration.
    """
    return FEW_ENVS if engine == "gymnasium" else num_envs


@dataclass(frozen=True)
class Evaluation:
    """Episodes that workers were given.

    Args:
        batch: their jobs.
        shape: (P, E).
    """

    batch: Batch
    shape: tuple[int, int]

    def outcome(self, pool: Pool[World]) -> Outcome:
        """Wait for the last of them; see `fitness`."""
        found = Outcome.concatenate(pool.results(self.batch))
        parts = found._asdict().items()
        return Outcome(**{n: part.reshape(self.shape) for n, part in parts if part is not None})


def begin(
    pool: Pool[World], candidates: np.ndarray, seeds: Sequence[int], spec: EpisodeSpec
) -> Evaluation:
    """Give workers what `fitness` runs; they begin when something of the pool is waited for."""
    batch = pool.submit(eval_batches(candidates, seeds, spec))
    return Evaluation(batch, (len(candidates), len(seeds)))


def fitness(
    pool: Pool[World], candidates: np.ndarray, seeds: Sequence[int], spec: EpisodeSpec
) -> Outcome:
    """Run every candidate on every seed.

    Args:
        pool: workers that have the world.
        candidates: (P, parameters) float32.
        seeds: of the E episodes of each candidate.
        spec: how they are run.

    Returns:
        arrays (P, E). With `spec.stall_steps`, returns may be extrapolated; see `Outcome`.

    Raises:
        Stopped: the process was asked to stop.
        WorkerError: a job fails in every worker that tries it.
    """
    return begin(pool, candidates, seeds, spec).outcome(pool)


def wanted_episodes(returns: np.ndarray, reliability: float) -> float:
    """The number of episodes per candidate at which mean returns rank candidates reliably.

    All candidates have the same seeds, so a return is the sum of an effect of the seed, an effect
    of the candidate, and noise. The variances of the latter two are estimated from the mean squares
    of a two-way table without repetition (Shrout and Fleiss 1979, ICC(3, k)).

    Args:
        returns: (P, E), both at least 2.
        reliability: the share of the variance of candidates' means that is due to the candidates,
            between 0 and 1.

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
