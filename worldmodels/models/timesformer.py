"""A variational autoencoder whose encoder is a TimeSformer: attention over patches of a clip."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from worldmodels.models.elbo import KLOptions
from worldmodels.models.video import VideoVAE, check_clips

MAX_LAYERS = MAX_HEADS = 64
HIDDEN_SIZES = range(1, 4097)
PATCHES = range(4, 65)
MLP = 4
"""The hidden layer of an MLP has so many times the hidden size."""


@dataclass
class TimesformerVAEOptions(KLOptions):
    """The options of a `TimesformerVAE`; its arguments are described there."""

    frames: int = 8
    input_size: int = 224
    patch_size: int = 16
    hidden_size: int = 768
    layers: int = 12
    heads: int = 12
    frozen: bool = False


class TimesformerVAE(VideoVAE):
    """TimeSformer (Bertasius et al. 2021) of transformers, with attention over time, then space.

    The defaults are those of the published weights ``facebook/timesformer-base-finetuned-k400``.
    The posterior is a linear function of the patches' outputs, averaged over time. The output of
    the class token, a summary of the whole picture, is not used.

    Args:
        latent_size: dimensions of z.
        frame_size: side of the square frames, a multiple of 16 pixels.
        frames: of a clip, C.
        input_size: side of the pictures that the network takes, a multiple of the patches'.
        patch_size: side of a patch, in pixels.
        hidden_size: of a layer; a multiple of the heads.
        layers: number of layers.
        heads: of the attention in each layer.
        frozen: keep the network's weights as they are; head and decoder are trained.
        kl: options of the KL term, see `KLOptions`.

    Raises:
        ValueError: sizes that are not possible, or do not fit one another.
        ImportError: transformers is not installed.
    """

    Options: ClassVar[type] = TimesformerVAEOptions
    FORMAT: ClassVar[int] = 1
    # TimeSformer's own preprocessing, preprocessor_config.json of its weights.
    MEAN = (0.45, 0.45, 0.45)
    STD = (0.225, 0.225, 0.225)

    def __init__(
        self,
        latent_size: int,
        frame_size: int,
        frames: int = 8,
        input_size: int = 224,
        patch_size: int = 16,
        hidden_size: int = 768,
        layers: int = 12,
        heads: int = 12,
        frozen: bool = False,
        **kl: float,
    ) -> None:
        _check(patch_size, hidden_size, layers, heads)
        check_clips(frames, input_size, patch_size)
        network = _network(frames, input_size, patch_size, hidden_size, layers, heads)
        width = (input_size // patch_size) ** 2 * hidden_size
        super().__init__(network, width, latent_size, frame_size, frames, input_size, frozen, **kl)
        self.patch_size, self.hidden_size = patch_size, hidden_size
        self.layers, self.heads = layers, heads

    @property
    def sizes(self) -> Mapping[str, Any]:
        """The arguments that build an equal module."""
        names = ("patch_size", "hidden_size", "layers", "heads")
        return {**super().sizes, **{name: getattr(self, name) for name in names}}

    @classmethod
    def published_name(cls, name: str) -> str | None:
        """See `VideoVAE.published_name`: of transformers' models, with their classifier or not."""
        return None if name.startswith("classifier.") else name.removeprefix("timesformer.")

    def features(self, clips: Tensor) -> Tensor:
        """The patches' outputs, averaged over time, of clips (B, C, 3, side, side): (B, width)."""
        tokens: Tensor = self.network(pixel_values=clips).last_hidden_state
        # (B, 1 + patches * C, hidden_size): the class token, then the frames of each patch.
        patches = tokens[:, 1:].unflatten(1, (-1, self.clip_length))
        features: Tensor = patches.mean(dim=2).flatten(1)
        return features


def _check(patch_size: int, hidden_size: int, layers: int, heads: int) -> None:
    """Raise ValueError for sizes that are too large, or do not fit one another."""
    for name, value, possible in (
        ("patch_size", patch_size, PATCHES),
        ("hidden_size", hidden_size, HIDDEN_SIZES),
        ("layers", layers, range(1, MAX_LAYERS + 1)),
        ("heads", heads, range(1, MAX_HEADS + 1)),
    ):
        if value not in possible:
            raise ValueError(
                f"{name}={value} is not possible; choose {possible[0]} to {possible[-1]}"
            )
    if hidden_size % heads:
        raise ValueError(
            f"hidden_size={hidden_size} is not a multiple of heads={heads}; choose"
            f" {max(heads, hidden_size // heads * heads)}"
        )


def _network(
    frames: int, input_size: int, patch_size: int, hidden_size: int, layers: int, heads: int
) -> nn.Module:
    """A TimeSformer with random weights, without its classifier."""
    from transformers import TimesformerConfig, TimesformerModel

    network: nn.Module = TimesformerModel(
        TimesformerConfig(
            image_size=input_size,
            patch_size=patch_size,
            num_frames=frames,
            hidden_size=hidden_size,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=MLP * hidden_size,
        )
    )
    return network
