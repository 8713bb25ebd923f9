"""Failures in recorded and predicted episodes, and scores of their forecasts.

A *failure* is a termination, or a step from which the return falls over the next `STALL` steps
(CarRacing: off the road), or fewer where a collection ends an episode that stalls before. Where the
model predicts rewards, a termination with a positive one is a completed task and no failure.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

STALL = 50
"""Most steps over which the return falls in a stall: 1 s of CarRacing, 4 s with
``env.frame_skip=4``."""


@dataclass(frozen=True)
class Reliability:
    """How often windows with one forecast had a failure (Murphy 1973).

    Args:
        forecast: probability of a failure.
        windows: number of windows with this forecast.
        observed: share of these in which a failure was recorded.
    """

    forecast: float
    windows: int
    observed: float


@dataclass(frozen=True)
class Failures:
    """Forecasts of failures beside recorded ones, in windows of equal length.

    Args:
        windows: number of windows.
        recorded: windows in which a failure was recorded.
        predicted: windows whose forecast is one half or more.
        recall: share of the recorded failures that were predicted; None where there are none.
        precision: share of the predicted failures that were recorded; None where there are none.
        brier: mean squared difference of forecast and failure, 0 or 1 (Brier 1950).
        reliability: by forecast, from low to high.
    """

    windows: int
    recorded: int
    predicted: int
    recall: float | None
    precision: float | None
    brier: float
    reliability: tuple[Reliability, ...]


def failing(
    rewards: np.ndarray, terminated: np.ndarray, completes: bool, stall: int = STALL
) -> np.ndarray:
    """The steps of episodes that terminate in failure or lie within a stall.

    Args:
        rewards: (..., T), NaN after the end of an episode.
        terminated: (..., T) bool, True from the terminating step to the end of the episode.
        completes: a termination with a positive reward is a completed task.
        stall: steps over which the return falls in a stall.

    Returns:
        (..., T) bool.
    """
    before = np.zeros_like(terminated)
    before[..., 1:] = terminated[..., :-1]
    found: np.ndarray = terminated & ~before
    if completes:
        found &= ~(rewards > 0)
    running = np.where(terminated, np.nan, rewards)
    if rewards.shape[-1] >= stall:
        windows = np.lib.stride_tricks.sliding_window_view(running, stall, axis=-1)
        found[..., : windows.shape[-2]] |= windows.sum(axis=-1) < 0  # never, where one is NaN
    return found


def failure_scores(forecast: np.ndarray, happened: np.ndarray) -> Failures:
    """Scores of forecasts.

    Args:
        forecast: (windows,) probabilities of a failure, at least one.
        happened: (windows,) bool.
    """
    said = forecast >= 0.5
    hits, recorded, predicted = (int(part.sum()) for part in (said & happened, happened, said))
    groups = [(float(level), happened[forecast == level]) for level in np.unique(forecast)]
    return Failures(
        windows=len(forecast),
        recorded=recorded,
        predicted=predicted,
        recall=hits / recorded if recorded else None,
        precision=hits / predicted if predicted else None,
        brier=float(np.square(forecast - happened).mean()),
        reliability=tuple(
            Reliability(level, len(same), float(same.mean())) for level, same in groups
        ),
    )
