"""The interface that the environment and the learned model share.

Shapes are in the letters of docs/shapes.md: N environments, A action, F features.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor


class Step(NamedTuple):
    """The results of one step, a row for each environment that has not been dropped.

    Args:
        features: input of the controller for the next action.
        reward: of this step.
        terminated: the episode ended by itself.
        truncated: a time limit ended the episode.
        disagreement: of the members of an ensemble, NaN where it was not measured in this step;
            None without an ensemble.
    """

    features: Tensor  # (N, F) float32
    reward: np.ndarray  # (N,) float64
    terminated: np.ndarray  # (N,) bool
    truncated: np.ndarray  # (N,) bool
    disagreement: np.ndarray | None = None  # (N,) float64


class World(Protocol):
    """N environments stepped together; those whose episode has ended are dropped with `keep`.

    Args:
        feature_size: F, the features of one environment.
        device: of features and actions.
    """

    feature_size: int
    device: torch.device

    def reset(self, seeds: Sequence[int]) -> Tensor:
        """Start one episode per seed; drops all earlier episodes.

        Args:
            seeds: of the N episodes. An episode depends on its own seed only, not on its position
                or on the other seeds.

        Returns:
            the features (N, F) float32 of the first action.
        """
        ...

    def step(self, actions: Tensor) -> Step:
        """Take one step in every environment.

        Args:
            actions: (N, A) float32, in the ranges of the environment's action space.
        """
        ...

    def keep(self, mask: np.ndarray) -> None:
        """Drop the environments where `mask` (N,) bool is False; N is smaller afterwards."""
        ...

    def close(self) -> None:
        """Release processes and memory. May be called twice."""
        ...
