"""Value functions on the features of a controller: the return of the next steps.

An episode in the learned model can then be short: what follows its last step is a value function's
to tell (as in POLO, Lowrey et al. 2019, and TD-MPC, Hansen et al. 2022). Shapes are in the letters
of docs/shapes.md: M value functions, N environments, F features.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

UNITS = (256, 128)
"""Units of the two hidden layers."""


class ValueEnsemble(nn.Module):
    """M value functions of one size with different initial weights, computed together.

    Args:
        features: F.
        members: M.
        horizon: steps whose undiscounted rewards a value is the sum of; after a termination there
            are none.
        penalty: subtracted from the reward of a failure.
    """

    def __init__(self, features: int, members: int, horizon: int, penalty: float = 0.0) -> None:
        super().__init__()
        self.features, self.members, self.horizon = features, members, horizon
        self.penalty = penalty
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("std", torch.ones(features))
        sizes = (features, *UNITS, 1)
        self.weights = nn.ParameterList()
        self.biases = nn.ParameterList()
        for inputs, outputs in pairwise(sizes):
            bound = inputs**-0.5  # as `torch.nn.Linear`
            for kept, shape in ((self.weights, (inputs, outputs)), (self.biases, (1, outputs))):
                kept.append(nn.Parameter(torch.empty(members, *shape).uniform_(-bound, bound)))

    def normalise(self, features: Tensor) -> None:
        """Set the mean and standard deviation of the inputs to those of `features` (rows, F)."""
        self.mean.copy_(features.mean(dim=0))
        self.std.copy_(features.std(dim=0) + 1e-3)

    def rates(self, features: Tensor) -> Tensor:
        """The mean rewards of the next `horizon` steps, (M, N), for features (N, F)."""
        hidden = ((features - self.mean) / self.std).expand(self.members, -1, -1)
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            hidden = nn.functional.silu(torch.baddbmm(bias, hidden, weight))
        return torch.baddbmm(self.biases[-1], hidden, self.weights[-1]).squeeze(2)

    def forward(self, features: Tensor) -> Tensor:
        """The values, (M, N) float32, for features (N, F) float32."""
        return self.rates(features) * self.horizon
