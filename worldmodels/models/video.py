"""What the encoders built on published video networks have in common: `R3D18VAE` and
`TimesformerVAE`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from worldmodels.models.conv3d import CHANNELS, MAX_FRAMES
from worldmodels.models.deep_vae import SCALES, DeepVAE, to_image, transposed
from worldmodels.models.encoder import Posterior, channels_last

INPUT_SIZES = range(16, 513)
"""Sides that a network may take, in pixels."""


class VideoVAE(DeepVAE):
    """A variational autoencoder whose encoder is a network for videos that has published weights.

    Frames are resized to the side that the network takes and normalised as those it was trained on.
    A linear layer maps the network's features, those of each place in the picture averaged over
    time, to the posterior. The decoder is that of `Conv3dVAE`: it draws the newest frame.

    A subclass sets `MEAN` and `STD`, overrides `features` and `published_name`, and checks its
    sizes by `check_clips` before it builds the network.

    Args:
        network: the layers that weights are published for, with the published names.
        width: numbers that `features` returns for a clip.
        latent_size: dimensions of z.
        frame_size: side of the square frames, a multiple of 16 pixels.
        frames: of a clip, C.
        input_size: side of the pictures that the network takes, in pixels.
        frozen: keep the network's weights as they are; head and decoder are trained.
        kl: options of the KL term, see `KLOptions`.

    Raises:
        ValueError: another frame size.
    """

    MEAN: ClassVar[tuple[float, float, float]]
    STD: ClassVar[tuple[float, float, float]]
    """Of the channels of the pictures that the published weights were trained on, in [0, 1]."""
    picture_mean: Tensor
    picture_std: Tensor

    def __init__(
        self,
        network: nn.Module,
        width: int,
        latent_size: int,
        frame_size: int,
        frames: int,
        input_size: int,
        frozen: bool,
        **kl: float,
    ) -> None:
        super().__init__(latent_size, frame_size, frames, **kl)
        self.input_size, self.frozen = input_size, frozen
        self.network = network.requires_grad_(not frozen)
        # Buffers move to the device of the module. As constants of the class they are in no file:
        # on the CPU, for a module that is read from a file is built on the meta device.
        for name, values in (("picture_mean", self.MEAN), ("picture_std", self.STD)):
            constant = torch.tensor(values, device="cpu").view(3, 1, 1)
            self.register_buffer(name, constant, persistent=False)
        side = frame_size // 2**SCALES
        self.posterior = nn.Linear(width, 2 * latent_size)
        self.expand = nn.Linear(latent_size, CHANNELS[-1] * side * side)
        self.decoder = to_image(CHANNELS, side, transposed(CHANNELS))
        channels_last(self)

    @property
    def sizes(self) -> Mapping[str, Any]:
        """The arguments that build an equal module."""
        names = ("latent_size", "frame_size", "input_size", "frozen")
        chosen = {name: getattr(self, name) for name in names}
        return {**chosen, "frames": self.clip_length, **asdict(self.kl)}

    @classmethod
    def published_name(cls, name: str) -> str | None:
        """The name in `network` of the tensor `name` of a published file; None if it is not used,
        as those of a classification layer."""
        raise NotImplementedError

    def features(self, clips: Tensor) -> Tensor:
        """The network's features (B, width) of clips (B, C, 3, input_size, input_size), normalised
        by `MEAN` and `STD`, oldest frame first."""
        raise NotImplementedError

    def encode(self, images: Tensor) -> Posterior:
        """The posterior of clips (B, C, 3, frame_size, frame_size) in [0, 1], oldest first."""
        pictures = images.flatten(0, 1)  # (B * C, 3, frame_size, frame_size)
        if self.input_size != self.frame_size:
            size = (self.input_size, self.input_size)
            # Without antialiasing, as the pictures that the published weights were trained on.
            pictures = F.interpolate(pictures, size=size, mode="bilinear", align_corners=False)
        pictures = (pictures - self.picture_mean) / self.picture_std
        clips = pictures.unflatten(0, (-1, self.clip_length))
        mean, logvar = self.posterior(self.features(clips)).chunk(2, dim=-1)
        return Posterior(mean, logvar)


def check_clips(frames: int, input_size: int, multiple: int) -> None:
    """Check the clips that a network is to take.

    Args:
        frames: of a clip.
        input_size: side of the pictures, in pixels.
        multiple: a number of pixels, of which the side has to be a multiple.

    Raises:
        ValueError: there is no network for such clips; one line with the sizes to choose from.
    """
    if not 2 <= frames <= MAX_FRAMES:
        raise ValueError(f"frames={frames} is not possible; choose 2 to {MAX_FRAMES}")
    if input_size not in INPUT_SIZES or input_size % multiple:
        least = -(-INPUT_SIZES[0] // multiple) * multiple
        raise ValueError(
            f"input_size={input_size} is not possible; choose a multiple of {multiple} from"
            f" {least} to {INPUT_SIZES[-1]}"
        )
