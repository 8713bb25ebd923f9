"""A controller and a critic that are trained together by gradients (actor-critic).

Shapes are in the letters of docs/shapes.md: N environments, A action, F features.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from worldmodels.models.controller import Controllers, ControllerSpec, squashing

UNITS = 256
"""Units of each of the critic's two hidden layers."""
TARGET_RATE = 0.02
"""Of the moving average."""
INITIAL_STD = 0.01
"""Standard deviation of the initial weights of the controller's outputs, which leaves its actions
at rest. A hidden layer has initial weights that give its units a standard deviation near 1."""


class ActorCritic(nn.Module):
    """The parameters of one controller, and a critic of its features.

    Returns are bootstrapped with a target critic, a moving average of the critic: the controller
    follows the errors of a critic that changes fast (docs/results-dream.md has a comparison).

    Args:
        features: F.
        spec: layers of the controller.
        discount: factor of a step, below 1; it sets the scale of values.
    """

    def __init__(self, features: int, spec: ControllerSpec, discount: float) -> None:
        super().__init__()
        self._features, self._spec, self._discount = features, spec, discount
        self._squash = squashing(spec.squash)
        self.actor = nn.Parameter(_initial_parameters(features, spec))
        self.critic = nn.Sequential(
            *(nn.Linear(features, UNITS), nn.SiLU(), nn.Linear(UNITS, UNITS), nn.SiLU()),
            nn.Linear(UNITS, 1),
        )
        last: Any = self.critic[-1]
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.target = copy.deepcopy(self.critic).requires_grad_(False)

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

    def learned_values(self, features: Tensor) -> Tensor:
        """The discounted return after each of the states (..., F) by the critic, which learns it:
        (...) float32.

        The network predicts the mean reward of a step, which is the value times 1 - discount: so it
        has the same scale whatever the discount factor is.
        """
        return self._scaled(self.critic(features))

    def values(self, features: Tensor) -> Tensor:
        """The same by the target critic, with gradients of the features alone."""
        return self._scaled(self.target(features))

    @torch.no_grad()
    def follow(self) -> None:
        """Move the weights of the target critic towards those of the critic."""
        pairs = zip(self.target.parameters(), self.critic.parameters(), strict=True)
        for kept, weight in pairs:
            kept.lerp_(weight, TARGET_RATE)

    def _scaled(self, rates: Tensor) -> Tensor:
        return rates.float().squeeze(-1) / (1 - self._discount)


def _initial_parameters(features: int, spec: ControllerSpec) -> Tensor:
    """Random parameters of a controller."""
    parameters = torch.randn(spec.size(features)) * INITIAL_STD
    *hidden, _ = Controllers(parameters[None], features, spec).layers
    for weight, _ in hidden:  # views of the parameters
        weight *= 1 / (INITIAL_STD * weight.shape[1] ** 0.5)
    return parameters
