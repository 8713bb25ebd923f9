"""What an episode of the learned model earns where a time limit truncates it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from worldmodels.models.value import ValueEnsemble


@dataclass(frozen=True)
class TerminalValue:
    """The value of the features after the last step of an episode.

    Args:
        values: the value functions.
        steps: time limit of an episode.
        pessimism: standard deviations (of the population of value functions) that are subtracted
            from the mean of the values.
    """

    values: ValueEnsemble
    steps: int
    pessimism: float = 0.0

    def to(self, device: torch.device) -> TerminalValue:
        """With the value functions on `device`."""
        return replace(self, values=self.values.to(device))

    def value(self, features: Tensor) -> np.ndarray:
        """The value (N,) float64 of features (N, F) float32."""
        values = self.values(features).cpu().double().numpy()  # (M, N)
        lowered: np.ndarray = values.mean(axis=0) - self.pessimism * values.std(axis=0)
        return lowered
