"""A small variational autoencoder for frames of any multiple of 8 pixels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from worldmodels.models.encoder import Posterior, check_side, to_input


@dataclass
class SmallVAEOptions:
    """The options of a `SmallVAE`; see there."""

    channels: int = 16


class SmallVAE(nn.Module):
    """Three strided convolutions and three transposed ones.

    Args:
        latent_size: dimensions of z.
        frame_size: side of the square frames, a multiple of 8.
        channels: of the first convolution; each halves the side and doubles the channels.

    Raises:
        ValueError: another frame size.
    """

    Options: ClassVar[type] = SmallVAEOptions
    FORMAT: ClassVar[int] = 1
    clip_length: int = 1

    def __init__(self, latent_size: int, frame_size: int, channels: int = 16) -> None:
        super().__init__()
        check_side(frame_size, 8)
        self.latent_size, self.frame_size, self.channels = latent_size, frame_size, channels
        maps = (4 * channels, frame_size // 8, frame_size // 8)
        units = maps[0] * maps[1] * maps[2]
        self.encoder = nn.Sequential(
            nn.Conv2d(3, channels, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(channels, 2 * channels, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(2 * channels, 4 * channels, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(units, 2 * latent_size),
        )
        self.decoder = nn.Sequential(
            nn.Linear(latent_size, units),
            nn.Unflatten(1, maps),
            nn.ConvTranspose2d(4 * channels, 2 * channels, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(2 * channels, channels, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(channels, 3, 4, stride=2, padding=1),
            nn.Sigmoid(),
        )

    @property
    def sizes(self) -> Mapping[str, Any]:
        """The arguments that build an equal module."""
        return {name: getattr(self, name) for name in ("latent_size", "frame_size", "channels")}

    def encode(self, images: Tensor) -> Posterior:
        """The posterior of images (batch, 3, frame_size, frame_size) in [0, 1]."""
        mean, logvar = self.encoder(images).chunk(2, dim=-1)
        return Posterior(mean, logvar)

    def decode(self, latents: Tensor) -> Tensor:
        """Images (batch, 3, frame_size, frame_size) in [0, 1] from latents (batch, latent)."""
        images: Tensor = self.decoder(latents)
        return images

    def for_inference(self) -> SmallVAE:
        """Itself: it has no parameters that only training needs."""
        return self

    def loss(self, frames: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Squared error summed over a frame plus its KL, of uint8 (batch, side, side, 3)."""
        images = to_input(frames)
        mean, logvar = (part.float() for part in self.encode(images))
        output = self.decode(Posterior(mean, logvar).sample(torch.randn_like(mean)))
        reconstruction = F.mse_loss(output.float(), images, reduction="sum") / len(images)
        kl = 0.5 * (mean.square() + logvar.exp() - 1.0 - logvar)  # (batch, latent)
        logs = {
            "reconstruction": reconstruction.detach(),
            "kl": kl.sum(dim=-1).mean().detach(),
            "active_dims": (kl.mean(dim=0) > 0.01).sum().detach().float(),
        }
        return reconstruction + kl.sum(dim=-1).mean(), logs
