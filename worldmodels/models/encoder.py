"""The interface of an encoder: frames to a posterior over latents, latents to frames."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from worldmodels.models.module import Module


class Posterior(NamedTuple):
    """q(z | frame), a diagonal Gaussian: mean and natural logarithm of the variance, (B, Z)."""

    mean: Tensor
    logvar: Tensor

    def sample(self, noise: Tensor) -> Tensor:
        """z = mean + std * noise (B, Z), for standard normal `noise` (B, Z)."""
        return self.mean + torch.exp(0.5 * self.logvar) * noise


class Encoder(Module, Protocol):
    """The interface of an encoder, a `torch.nn.Module`.

    Nothing outside the file of an encoder depends on its layers. It is built as
    ``Class(latent_size=..., frame_size=..., **options)``; its options are the fields of the
    dataclass `Options` (`worldmodels.agents.registry`). It raises ValueError for a frame size that
    it does not take, with one line that names the sizes that it takes; frames have 8 to 512 pixels
    a side (``env.size``).

    Args:
        latent_size: dimensions of z.
        frame_size: side of the square frames, in pixels.
    """

    latent_size: int
    frame_size: int

    def encode(self, images: Tensor) -> Posterior:
        """The posterior of images (B, 3, frame_size, frame_size), floats in [0, 1]."""
        ...

    def decode(self, latents: Tensor) -> Tensor:
        """Images (B, 3, frame_size, frame_size) in [0, 1] from latents (B, Z)."""
        ...

    def loss(self, frames: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The training loss, a scalar, of frames (B, frame_size, frame_size, 3) uint8.

        Returns:
            the loss and what is logged beside it, detached scalars by name, among them
            ``reconstruction`` (of a frame), ``kl`` (nats a frame) and ``active_dims`` (latent
            dimensions that carry information).
        """
        ...

    def for_inference(self) -> Encoder:
        """The same function with fewer parameters where that is possible, else itself."""
        ...


def to_input(frames: Tensor) -> Tensor:
    """uint8 frames (B, height, width, 3) to floats in [0, 1] (B, 3, height, width).

    No other function converts frames to floats. The result is in channels-last memory order.
    """
    return frames.permute(0, 3, 1, 2).float().div_(255.0)


def to_frames(images: Tensor) -> Tensor:
    """The inverse of `to_input`: (B, 3, height, width) to (B, height, width, 3) uint8."""
    return (images.float() * 255.0).round_().clamp_(0, 255).byte().permute(0, 2, 3, 1)
