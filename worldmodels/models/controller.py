"""Controllers of a whole population at once: one linear layer (paper, appendix A.3).

Or with a hidden layer, which the paper compares with (section 2, "V model with a hidden layer").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

Squashing = Callable[[Tensor], Tensor]


def _half_tanh(x: Tensor) -> Tensor:
    return 0.5 * torch.tanh(x) + 0.5


def _clipped_tanh(x: Tensor) -> Tensor:
    return torch.tanh(x).clamp(min=0.0)


SQUASHINGS: dict[str, Squashing] = {
    "tanh": torch.tanh,  # [-1, 1]
    "half_tanh": _half_tanh,  # [0, 1], 0.5 at rest
    "clipped_tanh": _clipped_tanh,  # [0, 1], 0 at rest
}
"""How the paper's code maps an output to an action: steering, gas and brake of CarRacing."""
CHOICE = "choice"
"""Instead of squashings for one-hot actions: 1 for the largest output, 0 for the others."""


def squashing(names: Sequence[str]) -> Squashing:
    """The function from outputs of the last layer to actions.

    Args:
        names: one of `SQUASHINGS` for each action, or `CHOICE` for all of them.

    Returns:
        a function from outputs (..., A) to actions (..., A), which can be pickled.

    Raises:
        KeyError: a name is not known.
        ValueError: `CHOICE` is not there for all actions.
    """
    if CHOICE in names:
        if set(names) != {CHOICE}:
            raise ValueError(f"{', '.join(names)}: a choice stands for all outputs")
        return _choose
    return partial(_each, [SQUASHINGS[name] for name in names])


def _choose(outputs: Tensor) -> Tensor:
    return F.one_hot(outputs.argmax(dim=-1), outputs.shape[-1]).to(outputs.dtype)


def _each(functions: Sequence[Squashing], outputs: Tensor) -> Tensor:
    return torch.stack([f(outputs[..., i]) for i, f in enumerate(functions)], dim=-1)


@dataclass(frozen=True)
class ControllerSpec:
    """The layers of a controller, from features to actions.

    Args:
        squash: for each action the name of a squashing in `SQUASHINGS`, or for each `CHOICE`.
        hidden_units: of one layer with tanh; 0 is none, a linear controller.
        bias: each output has one (not in the paper's code for Doom).
    """

    squash: tuple[str, ...]
    hidden_units: int = 0
    bias: bool = True

    def layers(self, features: int) -> list[tuple[int, int]]:
        """Inputs and outputs of each layer."""
        actions = len(self.squash)
        if self.hidden_units:
            return [(features, self.hidden_units), (self.hidden_units, actions)]
        return [(features, actions)]

    def size(self, features: int) -> int:
        """Parameters of a controller: a weight for each input, and a bias, for each output."""
        return sum((inputs + self.bias) * outputs for inputs, outputs in self.layers(features))


class Controllers:
    """Controllers, one for each environment, each layer computed as one batched product.

    Args:
        parameters: (N, parameters) float32; layer by layer weights (input, output), then biases.
        feature_size: F of the world.
        spec: their layers and squashings.

    Raises:
        ValueError: the parameters do not fit the features and the spec.
    """

    def __init__(self, parameters: Tensor, feature_size: int, spec: ControllerSpec) -> None:
        if parameters.shape[-1] != spec.size(feature_size):
            raise ValueError(
                f"a controller of {feature_size} features and {spec} has"
                f" {spec.size(feature_size)} parameters, not {parameters.shape[-1]}"
            )
        self.squash = squashing(spec.squash)
        """From outputs (N, A) to actions (N, A)."""
        self.layers: list[tuple[Tensor, Tensor]] = []
        at = 0
        for inputs, outputs in spec.layers(feature_size):
            weight = parameters[:, at : at + inputs * outputs].reshape(-1, inputs, outputs)
            at += inputs * outputs
            bias = parameters.new_zeros(parameters.shape[0], outputs)
            if spec.bias:
                bias = parameters[:, at : at + outputs]
                at += outputs
            self.layers.append((weight, bias))

    def act(self, features: Tensor) -> Tensor:
        """Actions (N, A) from features (N, F)."""
        return self.squash(self.outputs(features))

    def outputs(self, features: Tensor) -> Tensor:
        """The outputs (N, A) of the last layer, before they are bounded, from features (N, F)."""
        for number, (weight, bias) in enumerate(self.layers):
            if number:
                features = torch.tanh(features)
            features = torch.baddbmm(bias.unsqueeze(1), features.unsqueeze(1), weight).squeeze(1)
        return features

    def influences(self, features: Tensor) -> Tensor:
        """What each feature adds to each output of the last layer: (N, F, A).

        Of a linear controller its weights times the features; with a hidden layer, the gradient at
        `features` times the features.

        Args:
            features: (N, F) float32.
        """
        weight, bias = self.layers[0]
        slope, outputs = weight, torch.baddbmm(bias.unsqueeze(1), features.unsqueeze(1), weight)
        for weight, bias in self.layers[1:]:
            hidden = torch.tanh(outputs)  # (N, 1, hidden units)
            slope = (slope * (1 - hidden**2)) @ weight
            outputs = torch.baddbmm(bias.unsqueeze(1), hidden, weight)
        return slope * features.unsqueeze(2)

    def keep(self, mask: Tensor) -> None:
        """Drop the environments where `mask` (N,) bool is False."""
        self.layers = [(weight[mask], bias[mask]) for weight, bias in self.layers]
