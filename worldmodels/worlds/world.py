"""The one abstraction that the game and the dream share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor


class Step(NamedTuple):
    """What a world answers to an action, for each environment that is still in it."""

    features: Tensor  # (num_envs, features): what the controller sees next
    reward: np.ndarray  # (num_envs,) float64
    terminated: np.ndarray  # (num_envs,) bool: the episode came to its own end
    truncated: np.ndarray  # (num_envs,) bool: it was cut by a time limit


class World(Protocol):
    """N environments in lockstep. Environments that have ended are dropped with `keep`, the rest
    stay dense."""

    feature_size: int
    device: torch.device

    def reset(self, seeds: Sequence[int]) -> Tensor:
        """Begin one episode a seed; features (num_envs, features).

        Equal seeds begin equal episodes, on any environment and beside any others.
        """
        ...

    def step(self, actions: Tensor) -> Step:
        """Act in each environment with actions (num_envs, action)."""
        ...

    def keep(self, mask: np.ndarray) -> None:
        """Drop the environments where `mask` (num_envs,) is False."""
        ...

    def close(self) -> None:
        """Let go of processes and memory; may be called twice."""
        ...
