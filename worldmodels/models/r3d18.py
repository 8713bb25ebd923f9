"""A variational autoencoder whose encoder is R3D-18 of torchvision: a residual network of clips."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from worldmodels.models.elbo import KLOptions
from worldmodels.models.video import VideoVAE, check_clips

CHANNELS = 512
"""Of the last maps."""
STRIDE = 16
"""Pixels of a picture for one of the last maps."""
_PARTS = ("stem", "layer1", "layer2", "layer3", "layer4")


class _StoredNorm(nn.Module):
    """Batch normalisation by the stored mean and variance, never by those of the batch.

    A clip's latent and loss then depend on no other clip of its batch, and the stored statistics
    stay those of the published weights, whatever is trained. Weight and bias are trained unless the
    network is frozen. The tensors have the names of those of `torch.nn.BatchNorm3d`.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, maps: Tensor) -> Tensor:
        """Maps (B, channels, time, height, width) to the same shape."""
        return F.batch_norm(
            maps, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
        )


@dataclass
class R3D18VAEOptions(KLOptions):
    """The options of an `R3D18VAE`; its arguments are described there."""

    frames: int = 16
    input_size: int = 112
    frozen: bool = False


class R3D18VAE(VideoVAE):
    """R3D-18 (Tran et al. 2018) of torchvision, without its classification layer.

    The batch normalisations use their stored means and variances in training as well. Without
    published weights they change nothing at first, and each residual block begins at zero (Zhang et
    al. 2019), so that the network trains without normalisation.

    Args:
        latent_size: dimensions of z.
        frame_size: side of the square frames, a multiple of 16 pixels.
        frames: of a clip, C. The published weights were trained on 16.
        input_size: side of the pictures that the network takes, a multiple of 16 pixels.
        frozen: keep the network's weights as they are; head and decoder are trained.
        kl: options of the KL term, see `KLOptions`.

    Raises:
        ValueError: another frame size, input size or number of frames.
        ImportError: torchvision is not installed.
    """

    Options: ClassVar[type] = R3D18VAEOptions
    FORMAT: ClassVar[int] = 1
    # Kinetics-400, torchvision.models.video.R3D_18_Weights.
    MEAN = (0.43216, 0.394666, 0.37645)
    STD = (0.22803, 0.22145, 0.216989)

    def __init__(
        self,
        latent_size: int,
        frame_size: int,
        frames: int = 16,
        input_size: int = 112,
        frozen: bool = False,
        **kl: float,
    ) -> None:
        check_clips(frames, input_size, STRIDE)
        side = input_size // STRIDE
        width = CHANNELS * side * side
        super().__init__(
            _network(), width, latent_size, frame_size, frames, input_size, frozen, **kl
        )

    @classmethod
    def published_name(cls, name: str) -> str | None:
        """See `VideoVAE.published_name`: of torchvision's ``r3d_18``."""
        return None if name.startswith("fc.") or name.endswith("num_batches_tracked") else name

    def features(self, clips: Tensor) -> Tensor:
        """The last maps, averaged over time, of clips (B, C, 3, side, side): (B, width)."""
        maps: Tensor = self.network(clips.transpose(1, 2))  # (B, 512, time, side / 16, side / 16)
        return maps.mean(dim=2).flatten(1)


def _network() -> nn.Module:
    """R3D-18 up to its last maps, with random weights."""
    from torchvision.models.video import r3d_18

    whole = r3d_18(weights=None)
    for layer in _PARTS[1:]:
        for block in getattr(whole, layer):
            nn.init.zeros_(block.conv2[1].weight)
    network = nn.Sequential(OrderedDict((name, getattr(whole, name)) for name in _PARTS))
    _store_norms(network)
    return network


def _store_norms(module: nn.Module) -> None:
    """Replace each batch normalisation by one of stored means and variances."""
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm3d):
            stored = _StoredNorm(child.num_features, child.eps)
            stored.weight = child.weight
            setattr(module, name, stored)
        else:
            _store_norms(child)
