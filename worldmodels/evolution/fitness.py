"""The fitness of candidates: episodes in a world, shared out to workers in packets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from worldmodels.agent import Wiring
from worldmodels.workers import Heartbeat, Pool
from worldmodels.worlds.rollout import Outcome, PopulationPolicy, Recorder, rollout
from worldmodels.worlds.world import World


@dataclass(frozen=True)
class Packet:
    """Some candidates, each to play the same seeds; a job for a worker.

    Packets are cut by their number of lanes and not by the number of workers: matrix products round
    differently at different batch sizes, and a result must not depend on who computes it.

    Args:
        candidates: (candidates, parameters) float32.
        seeds: of the episodes each candidate plays.
        max_steps: of an episode.
        squash: names of the actions' squashings.
    """

    candidates: np.ndarray
    seeds: tuple[int, ...]
    max_steps: int
    squash: tuple[str, ...]

    def __call__(self, tool: World, heartbeat: Heartbeat) -> Outcome:
        """Play it in the world `tool`."""
        return self.play(tool, heartbeat, None)

    def play(self, world: World, heartbeat: Heartbeat, recorder: Recorder | None) -> Outcome:
        """Play it and let `recorder` see all of it."""
        episodes = len(self.seeds)
        seeds = list(self.seeds) * len(self.candidates)
        policy = PopulationPolicy(
            self.candidates, episodes, world.feature_size, self.squash, world.device
        )
        return rollout(world, policy, seeds, self.max_steps, recorder, heartbeat)


def packets(
    candidates: np.ndarray, seeds: Sequence[int], lanes: int, max_steps: int, wiring: Wiring
) -> list[Packet]:
    """Cut candidates x seeds into packets of at most `lanes` lanes.

    Whole candidates share a packet while they fit; the episodes of one that does not are split.
    """
    squash = wiring.squash
    if len(seeds) > lanes:
        parts = [tuple(seeds[i : i + lanes]) for i in range(0, len(seeds), lanes)]
        return [Packet(row[None], part, max_steps, squash) for row in candidates for part in parts]
    together = max(1, lanes // len(seeds))
    groups = [candidates[i : i + together] for i in range(0, len(candidates), together)]
    return [Packet(group, tuple(seeds), max_steps, squash) for group in groups]


def fitness(
    pool: Pool[World],
    candidates: np.ndarray,
    seeds: Sequence[int],
    lanes: int,
    max_steps: int,
    wiring: Wiring,
) -> Outcome:
    """Play every candidate on every seed; arrays of the outcome are (candidates, episodes)."""
    work = packets(candidates, seeds, lanes, max_steps, wiring)
    outcomes = pool.map(work)
    shape = (len(candidates), len(seeds))
    return Outcome(*(np.concatenate(part).reshape(shape) for part in zip(*outcomes, strict=True)))
