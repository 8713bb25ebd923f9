"""Where a recorded episode failed."""

from __future__ import annotations

import numpy as np


def failures(rewards: np.ndarray, terminated: bool, stall_steps: int | None) -> tuple[int, ...]:
    """The steps at which an episode failed: where the failure began, and its termination.

    An episode failed if it was truncated `stall_steps` or more after its highest return, or
    terminated by a step that earned no more than its mean step: a lap or a game that is won ends
    with a larger reward. The failure began in the step after the highest return. With a reward for
    each step survived that is the last one.

    Args:
        rewards: (T,).
        terminated: whether the environment's rules ended the episode.
        stall_steps: see `worldmodels.worlds.rollout.rollout`; None: only terminations are failures.

    Returns:
        none, one or two steps, in order.
    """
    last = len(rewards) - 1
    earned = rewards.astype(np.float64)
    highest = int(np.argmax(np.cumsum(earned)))
    began = min(highest + 1, last)
    if terminated:
        return () if earned[-1] > earned.mean() else tuple(sorted({began, last}))
    return (began,) if stall_steps is not None and last - highest >= stall_steps else ()
