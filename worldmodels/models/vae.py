"""The convolutional variational autoencoder, the paper's encoder (appendix A.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from worldmodels.models.elbo import KLOptions, free_nats_loss
from worldmodels.models.encoder import Posterior, channels_last, to_input

FRAME_SIZE = 64


class _PatchConv2d(nn.Conv2d):
    """A convolution that infers in bfloat16 on a CPU as one product of patches and weights.

    oneDNN lays weights out anew at each call, which for many channels and few output pixels costs
    as much as the arithmetic: the encoder takes a third of the time for one frame and 70 % for 16,
    to the same bits. In float32 it would take more.
    """

    def forward(self, images: Tensor) -> Tensor:
        """Images (B, channels, height, width) to (B, outputs, rows, columns)."""
        if torch.is_grad_enabled() or images.device.type != "cpu" or images.dtype != torch.bfloat16:
            return super().forward(images)
        (height, width), (down, across) = self.kernel_size, self.stride
        pixels = images.permute(0, 2, 3, 1)  # (B, height, width, channels), a view
        patches = pixels.unfold(1, height, down).unfold(2, width, across)
        batch, rows, columns = patches.shape[:3]
        # (B, rows, columns, channels, kernel height, kernel width), to the order of the weights
        flat = patches.permute(0, 1, 2, 4, 5, 3).reshape(batch * rows * columns, -1)
        weight = self.weight.permute(0, 2, 3, 1).reshape(self.out_channels, -1)
        maps = F.linear(flat, weight, self.bias)
        return maps.view(batch, rows, columns, -1).permute(0, 3, 1, 2)


class _LateBias(nn.ConvTranspose2d):
    """A transposed convolution whose bias is added to its result in a second step.

    oneDNN's own addition of the bias, and its gradient, take as long on a CPU as the convolution:
    the VAE trains on 672 images/s with it and 771 without (single measurement, two cores).
    """

    def forward(self, maps: Tensor, output_size: list[int] | None = None) -> Tensor:
        """Maps (B, channels, height, width) to (B, outputs, rows, columns)."""
        assert output_size is None
        assert self.bias is not None
        made = F.conv_transpose2d(maps, self.weight, None, self.stride)
        return made.add_(self.bias.to(made.dtype).view(-1, 1, 1))


class ConvVAE(nn.Module):
    """The paper's network: four strided convolutions, four strided transposed ones.

    Args:
        latent_size: dimensions of z (32 for CarRacing, 64 for Doom).
        frame_size: side of the square frames; the layers take 64 pixels and nothing else.
        folded: the decoder's first two products are one, see `for_inference`.
        kl: options of the KL term, see `KLOptions`.

    Raises:
        ValueError: another frame size.
    """

    Options: ClassVar[type] = KLOptions
    FORMAT: ClassVar[int] = 1
    clip_length: int = 1

    def __init__(
        self,
        latent_size: int = 32,
        frame_size: int = FRAME_SIZE,
        folded: bool = False,
        **kl: float,
    ) -> None:
        super().__init__()
        if frame_size != FRAME_SIZE:
            raise ValueError(
                f"takes frames of {FRAME_SIZE} pixels, not env.size={frame_size}; choose"
                f" env.size={FRAME_SIZE}"
            )
        self.latent_size = latent_size
        self.frame_size = frame_size
        self.folded, self.kl = folded, KLOptions(**kl)
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 32, 4, stride=2),  # (B, 32, 31, 31)
            nn.ReLU(inplace=True),
            nn.Conv2d(32, 64, 4, stride=2),  # (B, 64, 14, 14)
            nn.ReLU(inplace=True),
            _PatchConv2d(64, 128, 4, stride=2),  # (B, 128, 6, 6)
            nn.ReLU(inplace=True),
            _PatchConv2d(128, 256, 4, stride=2),  # (B, 256, 2, 2)
            nn.ReLU(inplace=True),
            nn.Flatten(),  # (B, 1024)
        )
        self.posterior = nn.Linear(1024, 2 * latent_size)
        self.expand = nn.Identity() if folded else nn.Linear(latent_size, 1024)
        # The paper's first transposed convolution has a single input pixel: it is this product,
        # and as a product it trains several times faster.
        self.first_map = nn.Linear(latent_size if folded else 1024, 5 * 5 * 128, bias=folded)
        self.first_bias = nn.Parameter(torch.zeros(128))
        self.decoder = nn.Sequential(
            nn.ReLU(inplace=True),
            _LateBias(128, 64, 5, stride=2),  # (B, 64, 13, 13)
            nn.ReLU(inplace=True),
            _LateBias(64, 32, 6, stride=2),  # (B, 32, 30, 30)
            nn.ReLU(inplace=True),
            # A late bias on three channels takes the time that it saves.
            nn.ConvTranspose2d(32, 3, 6, stride=2),  # (B, 3, 64, 64)
            nn.Sigmoid(),
        )
        channels_last(self)

    @property
    def sizes(self) -> Mapping[str, Any]:
        """The arguments that build an equal module."""
        names = ("latent_size", "frame_size", "folded")
        return {name: getattr(self, name) for name in names} | asdict(self.kl)

    def encode(self, images: Tensor) -> Posterior:
        """The posterior of images (B, 3, 64, 64) in [0, 1]."""
        mean, logvar = self.posterior(self.encoder(images)).chunk(2, dim=-1)
        return Posterior(mean, logvar)

    def decode(self, latents: Tensor) -> Tensor:
        """Images (B, 3, 64, 64) in [0, 1] from latents (B, Z)."""
        maps = self.first_map(self.expand(latents)).view(-1, 5, 5, 128) + self.first_bias
        images: Tensor = self.decoder(maps.permute(0, 3, 1, 2))  # (B, 128, 5, 5), channels last
        return images

    @torch.no_grad()
    def for_inference(self) -> ConvVAE:
        """The same network without most of the decoder's 3.6 M parameters.

        No nonlinearity separates the first two matrix products of the decoder; training needs both,
        and here they are multiplied into one.
        """
        if self.folded:
            return self
        assert isinstance(self.expand, nn.Linear)
        weight = self.first_map.weight.double() @ self.expand.weight.double()
        bias = self.first_map.weight.double() @ self.expand.bias.double()
        folded = ConvVAE(**{**self.sizes, "folded": True})
        rest = {k: v for k, v in self.state_dict().items() if not k.startswith("expand.")}
        folded.to(weight.device, self.first_map.weight.dtype)
        folded.load_state_dict(rest | {"first_map.weight": weight, "first_map.bias": bias})
        return folded.train(self.training)

    def loss(self, frames: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of `worldmodels.models.elbo`, of uint8 frames (B, 64, 64, 3)."""
        images = to_input(frames)
        return free_nats_loss(self.encode(images), self.decode, images, self.kl)
