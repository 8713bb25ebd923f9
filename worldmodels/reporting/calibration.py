"""Calibration of the learned model: its predictions beside what held-out episodes recorded.

Predictions begin at recorded moments, every `WINDOW` steps of an episode, with the state that the
model has after the recorded latents and actions up to then. From there on the model gets the
recorded actions and no later frame (open loop), and samples its latents at temperature 1, as in
`DreamWorld`. The forecast of a window of `WINDOW` steps is the share of its samples in which a
failure begins (`worldmodels.reporting.failures`).

Where a model predicts no rewards, the reward of a step is 1 unless it terminates the episode, in
the recording as in the prediction. Shapes: N moments, S samples of each, T steps, Z latent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from worldmodels.data.latents import EncodedEpisode, LatentSet
from worldmodels.data.sequences import EpisodeEnds, FailureEnd, episode_ends
from worldmodels.models.dynamics import DynamicsModel, State, select_rows
from worldmodels.reporting.failures import STALL, Failures, failing, failure_scores
from worldmodels.reporting.open_loop import open_loop_world, under_recorded_actions
from worldmodels.reporting.records import Record

HORIZONS = (10, 30, 100, 300)
"""Steps over which predicted and recorded returns are compared."""
WINDOW = 50
"""Steps in which a failure is forecast, and steps that are looked at around a failure."""
BEFORE = 25
"""Of these, steps before the failure."""
SAMPLES = 4
"""S, predictions from each moment."""
EPISODES, STARTS, FAILURES = 64, 256, 64
"""Most episodes, moments in all of them, and failures that are looked at; they bound the time to
some seconds."""


@dataclass(frozen=True)
class Horizon:
    """Predicted and recorded returns over some steps.

    Args:
        steps: over which rewards are added up; fewer where the recorded episode terminated.
        starts: number of moments, or of episodes.
        earned: mean recorded return.
        predicted: mean predicted return.
        difference: predicted - earned, as a share of the root mean square of the recorded returns;
            where nothing was earned, of the predicted ones, and 0 where both are 0.
    """

    steps: int
    starts: int
    earned: float
    predicted: float
    difference: float

    @classmethod
    def of(cls, steps: int, earned: np.ndarray, predicted: np.ndarray) -> Horizon:
        """Of the recorded returns (starts,) and predicted ones of any shape."""
        real, dreamt = float(earned.mean()), float(predicted.mean())
        scales = (float(np.sqrt(np.square(returns).mean())) for returns in (earned, predicted))
        scale = next(filter(None, scales), 1.0)
        return cls(steps, len(earned), real, dreamt, (dreamt - real) / scale)

    @classmethod
    def read(cls, record: Record) -> Horizon:
        """From an object of a file; raises `ArtifactError` where it is damaged."""
        steps, starts = (record.count(key) for key in ("steps", "starts"))
        return cls(steps, starts, *map(record.number, ("earned", "predicted", "difference")))


@dataclass(frozen=True)
class Around:
    """Returns around failures, from `BEFORE` steps before each on, averaged.

    Args:
        failures: their number.
        earned: recorded return up to each of `WINDOW` steps; equal after a termination.
        predicted: likewise, from predictions that begin with the first of these steps.
    """

    failures: int
    earned: tuple[float, ...]
    predicted: tuple[float, ...]


@dataclass(frozen=True)
class Calibration:
    """Predictions of a dynamics model beside held-out episodes.

    Args:
        episodes: number of episodes.
        horizons: those of `HORIZONS` for which an episode is long enough.
        failures: of windows that do not begin within a stall; None where there is no such window.
        around: None where no failure has `BEFORE` steps before it.
    """

    episodes: int
    horizons: tuple[Horizon, ...]
    failures: Failures | None
    around: Around | None

    def record(self) -> dict[str, Any]:
        """The fields as they stand in ``calibration.json``."""
        return asdict(self)


class _Recorded(NamedTuple):
    """An episode of T steps in the terms of the predictions."""

    rewards: np.ndarray  # (T,)
    failing: np.ndarray  # (T,) bool
    terminated: bool  # no step could follow


class _Predicted(NamedTuple):
    """Predictions from N moments; see `failing` for their ends."""

    rewards: np.ndarray  # (N, S, T), 0 after a predicted termination, NaN where none was recorded
    terminated: np.ndarray  # (N, S, T) bool


Moments = Sequence[tuple[int, int]]
"""N pairs of an episode and the step of it at which a prediction begins."""

Fails = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""`failing`, of rewards and terminations."""


