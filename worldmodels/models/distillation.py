"""Random network distillation of latents (Burda et al. 2018): a measure of how new a latent is.

Shapes are in the letters of docs/shapes.md: N environments, Z latent.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

WIDTH, OUTPUTS = 128, 32
"""Units of a hidden layer, and numbers that are predicted."""
_BOUND = 5.0
"""Standardised latents are clipped to this, as in the paper: far outside the data, differences of
two networks grow without end, and not because a latent is newer."""


class Distillation(nn.Module):
    """A network with random weights that stay as they are, the target, and a predictor of its
    outputs. The predictor is trained on recorded latents, so its error is larger on others.

    Args:
        latent_size: Z.
    """

    mean: Tensor
    std: Tensor
    scale: Tensor

    def __init__(self, latent_size: int) -> None:
        super().__init__()
        self.target = _network(latent_size, WIDTH, OUTPUTS)
        # One layer more than the target, which it can then come close to.
        self.predictor = _network(latent_size, WIDTH, WIDTH, OUTPUTS)
        self.register_buffer("mean", torch.zeros(latent_size))
        self.register_buffer("std", torch.ones(latent_size))
        self.register_buffer("scale", torch.ones(()))

    def errors(self, latents: Tensor) -> Tensor:
        """The squared error of the predictor for latents (N, Z), the mean over outputs: (N,)."""
        inputs = ((latents - self.mean) / self.std).clamp(-_BOUND, _BOUND)
        errors: Tensor = (self.predictor(inputs) - self.target(inputs)).square().mean(dim=1)
        return errors

    def novelty(self, latents: Tensor) -> Tensor:
        """The errors (N,) in units of their mean on the recorded latents, `scale`."""
        return self.errors(latents) / self.scale

    @torch.no_grad()
    def draw(self, generator: torch.Generator) -> None:
        """Draw the weights of both networks, with the variance of He et al. 2015."""
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                layer.weight.normal_(0.0, (2 / layer.in_features) ** 0.5, generator=generator)
                # Without biases, a network of ReLUs is proportional to the length of its input.
                layer.bias.normal_(0.0, 0.1, generator=generator)


def _network(*sizes: int) -> nn.Sequential:
    """Linear layers of these sizes, with ReLU between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
