"""Branches: episodes that continue a failed one, from before its failure, with other actions.

Without them the data has the one way in which a controller fails on a track, and nothing of what
would have followed if it had braked. Shapes are in the letters of docs/shapes.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from worldmodels import seeds
from worldmodels.data.failures import failures
from worldmodels.data.shards import Episode, write_shard
from worldmodels.workers.jobs import Heartbeat
from worldmodels.worlds.collect import CollectShard, EpisodeRecorder, NoisyAgent, RandomActions
from worldmodels.worlds.noise import EpisodeNoise
from worldmodels.worlds.real import Moment, RealWorld
from worldmodels.worlds.rollout import Outcome, Policy, rollout

PERTURBATIONS = {"noise": 0.4, "brake": 0.2, "lift": 0.2, "burst": 0.2}
"""How the actions of a branch differ from those of its parent, and the share of each.

- noise: the noise on the controller's parameters is drawn again, for the whole branch.
- brake: full brake and no gas in the first steps; the controller steers.
- lift: neither gas nor brake in the first steps; the controller steers.
- burst: random actions in the first steps.

After the first steps the parent's controller acts, with the same noise on its parameters."""
LONGEST = 50
"""Most first steps, in steps of the simulator: one second. Their number is uniform from 1 on."""
STREAM = 8
"""Of random numbers: none of those that a branch draws from its seed itself, which
`worldmodels.worlds.collect` numbers."""
_PATH = 2**20
"""Of the seeds of branches; rounds of collection have smaller numbers."""
_GAS, _BRAKE = 1, 2
"""Indices in an action of CarRacing."""


@dataclass(frozen=True)
class Branch:
    """What a branch is, a function of its seed and its parent.

    Args:
        seed: of its noise and its random actions.
        parent: seed of the episode that it continues.
        first_step: index of its first frame in that episode.
        perturbation: a name of `PERTURBATIONS`.
        steps: that the perturbation lasts; not used by noise.
    """

    seed: int
    parent: int
    first_step: int
    perturbation: str
    steps: int


def branches_of(
    parent: Episode, count: int, most: int, stall_steps: int | None, frame_skip: int = 1
) -> list[Branch]:
    """The branches of an episode; none if it did not fail.

    Args:
        parent: the episode.
        count: number of branches of an episode that failed.
        most: steps between the beginning of a branch and that of the failure, at most; at least a
            quarter of it, unless the episode is shorter.
        stall_steps: see `worldmodels.data.failures.failures`.
        frame_skip: steps of the simulator in a step of the episode.
    """
    failed = failures(parent.rewards, bool(parent.terminated[-1]), stall_steps)
    if not failed:
        return []
    drawn = seeds.draw(seeds.Purpose.ROLLOUTS, parent.seed, _PATH, count=count)
    numbers = EpisodeNoise(drawn, STREAM, torch.device("cpu")).uniform(0, 3).numpy()
    edges = np.cumsum(list(PERTURBATIONS.values()))
    least, longest = most // 4, max(1, LONGEST // frame_skip)
    return [
        Branch(
            seed=seed,
            parent=parent.seed,
            first_step=max(0, failed[0] - least - int(before * (most - least + 1))),
            perturbation=list(PERTURBATIONS)[int(np.searchsorted(edges[:-1], kind, side="right"))],
            steps=1 + int(lasts * longest),
        )
        for seed, (before, kind, lasts) in zip(drawn, numbers, strict=True)
    ]


