"""What a controller sees: the latent, and parts of the dynamics model's state beside it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from worldmodels.models.dynamics import DynamicsModel, State


@dataclass(frozen=True)
class FeatureSpec:
    """Which features a controller sees, in the environment and in the model alike.

    Args:
        state: names of the parts of the dynamics model's state that follow z; none is z alone.
        sampled: z is drawn from its posterior (the paper's code), not its mean.
        updated: the state beside z_t has seen z_t with a_{t-1}, at the price of a second step of
            the model; otherwise it has seen z_{t-1} with a_{t-1} (the paper's code).
    """

    state: tuple[str, ...] = ("h",)
    sampled: bool = True
    updated: bool = False

    def size(self, latent_size: int, dynamics: DynamicsModel | None) -> int:
        """How many features there are; without a dynamics model those of z."""
        if dynamics is None:
            return latent_size
        return latent_size + sum(dynamics.state_features[name] for name in self.state)

    def features(
        self, latents: Tensor, actions: Tensor, state: State, dynamics: DynamicsModel
    ) -> Tensor:
        """What the controller sees: (rows, features).

        Args:
            latents: z_t, (rows, latent).
            actions: a_{t-1}, (rows, action).
            state: of `dynamics`, after z_{t-1} and a_{t-1}.
            dynamics: the model that the state is of.
        """
        if not self.state:
            return latents
        if self.updated:
            state = dynamics.advance(latents, actions, state)
        return torch.cat([latents, dynamics.features(state, self.state)], dim=1)
