"""The loss of the encoders: reconstruction and KL of a variational autoencoder, with free nats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from worldmodels.models.encoder import Posterior


@dataclass
class KLOptions:
    """The options of an encoder's KL term.

    Args:
        kl_tolerance: free nats per latent dimension; the KL term of a frame, summed over
            dimensions, costs nothing below ``kl_tolerance * latent_size`` (the paper's code).
        kl_weight: of the KL term.
    """

    kl_tolerance: float = 0.5
    kl_weight: float = 1.0


def free_nats_loss(
    posterior: Posterior, decode: Callable[[Tensor], Tensor], images: Tensor, options: KLOptions
) -> tuple[Tensor, dict[str, Tensor]]:
    """Squared error summed over a frame, plus its KL where that exceeds the free nats.

    The squared error is the negative log-likelihood of normal pixels with a variance of one half,
    far more than the error of a good reconstruction: few dimensions are then worth their KL. A
    weight below one (Higgins et al. 2017) is that of pixels with a smaller variance.

    Args:
        posterior: of B frames, of any type.
        decode: latents (B, Z) to images.
        images: what is reconstructed, (B, 3, height, width) in [0, 1].
        options: of the KL term.

    Returns:
        the loss, a scalar in nats up to a constant, and logs: ``reconstruction``, ``kl`` (before
        the tolerance) and ``active_dims``: how many latent dimensions carry more than 0.01 nats
        (Burda et al. 2016 count units by the variance of their mean; the KL is already computed and
        shows the same).
    """
    mean, logvar = posterior.mean.float(), posterior.logvar.float()
    posterior = Posterior(mean, logvar)
    output = decode(posterior.sample(torch.randn_like(mean)))
    reconstruction = F.mse_loss(output.float(), images, reduction="sum") / len(images)
    kl = kl_to_prior(posterior)  # (B, Z)
    total = kl.sum(dim=-1)
    floor = options.kl_tolerance * mean.shape[-1]
    loss = reconstruction + options.kl_weight * total.clamp(min=floor).mean()
    logs = {
        "reconstruction": reconstruction.detach(),
        "kl": total.mean().detach(),
        "active_dims": (kl.mean(dim=0) > 0.01).sum().detach().float(),
    }
    return loss, logs


def kl_to_prior(posterior: Posterior) -> Tensor:
    """KL(q(z | frame) || N(0, 1)) in nats for each dimension: (B, Z)."""
    mean, logvar = posterior
    return 0.5 * (mean.square() + logvar.exp() - 1.0 - logvar)