@dataclass(frozen=True)
class CollectBranches:
    """A job for a worker: collect a shard, with branches of the episodes that fail.

    A branch ends as its parent may: by the rules, by the time limit of an episode, counted from its
    first step, by the environment's own, counted from the reset, or by `stall_steps`.

    Args:
        shard: the job that collects the other episodes, with a controller.
        branches: of each of them that fails.
        branch_steps: see `branches_of`.
        frame_skip: see `branches_of`.
    """

    shard: CollectShard
    branches: int
    branch_steps: int
    frame_skip: int = 1

    def __call__(self, tool: RealWorld, heartbeat: Heartbeat) -> Outcome:
        """Collect in the world `tool` and write; returns the outcomes, those of branches last.

        Raises:
            ArtifactError: the disk is full or not writable.
            DataError: an episode is too long to be in memory.
        """
        episodes, outcome = self.shard.collect(tool, heartbeat)
        stall_steps = self.shard.stall_steps
        branches = [
            branches_of(episode, self.branches, self.branch_steps, stall_steps, self.frame_skip)
            for episode in episodes
        ]
        flat = [branch for part in branches for branch in part]
        if flat:
            moments = _moments(tool, episodes, branches, heartbeat)
            recorder = EpisodeRecorder()
            continued = rollout(
                tool,
                self._policy(tool, flat),
                [branch.seed for branch in flat],
                self.shard.max_steps,
                recorder,
                heartbeat,
                stall_steps,
                begin=partial(tool.resume, moments),
            )
            episodes += [
                replace(
                    recorder.episode(index, branch.seed),
                    parent=branch.parent,
                    first_step=branch.first_step,
                )
                for index, branch in enumerate(flat)
            ]
            outcome = Outcome.concatenate([outcome, continued])
        write_shard(self.shard.path, episodes, self.shard.attrs)
        return outcome

    def _policy(self, world: RealWorld, branches: Sequence[Branch]) -> Policy:
        agent = self.shard.policy
        assert isinstance(agent, NoisyAgent)
        own = tuple(branch.seed for branch in branches)
        parameters = tuple(b.seed if b.perturbation == "noise" else b.parent for b in branches)
        random = RandomActions("sticky_uniform", agent.controls).policy(world, own)
        return _Perturbed(agent.policy(world, own, parameters), random, branches)


def _moments(
    world: RealWorld,
    parents: Sequence[Episode],
    branches: Sequence[Sequence[Branch]],
    heartbeat: Heartbeat,
) -> list[Moment]:
    """The moments at which the branches of each parent begin, in their order.

    The parents are run again with their recorded actions, because states of every step would not
    fit in memory.
    """
    wanted = [{branch.first_step for branch in part} for part in branches]
    rows = [parent for parent, steps in enumerate(wanted) if steps]
    world.reset([parents[parent].seed for parent in rows])
    found: dict[tuple[int, int], Moment] = {}
    for time in range(max(max(wanted[parent]) for parent in rows) + 1):
        for row, parent in enumerate(rows):
            if time in wanted[parent]:
                found[parents[parent].seed, time] = world.moment(row)
        running = np.array([max(wanted[parent]) > time for parent in rows])
        if not running.any():
            break
        if not running.all():
            world.keep(running)
            rows = [parent for parent in rows if max(wanted[parent]) > time]
        actions = np.stack([parents[parent].actions[time] for parent in rows])
        world.step(torch.from_numpy(actions).to(world.device))
        heartbeat(len(rows))
    return [found[branch.parent, branch.first_step] for part in branches for branch in part]


class _Perturbed:
    """A controller whose first actions are replaced as its branches ask for."""

    def __init__(self, policy: Policy, random: Policy, branches: Sequence[Branch]) -> None:
        self._policy, self._random = policy, random
        self._kinds = np.array([branch.perturbation for branch in branches])
        self._steps = np.array([branch.steps for branch in branches])
        self._time = 0

    def act(self, features: Tensor) -> Tensor:
        actions = self._policy.act(features).clone()
        random = self._random.act(features).to(actions)
        first = self._time < self._steps
        brake, lift, burst = (
            torch.from_numpy(first & (self._kinds == kind)).to(actions.device)
            for kind in ("brake", "lift", "burst")
        )
        actions[brake | lift, _GAS] = 0.0
        actions[lift, _BRAKE] = 0.0
        actions[brake, _BRAKE] = 1.0
        self._time += 1
        return torch.where(burst.unsqueeze(1), random, actions)

    def keep(self, mask: np.ndarray) -> None:
        self._kinds, self._steps = self._kinds[mask], self._steps[mask]
        self._policy.keep(mask)
        self._random.keep(mask)
