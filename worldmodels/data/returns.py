"""Returns of the next steps in recorded episodes, which value functions predict."""

from __future__ import annotations

import numpy as np


def counted_rewards(rewards: np.ndarray, terminated: np.ndarray, rewarded: bool) -> np.ndarray:
    """The recorded rewards (T,) that are comparable with those of the learned model, float64.

    Args:
        rewards: of an episode, (T,).
        terminated: (T,) bool.
        rewarded: the model predicts rewards; if not, each step that does not terminate is worth 1.
    """
    return np.asarray(rewards if rewarded else ~terminated, np.float64)


def future_returns(rewards: np.ndarray, horizon: int, ended: bool) -> np.ndarray:
    """The undiscounted return of the `horizon` steps that follow each frame but the last.

    Args:
        rewards: (T,), rewards[t] is that of the step from frame t to frame t + 1.
        horizon: number of steps.
        ended: the episode ended after T steps, and later rewards are 0; else they are unknown.

    Returns:
        (frames,) float64, of the frames 0 to T - 1 if the episode ended, else of those that are
        followed by `horizon` steps.
    """
    sums = np.concatenate([[0.0], np.cumsum(rewards, dtype=np.float64)])  # (T + 1,)
    frames = len(rewards) if ended else max(len(rewards) - horizon + 1, 0)
    first = np.arange(frames)
    returns: np.ndarray = sums[np.minimum(first + horizon, len(rewards))] - sums[first]
    return returns
