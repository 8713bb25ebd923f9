"""The one abstraction that the game and the dream share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor


class Step(NamedTuple):
    """What a world answers to an action, for each lane that is still in it."""

    features: Tensor  # (lanes, features): what the controller sees next
    reward: np.ndarray  # (lanes,) float64
    terminated: np.ndarray  # (lanes,) bool: the episode came to its own end
    truncated: np.ndarray  # (lanes,) bool: it was cut by a time limit


class World(Protocol):
    """N lanes in lockstep. Lanes that have ended are dropped with `keep`, the rest stay dense."""

    feature_size: int
    device: torch.device

    def reset(self, seeds: Sequence[int]) -> Tensor:
        """Begin one episode a seed; features (lanes, features).

        Equal seeds begin equal episodes, on any lane and beside any others.
        """
        ...

    def step(self, actions: Tensor) -> Step:
        """Act in each lane with actions (lanes, action)."""
        ...

    def keep(self, mask: np.ndarray) -> None:
        """Drop the lanes where `mask` (lanes,) is False."""
        ...

    def close(self) -> None:
        """Let go of processes and memory; may be called twice."""
        ...
