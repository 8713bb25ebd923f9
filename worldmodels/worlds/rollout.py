"""The one loop: policies act in a world until every environment has ended.

Training in the game, training in the dream, collecting data, evaluating and watching are this loop
with another world, policy or recorder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from worldmodels.models.controller import Controllers, ControllerSpec
from worldmodels.worlds.world import Step, World


class Policy(Protocol):
    """What acts: one row of features in, one action out, for each environment."""

    def act(self, features: Tensor) -> Tensor:
        """Actions (num_envs, action) for features (num_envs, features)."""
        ...

    def keep(self, mask: np.ndarray) -> None:
        """Drop the environments where `mask` (num_envs,) is False."""
        ...


class Outcome(NamedTuple):
    """How each episode went; all of shape (num_envs,)."""

    returns: np.ndarray  # float64, sum of rewards
    lengths: np.ndarray  # int64, steps
    terminated: np.ndarray  # bool, False where a time limit cut it


class Recorder(Protocol):
    """Sees every transition; `num_envs` are the numbers the environments had at the start."""

    def begin(self, world: World) -> None:
        """The world has been reset."""
        ...

    def record(self, indices: np.ndarray, actions: Tensor, step: Step, world: World) -> None:
        """One step was taken in `num_envs`; the world shows what came of it."""
        ...


def rollout(
    world: World,
    policy: Policy,
    seeds: Sequence[int],
    max_steps: int,
    recorder: Recorder | None = None,
    heartbeat: Callable[[int], None] = lambda steps: None,
    stall_steps: int | None = None,
) -> Outcome:
    """Play one episode a seed to its end, or for `max_steps`.

    Ended environments leave the batch, so that the work shrinks with them.

    Args:
        heartbeat: called each step with the number of environment steps it took.
        stall_steps: steps without a new highest return after which an environment is taken to be
            stuck: it ends, truncated, and goes on falling for the steps that were left as it fell
            since then. None lets every environment play on, as whoever judges must.

    Returns:
        the outcome in the order of the seeds.
    """
    count = len(seeds)
    returns, lengths = np.zeros(count), np.zeros(count, np.int64)
    terminated = np.zeros(count, bool)
    highest, reached = np.full(count, -np.inf), np.zeros(count, np.int64)
    indices = np.arange(count)
    features = world.reset(seeds)
    if recorder is not None:
        recorder.begin(world)
    for time in range(max_steps):
        actions = policy.act(features)
        step = world.step(actions)
        if time == max_steps - 1:
            step = step._replace(truncated=step.truncated | ~step.terminated)
        returns[indices] += step.reward
        lengths[indices] += 1
        terminated[indices] = step.terminated
        if stall_steps is not None:
            risen = indices[returns[indices] > highest[indices]]
            highest[risen], reached[risen] = returns[risen], time
            stuck = (time - reached[indices] >= stall_steps) & ~step.terminated & ~step.truncated
            fallen = (returns - highest)[indices[stuck]] / (time - reached[indices[stuck]])
            returns[indices[stuck]] += fallen * (max_steps - 1 - time)
            step = step._replace(truncated=step.truncated | stuck)
        if recorder is not None:
            recorder.record(indices, actions, step, world)
        heartbeat(len(indices))
        features = step.features
        alive = ~(step.terminated | step.truncated)
        if not alive.all():
            indices = indices[alive]
            if not len(indices):
                break
            world.keep(alive)
            policy.keep(alive)
            features = features[torch.from_numpy(alive).to(features.device)]
    return Outcome(returns, lengths, terminated)


class PopulationPolicy:
    """Candidates side by side, each on its share of the environments.

    Args:
        candidates: (candidates, parameters) float32.
        episodes: environments for each candidate, which follow one another.
        feature_size: of the world.
        spec: from features to actions.
        device: of the world's features.
    """

    def __init__(
        self,
        candidates: np.ndarray,
        episodes: int,
        feature_size: int,
        spec: ControllerSpec,
        device: torch.device,
    ) -> None:
        self._device = device
        repeated = torch.from_numpy(candidates).to(device).repeat_interleave(episodes, dim=0)
        self._controllers = Controllers(repeated, feature_size, spec)

    @torch.inference_mode()
    def act(self, features: Tensor) -> Tensor:
        """Actions (num_envs, action) for features (num_envs, features)."""
        return self._controllers.act(features)

    def keep(self, mask: np.ndarray) -> None:
        """Drop the environments where `mask` (num_envs,) is False."""
        self._controllers.keep(torch.from_numpy(mask).to(self._device))
