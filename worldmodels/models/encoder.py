"""The interface of an encoder: frames, or clips, to a posterior over latents, latents to frames."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

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

    An encoder whose `clip_length` C is above 1 takes clips of C frames, the oldest first: with C
    after the B of every shape of frames and images that go in. Data and worlds cut the clips: a
    frame and those before it in its episode, whose first frame stands for those before it. What
    is decoded is the newest frame.

    Args:
        latent_size: dimensions of z.
        frame_size: side of the square frames, in pixels.
        clip_length: C, the latest frames that a latent depends on.
    """

    latent_size: int
    frame_size: int
    clip_length: int

    def encode(self, images: Tensor) -> Posterior:
        """The posterior of images (B, 3, frame_size, frame_size), floats in [0, 1], or of clips
        (B, C, 3, frame_size, frame_size)."""
        ...

    def decode(self, latents: Tensor) -> Tensor:
        """Images (B, 3, frame_size, frame_size) in [0, 1] from latents (B, Z)."""
        ...

    def loss(self, frames: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The training loss, a scalar, of frames (B, frame_size, frame_size, 3) uint8, or of clips
        (B, C, frame_size, frame_size, 3).

        Returns:
            the loss and what is logged beside it, detached scalars by name, among them
            ``reconstruction`` (of a frame), ``kl`` (nats per frame) and ``active_dims`` (latent
            dimensions that carry information).
        """
        ...

    def for_inference(self) -> Encoder:
        """The same function with fewer parameters where that is possible, else itself."""
        ...


def check_side(frame_size: int, multiple: int) -> None:
    """Raise ValueError, in one line, unless the side of the frames is a multiple of a number."""
    if frame_size < multiple or frame_size % multiple:
        raise ValueError(
            f"takes frames of a multiple of {multiple} pixels, not env.size={frame_size}; choose"
            f" env.size={max(multiple, frame_size // multiple * multiple)}"
        )


def channels_last(module: nn.Module) -> None:
    """Lay the weights of convolutions out in the order that frames arrive in, over which they are
    fastest."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    for parameter in module.parameters():
        if parameter.dim() in formats:
            order = formats[parameter.dim()]
            parameter.data = parameter.data.contiguous(memory_format=order)


def to_input(frames: Tensor) -> Tensor:
    """uint8 frames (..., height, width, 3) to floats in [0, 1] (..., 3, height, width).

    No other function converts frames to floats. The result is in channels-last memory order.
    """
    return frames.movedim(-1, -3).float().div_(255.0)


def to_frames(images: Tensor) -> Tensor:
    """The inverse of `to_input`: (B, 3, height, width) to (B, height, width, 3) uint8."""
    return (images.float() * 255.0).round_().clamp_(0, 255).byte().permute(0, 2, 3, 1)
