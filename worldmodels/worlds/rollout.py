"""The one loop: policies act in a world until every lane has ended.

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
    """What acts: one row of features in, one action out, for each lane."""

    def act(self, features: Tensor) -> Tensor:
        """Actions (lanes, action) for features (lanes, features)."""
        ...

    def keep(self, mask: np.ndarray) -> None:
        """Drop the lanes where `mask` (lanes,) is False."""
        ...


class Outcome(NamedTuple):
    """How each episode went; all of shape (lanes,)."""

    returns: np.ndarray  # float64, sum of rewards
    lengths: np.ndarray  # int64, steps
    terminated: np.ndarray  # bool, False where a time limit cut it


class Recorder(Protocol):
    """Sees every transition; `lanes` are the numbers the lanes had at the start."""

    def begin(self, world: World) -> None:
        """The world has been reset."""
        ...

    def record(self, lanes: np.ndarray, actions: Tensor, step: Step, world: World) -> None:
        """One step was taken in `lanes`; the world shows what came of it."""
        ...


def rollout(
    world: World,
    policy: Policy,
    seeds: Sequence[int],
    max_steps: int,
    recorder: Recorder | None = None,
    heartbeat: Callable[[int], None] = lambda steps: None,
    patience: int | None = None,
) -> Outcome:
    """Play one episode a seed to its end, or for `max_steps`.

    Ended lanes leave the batch, so that the work shrinks with them.

    Args:
        heartbeat: called each step with the number of lane steps it took.
        patience: steps without a new highest return after which a lane is taken to be stuck: it
            ends, truncated, and goes on falling for the steps that were left as it fell since
            then. None lets every lane play on, as whoever judges must.

    Returns:
        the outcome in the order of the seeds.
    """
    count = len(seeds)
    returns, lengths = np.zeros(count), np.zeros(count, np.int64)
    terminated = np.zeros(count, bool)
    highest, reached = np.full(count, -np.inf), np.zeros(count, np.int64)
    lanes = np.arange(count)
    features = world.reset(seeds)
    if recorder is not None:
        recorder.begin(world)
    for time in range(max_steps):
        actions = policy.act(features)
        step = world.step(actions)
        if time == max_steps - 1:
            step = step._replace(truncated=step.truncated | ~step.terminated)
        returns[lanes] += step.reward
        lengths[lanes] += 1
        terminated[lanes] = step.terminated
        if patience is not None:
            risen = lanes[returns[lanes] > highest[lanes]]
            highest[risen], reached[risen] = returns[risen], time
            stuck = (time - reached[lanes] >= patience) & ~step.terminated & ~step.truncated
            fallen = (returns - highest)[lanes[stuck]] / (time - reached[lanes[stuck]])
            returns[lanes[stuck]] += fallen * (max_steps - 1 - time)
            step = step._replace(truncated=step.truncated | stuck)
        if recorder is not None:
            recorder.record(lanes, actions, step, world)
        heartbeat(len(lanes))
        features = step.features
        alive = ~(step.terminated | step.truncated)
        if not alive.all():
            lanes = lanes[alive]
            if not len(lanes):
                break
            world.keep(alive)
            policy.keep(alive)
            features = features[torch.from_numpy(alive).to(features.device)]
    return Outcome(returns, lengths, terminated)


class PopulationPolicy:
    """Candidates side by side, each on its share of the lanes.

    Args:
        candidates: (candidates, parameters) float32.
        episodes: lanes for each candidate, which follow one another.
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
        lanes = torch.from_numpy(candidates).to(device).repeat_interleave(episodes, dim=0)
        self._controllers = Controllers(lanes, feature_size, spec)

    @torch.inference_mode()
    def act(self, features: Tensor) -> Tensor:
        """Actions (lanes, action) for features (lanes, features)."""
        return self._controllers.act(features)

    def keep(self, mask: np.ndarray) -> None:
        """Drop the lanes where `mask` (lanes,) is False."""
        self._controllers.keep(torch.from_numpy(mask).to(self._device))
