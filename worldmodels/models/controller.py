"""C: the controller, one linear layer (paper, appendix A.3), for a whole population at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

SQUASHINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,  # [-1, 1]
    "half_tanh": lambda x: 0.5 * torch.tanh(x) + 0.5,  # [0, 1], 0.5 at rest
    "clipped_tanh": lambda x: torch.tanh(x).clamp(min=0.0),  # [0, 1], 0 at rest
}
"""How the paper's code maps an output to an action: steering, gas and brake of CarRacing."""


def controller_size(feature_size: int, action_size: int) -> int:
    """Parameters of a controller: a weight for each feature and a bias, for each action."""
    return (feature_size + 1) * action_size


class LinearControllers(nn.Module):
    """Linear controllers, one for each lane, applied as one batched product.

    Args:
        parameters: (lanes, controller_size) float32; weights (feature, action), then biases.
        feature_size: of the world it acts in.
        squash: for each action the name of a squashing in `SQUASHINGS`.

    Raises:
        ValueError: the parameters do not fit the features and actions.
    """

    weight: Tensor
    bias: Tensor

    def __init__(self, parameters: Tensor, feature_size: int, squash: Sequence[str]) -> None:
        super().__init__()
        actions = len(squash)
        if parameters.shape[-1] != controller_size(feature_size, actions):
            raise ValueError(
                f"a controller of {feature_size} features and {actions} actions has "
                f"{controller_size(feature_size, actions)} parameters, not {parameters.shape[-1]}"
            )
        self.squash = [SQUASHINGS[name] for name in squash]
        split = feature_size * actions
        weight = parameters[:, :split].reshape(-1, feature_size, actions)
        self.register_buffer("weight", weight)  # (lanes, features, actions)
        self.register_buffer("bias", parameters[:, split:])  # (lanes, actions)

    def act(self, features: Tensor) -> Tensor:
        """Actions (lanes, actions) from features (lanes, features)."""
        raw = torch.baddbmm(self.bias.unsqueeze(1), features.unsqueeze(1), self.weight).squeeze(1)
        return torch.stack([f(raw[:, i]) for i, f in enumerate(self.squash)], dim=-1)

    def keep(self, mask: Tensor) -> None:
        """Drop the lanes where `mask` (lanes,) is False."""
        self.weight = self.weight[mask]
        self.bias = self.bias[mask]
