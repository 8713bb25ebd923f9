"""Actions of a baseline, and the vectors that environments and learned models take for them."""

from __future__ import annotations

from dataclasses import dataclass

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from worldmodels.envs.action_spec import ActionSpec, DiscreteActions


@dataclass(frozen=True)
class Actions:
    """Actions of a baseline: those of the environment.

    Args:
        own: the environment's.
    """

    own: ActionSpec

    @property
    def space(self) -> gymnasium.Space[np.ndarray] | Discrete:
        """What the baseline chooses from."""
        if isinstance(self.own, DiscreteActions):
            return Discrete(len(self._choices))
        bounds = self.own.bounds
        return Box(np.array(bounds.low, np.float32), np.array(bounds.high, np.float32))

    @property
    def _choices(self) -> np.ndarray:
        """The vectors (n, A) of n discrete actions."""
        assert isinstance(self.own, DiscreteActions)
        if self.own.action_bins is not None:
            return np.array([[-1.0], [0.0], [1.0]], np.float32)  # within the thirds
        return np.eye(self.own.n, dtype=np.float32)

    def vectors(self, chosen: np.ndarray) -> np.ndarray:
        """The vectors (N, A) float32 of actions: (N,) integers, or (N, A) numbers in bounds."""
        if isinstance(self.own, DiscreteActions):
            vectors: np.ndarray = self._choices[np.asarray(chosen)]
            return vectors
        return np.asarray(chosen, np.float32)
