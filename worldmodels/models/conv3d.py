"""A variational autoencoder whose encoder convolves a short clip of frames over space and time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, ClassVar

from torch import Tensor, nn

from worldmodels.models.deep_vae import SCALES, DeepVAE, to_image, transposed
from worldmodels.models.elbo import KLOptions
from worldmodels.models.encoder import Posterior, channels_last

CHANNELS = (32, 64, 128, 256)
"""At a half, a quarter, an eighth and a sixteenth of the frame's side."""
MAX_FRAMES = 64


@dataclass
class Conv3dVAEOptions(KLOptions):
    """The options of a `Conv3dVAE`; its arguments are described there."""

    frames: int = 4


class Conv3dVAE(DeepVAE):
    """Four convolutions over a clip of C frames, four transposed ones to its newest frame.

    Each halves the side, and the number of frames as long as there are several (Tran et al. 2015
    convolve over time in all layers as well).

    Args:
        latent_size: dimensions of z.
        frame_size: side of the square frames, a multiple of 16 pixels.
        frames: of a clip, C.
        kl: options of the KL term, see `KLOptions`.

    Raises:
        ValueError: another frame size or number of frames.
    """

    Options: ClassVar[type] = Conv3dVAEOptions
    FORMAT: ClassVar[int] = 1

    def __init__(self, latent_size: int, frame_size: int, frames: int = 4, **kl: float) -> None:
        super().__init__(latent_size, frame_size, frames, **kl)
        if not 2 <= frames <= MAX_FRAMES:
            raise ValueError(f"frames={frames} is not possible; choose 2 to {MAX_FRAMES}")
        side = frame_size // 2**SCALES
        down: list[nn.Module] = []
        for few, many in pairwise((3, *CHANNELS)):
            span = 3 if frames > 1 else 1  # a convolution of one frame over time is of zeros
            down += [
                nn.Conv3d(few, many, (span, 4, 4), (min(span, 2), 2, 2), (span // 2, 1, 1)),
                nn.ReLU(),
            ]
            frames = -(-frames // 2)
        up = transposed(CHANNELS)
        self.encoder = nn.Sequential(*down, nn.Flatten())
        self.posterior = nn.Linear(CHANNELS[-1] * frames * side * side, 2 * latent_size)
        self.expand = nn.Linear(latent_size, CHANNELS[-1] * side * side)
        self.decoder = to_image(CHANNELS, side, up)
        channels_last(self)

    @property
    def sizes(self) -> Mapping[str, Any]:
        """The arguments that build an equal module."""
        return {
            "latent_size": self.latent_size,
            "frame_size": self.frame_size,
            "frames": self.clip_length,
            **asdict(self.kl),
        }

    def encode(self, images: Tensor) -> Posterior:
        """The posterior of clips (B, C, 3, frame_size, frame_size) in [0, 1], oldest first."""
        return super().encode(images.transpose(1, 2))  # (B, 3, C, side, side), channels last