@torch.inference_mode()
def calibrate(
    latents: LatentSet,
    indices: np.ndarray,
    dynamics: DynamicsModel,
    stall_steps: int | None = None,
    failure_end: FailureEnd | None = None,
) -> Calibration:
    """Compare predictions with episodes that the model was not trained on.

    Args:
        latents: encoded episodes.
        indices: of the held-out ones, at least one; up to `EPISODES` of them are used.
        dynamics: the model, float32, on the CPU.
        stall_steps: the collection ended episodes so many steps after their highest return, so that
            the return cannot fall over more (`worldmodels.worlds.rollout.rollout`); None: it ended
            none.
        failure_end: where the model has learned that episodes end, and the recorded ones end here
            too. It predicts no termination but a failure then; None: as they were recorded.

    Raises:
        DataError: the file of latents is damaged.
    """
    ends = episode_ends(latents, failure_end)
    completes = dynamics.predicts_reward and failure_end is None
    stall = STALL if stall_steps is None else min(STALL, stall_steps)
    fails = partial(failing, completes=completes, stall=stall)
    chosen = np.array(_spread(indices, EPISODES))
    # The longest first, so that those still running are the first rows.
    chosen = chosen[np.argsort(-ends.lengths[chosen], kind="stable")]
    episodes = [_ended(latents, int(index), ends) for index in chosen]
    survived = None if dynamics.predicts_reward else 1
    recorded = [
        _recorded(episode, survived, fails, bool(won))
        for episode, won in zip(episodes, ends.won[chosen], strict=True)
    ]
    every: list[tuple[int, int]] = []
    failed: list[tuple[int, int]] = []
    for row, one in enumerate(recorded):
        every += [(row, at) for at in range(0, len(one.rewards), WINDOW)]
        begun = np.flatnonzero(one.failing & ~np.append(False, one.failing[:-1]))
        failed += [(row, int(at) - BEFORE) for at in begun if at >= BEFORE]
    starts, failed = _spread(every, STARTS), _spread(failed, FAILURES)
    predicted = _predict(dynamics, episodes, starts, max(HORIZONS))
    around = _predict(dynamics, episodes, failed, WINDOW) if failed else None
    return Calibration(
        episodes=len(episodes),
        horizons=_horizons(recorded, starts, predicted),
        failures=_failures(recorded, starts, predicted, fails),
        around=None if around is None else _around(recorded, failed, around),
    )


def _spread(values: Sequence[Any] | np.ndarray, count: int) -> list[Any]:
    """At most `count` of some values, evenly spaced."""
    at = np.linspace(0, len(values) - 1, min(count, len(values))).round().astype(int)
    return [values[number] for number in at]


def _ended(latents: LatentSet, index: int, ends: EpisodeEnds) -> EncodedEpisode:
    """An episode until it ends for the model, as in its training."""
    episode = latents.read(index, 0, int(ends.lengths[index]))
    terminated = episode.terminated & ~ends.won[index]
    terminated[-1] |= ends.stalled[index]
    return replace(episode, terminated=terminated)


def _recorded(episode: EncodedEpisode, survived: int | None, fails: Fails, won: bool) -> _Recorded:
    rewards = counted_rewards(episode.rewards, episode.terminated, survived)
    within = fails(rewards, episode.terminated)
    return _Recorded(rewards, within, won or bool(episode.terminated[-1]))


def _predict(
    dynamics: DynamicsModel, episodes: Sequence[EncodedEpisode], moments: Moments, steps: int
) -> _Predicted:
    """Predict up to T = `steps` steps from each moment."""
    world = open_loop_world(dynamics, 1.0)
    latents, state = _warmed(dynamics, episodes, moments)
    actions = [episodes[row].actions[at : at + steps] for row, at in moments]
    shape = (len(moments), SAMPLES, steps)
    rewards, terminated = np.full(shape, np.nan), np.zeros(shape, bool)
    for sample in range(SAMPLES):
        first_seed = sample * len(moments)
        world.begin(latents, range(first_seed, first_seed + len(moments)), state)
        ended = np.zeros(len(moments), bool)
        for time, rows, step in under_recorded_actions(world, actions):
            rewards[rows, sample, time] = np.where(ended[rows], 0, step.reward)
            ended[rows] |= step.terminated
            terminated[rows, sample, time] = ended[rows]
    return _Predicted(rewards, terminated)


