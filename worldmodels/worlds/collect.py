"""Recorded episodes: the rollout loop with a recorder that writes shards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from worldmodels.agent import load_agent
from worldmodels.data.shards import Episode, write_shard
from worldmodels.envs.action_spec import ActionSpec
from worldmodels.envs.actions import ActionPolicy, make_action_policy
from worldmodels.models.controller import squashing
from worldmodels.workers import Heartbeat
from worldmodels.worlds.noise import EpisodeNoise
from worldmodels.worlds.real import RealWorld
from worldmodels.worlds.rollout import Outcome, Policy, PopulationPolicy, rollout
from worldmodels.worlds.world import Step, World

PARAMETER_STREAM, SLIP_STREAM = 4, 5
LONGEST_SLIP = 30
"""Steps; at CarRacing's 50 a second long enough to leave the road."""


@dataclass(frozen=True)
class RandomDriver:
    """Actions from a random process of `worldmodels.envs.actions`."""

    process: str
    controls: ActionSpec

    def policy(self, world: RealWorld, seeds: tuple[int, ...]) -> Policy:
        """A policy for one environment a seed."""
        low, high = np.array(self.controls.low), np.array(self.controls.high)
        actions = make_action_policy(self.process, low, high)
        actions.reset(seeds)
        return _Blind(actions, squashing(self.controls.squash) if self.controls.choice else None)


@dataclass(frozen=True)
class NoisyAgent:
    """A trained controller, in each episode another: with normal noise on its parameters.

    Noise on actions would brake: they are bounded below by 0, so that a car which does not brake
    brakes half of the time (measured: an agent of 797 points drove 2 with a deviation of 0.3).
    Noise on parameters drives differently all through an episode, and each time as a driver would
    (Plappert et al. 2018).

    And its hand may slip, for random actions that last (Dabney et al. 2021). An M that has only
    seen a driver correct himself takes the steering for what bends the road (de Haan et al. 2019),
    and who learns in its dreams finds that out. Measured, after three rounds in dreams, one seed
    each: 350 points in the game with slips of 0.03, -85 without (docs/results-studies.md, which
    says what else differed).

    Args:
        folder: of the agent.
        noise: standard deviation.
        ez_greedy_epsilon: chance of a slip, in each step without one.
        controls: what is in its hand.
    """

    folder: Path
    noise: float
    ez_greedy_epsilon: float
    controls: ActionSpec

    def policy(self, world: RealWorld, seeds: tuple[int, ...]) -> Policy:
        """A policy for one environment a seed."""
        agent = load_agent(self.folder)
        drawn = EpisodeNoise(seeds, PARAMETER_STREAM, torch.device("cpu")).normal(
            0, agent.parameters.size
        )
        candidates = agent.parameters + self.noise * drawn.numpy()
        drives = PopulationPolicy(
            candidates.astype(np.float32),
            1,
            world.feature_size,
            agent.config.controller,
            world.device,
        )
        if not self.ez_greedy_epsilon:
            return drives
        slips = RandomDriver("sticky_uniform", self.controls).policy(world, seeds)
        return _Slipping(drives, slips, seeds, self.ez_greedy_epsilon)


Driver = RandomDriver | NoisyAgent


class _Blind:
    """A policy that does not look."""

    def __init__(self, actions: ActionPolicy, choose: Callable[[Tensor], Tensor] | None) -> None:
        self._actions = actions
        self._choose = choose

    def act(self, features: Tensor) -> Tensor:
        actions = torch.from_numpy(self._actions.act())
        return actions if self._choose is None else self._choose(actions)

    def keep(self, mask: np.ndarray) -> None:
        self._actions.keep(mask)


