"""A controller and a critic that are trained together by gradients (actor-critic).

Shapes are in the letters of docs/shapes.md: N environments, A action, F features.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from worldmodels.models.controller import Controllers, ControllerSpec, squashing

UNITS = 256
"""Units of each of the critic's two hidden layers."""
INITIAL_STD = 0.01
"""Standard deviation of the controller's initial weights, which leaves its actions at rest."""


class ActorCritic(nn.Module):
    """The parameters of one controller, and a critic of its features.

    Args:
        features: F.
        spec: layers of the controller.
        discount: factor of a step, below 1; it sets the scale of values.
    """

    def __init__(self, features: int, spec: ControllerSpec, discount: float) -> None:
        super().__init__()
        self._features, self._spec, self._discount = features, spec, discount
        self._squash = squashing(spec.squash)
        self.actor = nn.Parameter(torch.randn(spec.size(features)) * INITIAL_STD)
        self.critic = nn.Sequential(
            *(nn.Linear(features, UNITS), nn.SiLU(), nn.Linear(UNITS, UNITS), nn.SiLU()),
            nn.Linear(UNITS, 1),
        )
        last: Any = self.critic[-1]
        nn.init.zeros_(last.weight)

    def outputs(self, features: Tensor) -> Tensor:
        """The outputs (N, A) of the controller's last layer, before they are bounded."""
        layers = Controllers(self.actor[None], self._features, self._spec).layers
        for number, (weight, bias) in enumerate(layers):
            if number:
                features = torch.tanh(features)
            features = torch.addmm(bias[0], features, weight[0])
        return features

    def actions(self, outputs: Tensor) -> Tensor:
        """The actions (N, A) of outputs (N, A)."""
        return self._squash(outputs)

    def values(self, features: Tensor, trained: bool) -> Tensor:
        """The discounted return after each of the states (..., F): (...) float32.

        The network predicts the mean reward of a step, which is the value times 1 - discount: so it
        has the same scale whatever the discount factor is.

        Args:
            features: of the states.
            trained: with gradients of the critic's weights; otherwise of the features alone.
        """
        hidden = features
        for layer in self.critic:
            if isinstance(layer, nn.Linear):
                weights = (layer.weight, layer.bias)
                kept = weights if trained else tuple(part.detach() for part in weights)
                hidden = F.linear(hidden, *kept)
            else:
                hidden = layer(hidden)
        return hidden.float().squeeze(-1) / (1 - self._discount)