def _warmed(
    dynamics: DynamicsModel, episodes: Sequence[EncodedEpisode], moments: Moments
) -> tuple[Tensor, State]:
    """The mean latents (N, Z) of the moments, and the state after all steps before them.

    `episodes` are the longest first.
    """
    state = dynamics.initial_state(len(episodes))
    order: list[int] = []
    parts: list[State] = []
    for time in range(1 + max(at for _, at in moments)):
        running = [episode for episode in episodes if len(episode.actions) > time]
        state = select_rows(state, slice(len(running)))
        due = [number for number, (_, at) in enumerate(moments) if at == time]
        if due:
            order += due
            parts.append(select_rows(state, torch.tensor([moments[n][0] for n in due])))
        means, actions = (
            torch.from_numpy(np.stack([getattr(episode, name)[time] for episode in running]))
            for name in ("mean", "actions")
        )
        state = dynamics.advance(means, actions, state)
    joined = tuple(torch.cat(tensors) for tensors in zip(*parts, strict=True))
    latents = np.stack([episodes[row].mean[at] for row, at in moments])
    return torch.from_numpy(latents), select_rows(joined, torch.tensor(order).argsort())


def _horizons(
    recorded: Sequence[_Recorded], starts: Moments, predicted: _Predicted
) -> tuple[Horizon, ...]:
    found = []
    for steps in HORIZONS:
        whole = [
            number
            for number, (row, at) in enumerate(starts)
            if at + steps <= len(recorded[row].rewards) or recorded[row].terminated
        ]
        if not whole:
            continue
        moments = [starts[number] for number in whole]
        earned = np.array([recorded[row].rewards[at : at + steps].sum() for row, at in moments])
        sums = np.nansum(predicted.rewards[whole, :, :steps], axis=2)
        found.append(Horizon.of(steps, earned, sums))
    return tuple(found)


def _failures(
    recorded: Sequence[_Recorded], starts: Moments, predicted: _Predicted, fails: Fails
) -> Failures | None:
    free = [n for n, (row, at) in enumerate(starts) if not (at and recorded[row].failing[at - 1])]
    if not free:
        return None
    windows = [recorded[row].failing[at : at + WINDOW] for row, at in (starts[n] for n in free)]
    within = fails(predicted.rewards[free], predicted.terminated[free])
    forecast = within[:, :, :WINDOW].any(axis=2).mean(axis=1)  # (windows,)
    return failure_scores(forecast, np.array([window.any() for window in windows]))


def _around(recorded: Sequence[_Recorded], begun: Moments, predicted: _Predicted) -> Around:
    earned = np.zeros((len(begun), WINDOW))
    for number, (row, at) in enumerate(begun):
        rewards = recorded[row].rewards[at : at + WINDOW]
        earned[number, : len(rewards)] = rewards
    sums = np.nancumsum(predicted.rewards, axis=2).mean(axis=(0, 1))
    return Around(
        len(begun), tuple(earned.cumsum(axis=1).mean(axis=0).tolist()), tuple(sums.tolist())
    )


def counted_rewards(
    rewards: np.ndarray, terminated: np.ndarray, survived: int | None
) -> np.ndarray:
    """The recorded rewards (T,) that are comparable with those of the learned model, float64.

    Args:
        rewards: of an episode, (T,).
        terminated: (T,) bool.
        survived: what each step that does not terminate is worth; None: the model predicts rewards.
    """
    return np.asarray(rewards if survived is None else survived * ~terminated, np.float64)


def largest_return(latents: LatentSet, max_steps: int, survived: int | None) -> float:
    """The largest recorded return over `max_steps` steps.

    An episode that a time limit ended earlier counts with its mean reward in the steps that are
    missing.

    Args:
        latents: encoded episodes.
        max_steps: time limit of the episodes that are compared with it.
        survived: as `counted_rewards` takes it.

    Raises:
        DataError: the file of latents is damaged.
    """
    returns = []
    for rewards, terminated in latents.outcomes():
        counted = counted_rewards(rewards, terminated, survived)[:max_steps]
        short = not terminated[: len(counted)].any()
        returns.append(counted.sum() * (max_steps / len(counted) if short else 1.0))
    return float(max(returns))
