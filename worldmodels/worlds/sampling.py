"""Sampling of latents in the learned model."""

from __future__ import annotations

import torch
from torch import Tensor

from worldmodels.models.dynamics import LatentDistribution
from worldmodels.models.heads import Mixture
from worldmodels.worlds import kernels


def sample(
    latent: LatentDistribution, uniform: Tensor, normal: Tensor, temperature: float
) -> Tensor:
    """`latent.sample`; on a CPU a `Mixture` is sampled by compiled loops, equal to the bit.

    Args:
        latent: the distributions of N environments.
        uniform: in [0, 1), (N, Z) float32.
        normal: standard normal, (N, Z) float32.
        temperature: 1 is the distribution itself; higher is less certain.

    Returns:
        (N, Z) float32.
    """
    if not isinstance(latent, Mixture) or latent.mean.device.type != "cpu":
        return latent.sample(uniform, normal, temperature)
    components = (0,) * latent.mean.shape[-1]
    weights = latent.logits / temperature
    kernels.subtract_largest(weights.numpy(), components)
    weights.exp_()
    chosen = torch.empty(2, *normal.shape)
    kernels.choose(
        weights.numpy(),
        uniform.numpy(),
        latent.mean.numpy(),
        latent.log_std.numpy(),
        chosen.numpy(),
        components,
    )
    return chosen[1].exp_().mul_(temperature**0.5).mul_(normal).add_(chosen[0])
