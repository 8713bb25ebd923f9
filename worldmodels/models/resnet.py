"""A residual variational autoencoder: deeper than the paper's, for frames of several sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from worldmodels.models.deep_vae import SCALES, DeepVAE
from worldmodels.models.elbo import KLOptions
from worldmodels.models.encoder import channels_last

CHANNELS = (32, 64, 96, 128)
"""At a half, a quarter, an eighth and a sixteenth of the frame's side."""
MAX_BLOCKS = 16


class _Residual(nn.Module):
    """x + convolution(ReLU(convolution(ReLU(x)))), 3x3 (Espeholt et al. 2018, figure 3).

    The second convolution begins at zero (Zhang et al. 2019), so that any number of blocks trains
    without normalization, which would make a row depend on the others of its batch.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        for parameter in self.second.parameters():
            nn.init.zeros_(parameter)

    def forward(self, maps: Tensor) -> Tensor:
        """Maps (B, channels, height, width) to the same shape."""
        changed: Tensor = self.second(torch.relu(self.first(torch.relu(maps))))
        return maps + changed


@dataclass
class ResNetVAEOptions(KLOptions):
    """The options of a `ResNetVAE`; its arguments are described there."""

    blocks: int = 1


class ResNetVAE(DeepVAE):
    """Four halvings of the side with residual blocks behind the last three, and their mirror image.

    Args:
        latent_size: dimensions of z.
        frame_size: side of the square frames, a multiple of 16 pixels.
        blocks: residual blocks of two convolutions at each of three scales, in encoder and decoder.
        kl: options of the KL term, see `KLOptions`.

    Raises:
        ValueError: another frame size or number of blocks.
    """

    Options: ClassVar[type] = ResNetVAEOptions
    FORMAT: ClassVar[int] = 1

    def __init__(self, latent_size: int, frame_size: int, blocks: int = 1, **kl: float) -> None:
        super().__init__(latent_size, frame_size, 1, **kl)
        if not 1 <= blocks <= MAX_BLOCKS:
            raise ValueError(f"blocks={blocks} is not possible; choose 1 to {MAX_BLOCKS}")
        self.blocks = blocks
        side = frame_size // 2**SCALES
        units = CHANNELS[-1] * side * side
        down: list[nn.Module] = [nn.Conv2d(3, CHANNELS[0], 4, stride=2, padding=1)]
        up: list[nn.Module] = []
        for few, many in pairwise(CHANNELS):
            down += [nn.ReLU(), nn.Conv2d(few, many, 4, stride=2, padding=1)]
            down += [_Residual(many) for _ in range(blocks)]
        for many, few in pairwise(CHANNELS[::-1]):
            up += [_Residual(many) for _ in range(blocks)]
            up += [nn.ReLU(), nn.ConvTranspose2d(many, few, 4, stride=2, padding=1)]
        self.encoder = nn.Sequential(*down, nn.ReLU(), nn.Flatten())
        self.posterior = nn.Linear(units, 2 * latent_size)
        self.expand = nn.Linear(latent_size, units)
        self.decoder = nn.Sequential(
            nn.Unflatten(1, (CHANNELS[-1], side, side)),
            *up,
            nn.ReLU(),
            nn.ConvTranspose2d(CHANNELS[0], 3, 4, stride=2, padding=1),
            nn.Sigmoid(),
        )
        channels_last(self)

    @property
    def sizes(self) -> Mapping[str, Any]:
        """The arguments that build an equal module."""
        names = ("latent_size", "frame_size", "blocks")
        return {name: getattr(self, name) for name in names} | asdict(self.kl)
