"""What all encoders but the paper's have in common: their parts and their loss."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Self

from torch import Tensor, nn

from worldmodels.models.elbo import KLOptions, free_nats_loss
from worldmodels.models.encoder import Posterior, check_side, to_input

SCALES = 4
"""Each halves the side of a frame."""


class DeepVAE(nn.Module):
    """A variational autoencoder for frames whose side is a multiple of 16 pixels.

    A subclass sets `encoder`, images or clips to a row of numbers; `posterior`, these to mean and
    log-variance; `expand`, a latent to a row of numbers; and `decoder`, these to an image.

    Args:
        latent_size: dimensions of z.
        frame_size: side of the square frames.
        clip_length: frames of a clip; 1 for images.
        kl: options of the KL term, see `KLOptions`.

    Raises:
        ValueError: another frame size.
    """

    encoder: nn.Module
    posterior: nn.Module
    expand: nn.Module
    decoder: nn.Module

    def __init__(self, latent_size: int, frame_size: int, clip_length: int, **kl: float) -> None:
        super().__init__()
        check_side(frame_size, 2**SCALES)
        self.latent_size, self.frame_size = latent_size, frame_size
        self.clip_length, self.kl = clip_length, KLOptions(**kl)

    def encode(self, images: Tensor) -> Posterior:
        """The posterior of what `encoder` takes, floats in [0, 1]."""
        mean, logvar = self.posterior(self.encoder(images)).chunk(2, dim=-1)
        return Posterior(mean, logvar)

    def decode(self, latents: Tensor) -> Tensor:
        """Images (B, 3, frame_size, frame_size) in [0, 1] from latents (B, Z)."""
        images: Tensor = self.decoder(self.expand(latents))
        return images

    def for_inference(self) -> Self:
        """Itself: it has no parameters that only training needs."""
        return self

    def loss(self, frames: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of `worldmodels.models.elbo`.

        Args:
            frames: uint8 (B, frame_size, frame_size, 3), or clips (B, C, frame_size, frame_size,
                3), whose newest frames are reconstructed.
        """
        images = to_input(frames)
        newest = images if self.clip_length == 1 else images[:, -1]
        return free_nats_loss(self.encode(images), self.decode, newest, self.kl)


def transposed(channels: Sequence[int]) -> list[nn.Module]:
    """The layers of a decoder that double the side, from the last of `channels` to the first."""
    layers: list[nn.Module] = []
    for many, few in pairwise(channels[::-1]):
        layers += [nn.ConvTranspose2d(many, few, 4, stride=2, padding=1), nn.ReLU()]
    return layers


def to_image(channels: Sequence[int], side: int, layers: Sequence[nn.Module]) -> nn.Sequential:
    """A decoder from rows (B, channels[-1] * side * side) to images (B, 3, S, S) in [0, 1].

    Args:
        channels: of the maps of S / 2, S / 4, ... pixels a side.
        side: of the smallest maps, in pixels.
        layers: from the smallest maps to those of S / 2 pixels a side.
    """
    return nn.Sequential(
        nn.Unflatten(1, (channels[-1], side, side)),
        nn.ReLU(),
        *layers,
        nn.ConvTranspose2d(channels[0], 3, 4, stride=2, padding=1),
        nn.Sigmoid(),
    )
