"""The interface of an encoder: frames to a posterior over latents, latents to frames."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from worldmodels.models.module import Module


class Posterior(NamedTuple):
    """q(z | frame), a diagonal Gaussian; both of shape (batch, latent)."""

    mean: Tensor
    logvar: Tensor

    def sample(self, noise: Tensor) -> Tensor:
        """z = mean + std * noise, for standard normal `noise` (batch, latent)."""
        return self.mean + torch.exp(0.5 * self.logvar) * noise


class Encoder(Module, Protocol):
    """What the pipeline asks of an encoder, a `torch.nn.Module`.

    Everything else about it is its own: nothing outside its file knows its layers. It is built as
    ``Class(latent_size=..., frame_size=..., **options)``; its options are the fields of the
    dataclass `Options` (`worldmodels.registry`). It raises ValueError for a frame size that
    it does not take, with one line that names the sizes that it takes; frames have 8 to 512 pixels
    a side (``env.size``).

    Args:
        latent_size: dimensions of z.
        frame_size: side of the square frames, in pixels.
    """

    latent_size: int
    frame_size: int

    def encode(self, images: Tensor) -> Posterior:
        """The posterior of images (batch, 3, frame_size, frame_size), floats in [0, 1]."""
        ...

    def decode(self, latents: Tensor) -> Tensor:
        """Images (batch, 3, frame_size, frame_size) in [0, 1] from latents (batch, latent)."""
        ...

    def loss(self, frames: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The training loss, a scalar, of uint8 frames (batch, frame_size, frame_size, 3).

        Returns:
            the loss and what is logged beside it: detached scalars by name.
        """
        ...

    def for_inference(self) -> Encoder:
        """The same function with fewer parameters where that is possible, else itself."""
        ...


def to_input(frames: Tensor) -> Tensor:
    """uint8 frames (batch, height, width, 3) to floats in [0, 1] (batch, 3, height, width).

    The one place where frames stop being bytes; the result is in channels-last memory order.
    """
    return frames.permute(0, 3, 1, 2).float().div_(255.0)


def to_frames(images: Tensor) -> Tensor:
    """The inverse of `to_input`: (batch, 3, height, width) to uint8 (batch, height, width, 3)."""
    return (images.float() * 255.0).round_().clamp_(0, 255).byte().permute(0, 2, 3, 1)
