"""The input of a controller: the latent, and parts of the dynamics model's state."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from worldmodels.models.dynamics import DynamicsModel, State


@dataclass(frozen=True)
class FeatureSpec:
    """The features of a controller, the same in the environment and in the learned model.

    Args:
        state: names of the parts of the dynamics model's state that follow z; none is z alone.
        sampled: z is a sample of its posterior (the paper's code), not its mean.
        updated: the state that goes with z_t is the one after z_t and a_{t-1}, which costs a second
            step of the model; otherwise the one after z_{t-1} and a_{t-1} (the paper's code).
    """

    state: tuple[str, ...] = ("h",)
    sampled: bool = True
    updated: bool = False

    def size(self, latent_size: int, dynamics: DynamicsModel | None) -> int:
        """F, the number of features.

        Args:
            latent_size: Z.
            dynamics: the model whose state is part of them; None for features of z alone.
        """
        if dynamics is None:
            return latent_size
        return latent_size + sum(dynamics.state_features[name] for name in self.state)

    def features(
        self, latents: Tensor, actions: Tensor, state: State, dynamics: DynamicsModel
    ) -> Tensor:
        """The features (N, F).

        Args:
            latents: z_t, (N, Z).
            actions: a_{t-1}, (N, A); zeros at the first step.
            state: of `dynamics`, after z_{t-1} and a_{t-1}, N rows.
            dynamics: the model that the state is of.
        """
        if not self.state:
            return latents
        if self.updated:
            state = dynamics.advance(latents, actions, state)
        return torch.cat([latents, dynamics.features(state, self.state)], dim=1)
