"""Data collection: policies that collect, and a recorder whose episodes become shards.

Shapes are in the letters of docs/shapes.md: N environments, A action, F features.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from worldmodels.agents.folder import read_agent
from worldmodels.data.shards import Episode, write_shard
from worldmodels.envs.action_spec import ActionBounds
from worldmodels.envs.actions import ActionPolicy, make_action_policy
from worldmodels.models.controller import Controllers, squashing
from worldmodels.workers.jobs import READ, WRITTEN, Heartbeat
from worldmodels.worlds.noise import EpisodeNoise
from worldmodels.worlds.real import RealWorld
from worldmodels.worlds.rollout import Outcome, Policy, PopulationPolicy, Recorder, rollout
from worldmodels.worlds.world import Step, World

PARAMETER_STREAM, BURST_STREAM, ACTION_STREAM, SCALE_STREAM = 4, 5, 6, 7
ACTION_CORRELATION = 0.8
"""Of the noise on outputs, from one step to the next: white noise would hardly move a car."""
LONGEST_BURST = 30
"""Longest burst of random actions, in steps: 0.6 s of CarRacing, long enough to leave the road."""


@dataclass(frozen=True)
class RandomActions:
    """A policy of random actions.

    Args:
        process: name of a random process of `worldmodels.envs.actions`.
        controls: the action space.
    """

    process: str
    controls: ActionBounds

    def policy(self, world: World, seeds: tuple[int, ...]) -> Policy:
        """The policy for one environment per seed.

        Args:
            world: not used; actions are random.
            seeds: of the N episodes; the actions depend on nothing else.
        """
        low, high = np.array(self.controls.low), np.array(self.controls.high)
        actions = make_action_policy(self.process, low, high)
        actions.reset(seeds)
        return _RandomPolicy(
            actions, squashing(self.controls.squash) if self.controls.choice else None
        )


@dataclass(frozen=True)
class NoisyAgent:
    """A trained controller with exploration: noise on its parameters and bursts of random actions.

    The parameters are perturbed once per episode by normal noise (Plappert et al. 2018). Noise on
    actions would bias them: the brake is bounded below by 0, so that half of all noise brakes
    (measured: an agent with a score of 797 reaches 2 with a standard deviation of 0.3).

    The bursts are those of εz-greedy exploration (Dabney et al. 2021). Without them the data only
    has actions that correct the car, and the dynamics model learns that steering bends the road
    (causal confusion, de Haan et al. 2019), which a controller trained in it exploits. Measured
    after three rounds of training in the model, one seed each: a score of 350 in the environment
    with an epsilon of 0.03, -85 without (docs/results-studies.md lists what else differed).

    Args:
        folder: of the agent.
        noise: standard deviation of the noise on parameters; 0 is none.
        ez_greedy_epsilon: probability that a burst begins in a step outside a burst; 0 is none.
        controls: the action space.
        noise_exponent: the noise of an episode is `noise` times a uniform number to this power, so
            that some episodes are near the controller and others far from it.
        action_noise: standard deviation of the noise on the controller's outputs, before they are
            bounded. The dynamics model learns what actions do from actions that the frames do not
            determine, which matters most where gradients of its predictions train the controller.
    """

    folder: Path = field(metadata=READ)
    noise: float
    ez_greedy_epsilon: float
    controls: ActionBounds
    noise_exponent: float = 0.0
    action_noise: float = 0.0

    def policy(
        self,
        world: RealWorld,
        seeds: tuple[int, ...],
        parameter_seeds: tuple[int, ...] | None = None,
    ) -> Policy:
        """The policy for one environment per seed.

        Args:
            world: that it acts in, with the agent's models and features.
            seeds: of the N episodes; noise and bursts depend on nothing else.
            parameter_seeds: (N,), of the noise on parameters; None is `seeds`.

        Raises:
            ArtifactError: a file of the agent is missing or damaged.
        """
        agent = read_agent(self.folder)
        drawn, uniform = (
            EpisodeNoise(parameter_seeds or seeds, stream, torch.device("cpu"))
            for stream in (PARAMETER_STREAM, SCALE_STREAM)
        )
        scale = self.noise * uniform.uniform(0, 1).numpy() ** self.noise_exponent  # (N, 1)
        candidates = agent.parameters + scale * drawn.normal(0, agent.parameters.size).numpy()
        population = candidates.astype(np.float32), world.feature_size, agent.config.controller
        agent_policy: Policy
        if self.action_noise:
            controllers = Controllers(
                torch.from_numpy(population[0]).to(world.device), *population[1:]
            )
            noise_on_outputs = _ActionNoise(seeds, self.action_noise, world.device)
            agent_policy = _NoisyOutputs(controllers, noise_on_outputs)
        else:
            agent_policy = PopulationPolicy(population[0], 1, *population[1:], world.device)
        if not self.ez_greedy_epsilon:
            return agent_policy
        bursts = RandomActions("sticky_uniform", self.controls).policy(world, seeds)
        return _EzGreedyPolicy(agent_policy, bursts, seeds, self.ez_greedy_epsilon)


@dataclass(frozen=True)
class NoiseActions:
    """A policy whose actions are noise: that of `NoisyAgent.action_noise`, bounded as a controller
    bounds its outputs.

    Args:
        std: standard deviation of the noise.
        squash: of each output, as in `ControllerSpec`.
    """

    std: float
    squash: tuple[str, ...]

    def policy(self, world: World, seeds: tuple[int, ...]) -> Policy:
        """The policy for one environment per seed.

        Args:
            world: not used; actions are random.
            seeds: of the N episodes; the actions depend on nothing else.
        """
        noise = _ActionNoise(seeds, self.std, torch.device("cpu"))
        return _NoisePolicy(noise, self.squash)


CollectionPolicy = RandomActions | NoiseActions | NoisyAgent


class _RandomPolicy:
    """A policy that ignores the features."""

    def __init__(self, actions: ActionPolicy, choose: Callable[[Tensor], Tensor] | None) -> None:
        self._actions = actions
        self._choose = choose

    def act(self, features: Tensor) -> Tensor:
        actions = torch.from_numpy(self._actions.act())
        return actions if self._choose is None else self._choose(actions)

    def keep(self, mask: np.ndarray) -> None:
        self._actions.keep(mask)


class _ActionNoise:
    """Autocorrelated normal noise on the outputs of controllers."""

    def __init__(self, seeds: tuple[int, ...], std: float, device: torch.device) -> None:
        self._std = std
        self._noise = EpisodeNoise(seeds, ACTION_STREAM, device)
        self._time = 0
        self._last: Tensor | None = None  # (N, A) with a standard deviation of 1

    def next(self, size: int) -> Tensor:
        """The noise of the next step, (N, size)."""
        drawn = self._noise.normal(self._time, size)
        if self._last is None:
            self._last = drawn
        else:
            share = (1 - ACTION_CORRELATION**2) ** 0.5
            self._last = ACTION_CORRELATION * self._last + share * drawn
        self._time += 1
        return self._std * self._last

    def keep(self, index: Tensor) -> None:
        self._noise.keep(index)
        if self._last is not None:
            self._last = self._last[index]


class _NoisePolicy:
    """A policy whose outputs are noise."""

    def __init__(self, noise: _ActionNoise, squash: tuple[str, ...]) -> None:
        self._noise, self._size = noise, len(squash)
        self._bound = squashing(squash)

    def act(self, features: Tensor) -> Tensor:
        return self._bound(self._noise.next(self._size))

    def keep(self, mask: np.ndarray) -> None:
        self._noise.keep(torch.from_numpy(mask))


class _NoisyOutputs:
    """Controllers with noise on their outputs."""

    def __init__(self, controllers: Controllers, noise: _ActionNoise) -> None:
        self._controllers, self._noise = controllers, noise

    @torch.inference_mode()
    def act(self, features: Tensor) -> Tensor:
        outputs = self._controllers.outputs(features)
        return self._controllers.squash(outputs + self._noise.next(outputs.shape[1]))

    def keep(self, mask: np.ndarray) -> None:
        index = torch.from_numpy(mask)
        self._controllers.keep(index)
        self._noise.keep(index)


class _EzGreedyPolicy:
    """A policy with bursts of 1 to `LONGEST_BURST` steps, in which another policy acts instead."""

    def __init__(
        self, policy: Policy, bursts: Policy, seeds: tuple[int, ...], ez_greedy_epsilon: float
    ) -> None:
        self._policy, self._bursts, self._epsilon = policy, bursts, ez_greedy_epsilon
        self._noise = EpisodeNoise(seeds, BURST_STREAM, torch.device("cpu"))
        self._left = np.zeros(len(seeds), np.int64)  # (N,) steps left of the burst
        self._time = 0

    def act(self, features: Tensor) -> Tensor:
        # By NumPy: on so few numbers an operation of PyTorch takes several times as long.
        chance, lasts = self._noise.uniform(self._time, 2).numpy().T  # (N,) each
        left = np.maximum(self._left - 1, 0)
        begins = (left == 0) & (chance < self._epsilon)
        self._left = np.where(begins, (lasts * LONGEST_BURST).astype(np.int64) + 1, left)
        self._time += 1
        bursting = torch.from_numpy(self._left > 0).unsqueeze(1).to(features.device)
        actions = self._policy.act(features)
        return torch.where(bursting, self._bursts.act(features).to(actions), actions)

    def keep(self, mask: np.ndarray) -> None:
        self._left = self._left[mask]
        self._noise.keep(torch.from_numpy(mask))
        self._policy.keep(mask)
        self._bursts.keep(mask)


class EpisodeRecorder:
    """Keeps frames, actions and results of episodes in memory until they are written.

    Args:
        count: how many environments to record, the first ones; None is all. Of some, the frames are
            copied: a view would keep those of all.
    """

    def __init__(self, count: int | None = None) -> None:
        self._count = count

    def begin(self, world: World) -> None:
        """Record the first frames."""
        assert isinstance(world, RealWorld)
        self._frames = [[self._kept(frame)] for frame in world.frames[: self._count]]
        count = len(self._frames)
        self._actions: list[list[np.ndarray]] = [[] for _ in range(count)]
        self._rewards: list[list[float]] = [[] for _ in range(count)]
        self._ends: list[tuple[bool, bool]] = [(False, False)] * count

    def record(self, indices: np.ndarray, actions: Tensor, step: Step, world: World) -> None:
        """Record one step of each running environment; see `Recorder.record`."""
        assert isinstance(world, RealWorld)
        for row, (index, frame, action) in enumerate(
            zip(indices, world.frames, actions.cpu().numpy(), strict=True)
        ):
            if index >= len(self._frames):
                break
            self._frames[index].append(self._kept(frame))
            self._actions[index].append(action)
            self._rewards[index].append(step.reward[row])
            self._ends[index] = (bool(step.terminated[row]), bool(step.truncated[row]))

    def _kept(self, frame: np.ndarray) -> np.ndarray:
        return frame if self._count is None else frame.copy()

    def episode(self, index: int, seed: int) -> Episode:
        """The recorded episode of an environment.

        Args:
            index: number of the environment at the reset.
            seed: of the episode, which the recorder is not given.
        """
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
    """A job for a worker: collect the episodes of some seeds and write them as one shard.

    A shard is complete or missing. Its episodes are in memory until the last of them ends (16
    episodes of 1,000 frames of 64x64: 200 MB).

    Args:
        path: of the shard.
        seeds: of its episodes.
        max_steps: time limit of an episode in steps.
        policy: the policy that collects.
        attrs: attributes of the shard, such as environment and policy.
        stall_steps: see `rollout`; an episode that it ends is truncated.
    """

    path: Path = field(metadata=WRITTEN)
    seeds: tuple[int, ...]
    max_steps: int
    policy: CollectionPolicy
    attrs: dict[str, str | int | float]
    stall_steps: int | None = None

    def __call__(self, tool: RealWorld, heartbeat: Heartbeat) -> Outcome:
        """Collect in the world `tool` and write; returns the outcome of each episode.

        Raises:
            ArtifactError: the disk is full or not writable.
            DataError: an episode is too long to be in memory.
        """
        episodes, outcome = self.collect(tool, heartbeat)
        write_shard(self.path, episodes, self.attrs)
        return outcome

    def collect(self, tool: RealWorld, heartbeat: Heartbeat) -> tuple[list[Episode], Outcome]:
        """Collect in the world `tool`; returns the episodes and the outcome of each."""
        recorder = EpisodeRecorder()
        policy = self.policy.policy(tool, self.seeds)
        outcome = rollout(
            tool, policy, self.seeds, self.max_steps, recorder, heartbeat, self.stall_steps
        )
        return [recorder.episode(index, seed) for index, seed in enumerate(self.seeds)], outcome


class PolicySource(Protocol):
    """Makes policies, in the worker that plays with them."""

    def policy(self, world: World, seeds: tuple[int, ...]) -> Policy:
        """The policy for one environment per seed, which act in `world`."""
        ...


@dataclass(frozen=True)
class PolicyEpisodes:
    """A job for a worker: episodes of a policy that is no controller.

    Args:
        seeds: of the episodes.
        max_steps: time limit of an episode in steps.
        source: of the policy.
    """

    seeds: tuple[int, ...]
    max_steps: int
    source: PolicySource

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
            the outcome of each episode.
        """
        policy = self.source.policy(world, self.seeds)
        return rollout(world, policy, self.seeds, self.max_steps, recorder, heartbeat)