class _Slipping:
    """One policy, in whose place now and then another acts for 1 to `LONGEST_SLIP` steps."""

    def __init__(
        self, drives: Policy, slips: Policy, seeds: tuple[int, ...], ez_greedy_epsilon: float
    ) -> None:
        self._drives, self._slips, self._epsilon = drives, slips, ez_greedy_epsilon
        self._noise = EpisodeNoise(seeds, SLIP_STREAM, torch.device("cpu"))
        self._left = torch.zeros(len(seeds), dtype=torch.int64)  # (num_envs,) steps of the slip
        self._time = 0

    def act(self, features: Tensor) -> Tensor:
        chance, lasts = self._noise.uniform(self._time, 2).unbind(1)  # (num_envs,) each
        left = (self._left - 1).clamp(min=0)
        begins = (left == 0) & (chance < self._epsilon)
        self._left = torch.where(begins, (lasts * LONGEST_SLIP).long() + 1, left)
        self._time += 1
        slipping = (self._left > 0).unsqueeze(1).to(features.device)
        drives = self._drives.act(features)
        return torch.where(slipping, self._slips.act(features).to(drives), drives)

    def keep(self, mask: np.ndarray) -> None:
        index = torch.from_numpy(mask)
        self._left = self._left[index]
        self._noise.keep(index)
        self._drives.keep(mask)
        self._slips.keep(mask)


class EpisodeRecorder:
    """Keeps frames, actions and outcomes of the environments, in memory, until they are written.

    Args:
        count: of the first so many environments; None is all.
    """

    def __init__(self, count: int | None = None) -> None:
        self._count = count

    def begin(self, world: World) -> None:
        """Take the first frames."""
        assert isinstance(world, RealWorld)
        self._frames = [[frame] for frame in world.frames[: self._count]]
        count = len(self._frames)
        self._actions: list[list[np.ndarray]] = [[] for _ in range(count)]
        self._rewards: list[list[float]] = [[] for _ in range(count)]
        self._ends: list[tuple[bool, bool]] = [(False, False)] * count

    def record(self, indices: np.ndarray, actions: Tensor, step: Step, world: World) -> None:
        """Take one step of each of the environments `indices`."""
        assert isinstance(world, RealWorld)
        for row, (index, frame, action) in enumerate(
            zip(indices, world.frames, actions.cpu().numpy(), strict=True)
        ):
            if index >= len(self._frames):
                break
            self._frames[index].append(frame)
            self._actions[index].append(action)
            self._rewards[index].append(step.reward[row])
            self._ends[index] = (bool(step.terminated[row]), bool(step.truncated[row]))

    def episode(self, index: int, seed: int) -> Episode:
        """What was recorded in the environment `index`."""
        steps = len(self._actions[index])
        terminated, truncated = np.zeros(steps, bool), np.zeros(steps, bool)
        terminated[-1], truncated[-1] = self._ends[index]
        return Episode(
            frames=np.stack(self._frames[index]),
            actions=np.stack(self._actions[index]).astype(np.float32),
            rewards=np.asarray(self._rewards[index], np.float32),
            terminated=terminated,
            truncated=truncated,
            seed=seed,
        )


@dataclass(frozen=True)
class CollectShard:
    """Play some seeds and write them as one shard; a job for a worker.

    The shard is the unit that is whole or missing; its episodes wait in memory until the last of
    them ends (16 episodes of 1,000 frames of 64x64: 200 MB).
    """

    path: Path
    seeds: tuple[int, ...]
    max_steps: int
    driver: Driver
    attrs: dict[str, str | int | float]

    def __call__(self, tool: RealWorld, heartbeat: Heartbeat) -> Outcome:
        """Play and write; returns the outcome of each episode."""
        recorder = EpisodeRecorder()
        policy = self.driver.policy(tool, self.seeds)
        outcome = rollout(tool, policy, self.seeds, self.max_steps, recorder, heartbeat)
        episodes = [recorder.episode(index, seed) for index, seed in enumerate(self.seeds)]
        write_shard(self.path, episodes, self.attrs)
        return outcome


@dataclass(frozen=True)
class DriveBlind:
    """Play some seeds at random without recording; a job for a worker."""

    seeds: tuple[int, ...]
    max_steps: int
    driver: RandomDriver

    def __call__(self, tool: RealWorld, heartbeat: Heartbeat) -> Outcome:
        """Play; returns the outcome of each episode."""
        policy = self.driver.policy(tool, self.seeds)
        return rollout(tool, policy, self.seeds, self.max_steps, None, heartbeat)
