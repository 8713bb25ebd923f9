"""The rollout loop: a policy acts in a world until every episode has ended.

Training in the environment or in the learned model, data collection, evaluation and videos all use
this loop, with different worlds, policies and recorders. Shapes are in the letters of
docs/shapes.md: N environments, P candidates, A action, F features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from worldmodels.models.controller import Controllers, ControllerSpec
from worldmodels.worlds.world import Step, World


class Policy(Protocol):
    """Maps features to actions, a row for each environment."""

    def act(self, features: Tensor) -> Tensor:
        """Actions (N, A) float32 for features (N, F) float32."""
        ...

    def keep(self, mask: np.ndarray) -> None:
        """Drop the environments where `mask` (N,) bool is False."""
        ...


class Outcome(NamedTuple):
    """The results of the episodes; all of shape (N,), or (P, E) from `fitness`.

    Args:
        returns: float64, sum of rewards; where `rollout` stopped an episode by its `stall_steps`,
            the extrapolation to `max_steps`.
        lengths: int64, number of steps taken.
        terminated: bool; False where a time limit or `stall_steps` ended the episode.
        disagreement: float64, of the members of an ensemble: the mean over the steps of an episode
            in which it was measured; None without an ensemble.
        partial: (N, horizons) float64, the returns over the first steps of the episodes; None
            without horizons. An episode that failed earlier has earned what it had then; NaN where
            it ended earlier otherwise.
    """

    returns: np.ndarray
    lengths: np.ndarray
    terminated: np.ndarray
    disagreement: np.ndarray | None = None
    partial: np.ndarray | None = None

    @classmethod
    def concatenate(cls, outcomes: Iterable[Outcome]) -> Outcome:
        """The results of several rollouts in one world as those of one, (N,)."""
        parts = zip(cls._fields, zip(*outcomes, strict=True), strict=True)
        return cls(**{name: np.concatenate(part) for name, part in parts if part[0] is not None})


class Recorder(Protocol):
    """Is called with every transition of a rollout."""

    def begin(self, world: World) -> None:
        """Called once, after the reset of `world`."""
        ...

    def record(self, indices: np.ndarray, actions: Tensor, step: Step, world: World) -> None:
        """Called after each step.

        Args:
            indices: (n,) int64, the numbers that the environments had at the reset.
            actions: (n, A), taken in them.
            step: the results, n rows.
            world: after the step.
        """
        ...


def rollout(
    world: World,
    policy: Policy,
    seeds: Sequence[int],
    max_steps: int,
    recorder: Recorder | None = None,
    heartbeat: Callable[[int], None] = lambda steps: None,
    stall_steps: int | None = None,
    begin: Callable[[Sequence[int]], Tensor] | None = None,
    horizons: Sequence[int] = (),
) -> Outcome:
    """Run one episode per seed, to its end or for `max_steps`.

    Environments whose episode has ended are dropped from the batch.

    Args:
        world: that the episodes are run in.
        policy: newly made for N environments.
        seeds: of the N episodes.
        max_steps: time limit of an episode in steps; the last one truncates.
        recorder: called with every transition, if there is one.
        heartbeat: called after each step with the number of environments that took it.
        stall_steps: number of steps without a new highest return after which an episode is
            truncated. Its return is then extrapolated: it continues to fall, up to `max_steps`, at
            the average rate since its highest value. Evaluation uses None: no episode is truncated.
        begin: begins the episodes and returns the first features; None is `world.reset`.
        horizons: numbers of steps, for `Outcome.partial`.

    Returns:
        the outcome in the order of the seeds.
    """
    count, indices = len(seeds), np.arange(len(seeds))
    tally = _Tally(count, horizons)
    stalls = None if stall_steps is None else _Stalls(count, stall_steps, max_steps)
    features = (begin or world.reset)(seeds)
    if recorder is not None:
        recorder.begin(world)
    for time in range(max_steps):
        actions = policy.act(features)
        step = world.step(actions)
        if time == max_steps - 1:
            step = step._replace(truncated=step.truncated | ~step.terminated)
        tally.add(time + 1, indices, step)
        if stalls is not None:
            step = step._replace(truncated=stalls.truncate(time, indices, step, tally.returns))
        if recorder is not None:
            recorder.record(indices, actions, step, world)
        heartbeat(len(indices))
        features = step.features
        running = ~(step.terminated | step.truncated)
        if not running.all():
            indices = indices[running]
            if not len(indices):
                break
            world.keep(running)
            policy.keep(running)
            features = features[torch.from_numpy(running).to(features.device)]
    return tally.outcome()


class _Tally:
    """The results of N episodes so far."""

    def __init__(self, count: int, horizons: Sequence[int]) -> None:
        self.returns = np.zeros(count)
        self._lengths, self._terminated = np.zeros(count, np.int64), np.zeros(count, bool)
        self._disagreement, self._partial = _Mean(count), _Partial(count, horizons)

    def add(self, steps: int, indices: np.ndarray, step: Step) -> None:
        """Add a step of the environments `indices` (n,), which have taken so many `steps`."""
        self.returns[indices] += step.reward
        self._lengths[indices] += 1
        self._terminated[indices] = step.terminated
        self._disagreement.add(indices, step.disagreement)
        self._partial.add(steps, indices, step, self.returns)

    def outcome(self) -> Outcome:
        """Of all episodes."""
        measured = self._disagreement.value(), self._partial.value()
        return Outcome(self.returns, self._lengths, self._terminated, *measured)


class _Mean:
    """The mean of a value over the steps of each episode, without those in which it is NaN."""

    def __init__(self, count: int) -> None:
        self._sums, self._steps = np.zeros(count), np.zeros(count, np.int64)

    def add(self, indices: np.ndarray, values: np.ndarray | None) -> None:
        """Add the values (n,) of a step in the environments `indices` (n,), if there are any."""
        if values is None:
            return
        measured = ~np.isnan(values)
        self._sums[indices[measured]] += values[measured]
        self._steps[indices[measured]] += 1

    def value(self) -> np.ndarray | None:
        """The means (N,); None where nothing was added."""
        return self._sums / self._steps if self._steps.any() else None


class _Partial:
    """The returns over the first steps of each episode, see `Outcome.partial`.

    An episode fails if the step that terminates it earns no more than its mean step, as in
    `worldmodels.data.failures.failures`.
    """

    def __init__(self, count: int, horizons: Sequence[int]) -> None:
        self._horizons = np.array(horizons, np.int64)
        self._found = np.full((count, len(horizons)), np.nan)

    def add(self, steps: int, indices: np.ndarray, step: Step, returns: np.ndarray) -> None:
        """Add the results of the environments `indices` (n,) after so many steps.

        Args:
            steps: taken in each of them.
            indices: (n,) int64.
            step: the last one, n rows.
            returns: (N,), with those of the last step.
        """
        reached = self._horizons == steps
        if reached.any():
            self._found[np.ix_(indices, reached)] = returns[indices, None]
        failed = indices[step.terminated & (step.reward <= returns[indices] / steps)]
        if len(failed):
            self._found[np.ix_(failed, self._horizons > steps)] = returns[failed, None]

    def value(self) -> np.ndarray | None:
        """(N, horizons); None without horizons."""
        return self._found if len(self._horizons) else None


class _Stalls:
    """Truncates episodes without a new highest return, for the `stall_steps` of `rollout`."""

    def __init__(self, count: int, stall_steps: int, max_steps: int) -> None:
        self._stall_steps, self._max_steps = stall_steps, max_steps
        self._highest = np.full(count, -np.inf)  # (N,) highest return of each episode
        self._reached = np.zeros(count, np.int64)  # (N,) the step of it

    def truncate(
        self, time: int, indices: np.ndarray, step: Step, returns: np.ndarray
    ) -> np.ndarray:
        """Which of the environments `indices` (n,) are truncated in step `time`: (n,) bool.

        The returns (N,) of those that stall are extrapolated in place to the last step.
        """
        highest, reached = self._highest, self._reached
        risen = indices[returns[indices] > highest[indices]]
        highest[risen], reached[risen] = returns[risen], time
        stalled = (
            (time - reached[indices] >= self._stall_steps) & ~step.terminated & ~step.truncated
        )
        ended = indices[stalled]
        slope = (returns - highest)[ended] / (time - reached[ended])  # per step, not above 0
        returns[ended] += slope * (self._max_steps - 1 - time)
        truncated: np.ndarray = step.truncated | stalled
        return truncated


class PopulationPolicy:
    """A population of controllers, each of which acts in the same number of environments.

    Args:
        candidates: (P, parameters) float32.
        episodes: E, environments per candidate; candidate p acts in p * E to p * E + E - 1.
        feature_size: F of the world.
        spec: layers of the controllers.
        device: of the world's features.

    Raises:
        ValueError: the number of parameters does not fit `feature_size` and `spec`.
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
        """Actions (N, A) float32 for features (N, F) float32; N = P * E until `keep`."""
        return self._controllers.act(features)

    def keep(self, mask: np.ndarray) -> None:
        """Drop the environments where `mask` (N,) bool is False."""
        self._controllers.keep(torch.from_numpy(mask).to(self._device))
