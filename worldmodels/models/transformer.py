"""The mixture density network on a causal transformer with a bounded context."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from worldmodels.models.dynamics import State
from worldmodels.models.heads import MixtureDynamics, MixtureHead, MixtureOptions, Objective

MAX_LAYERS, MAX_CONTEXT = 64, 4096
"""Bounds of a model, and of one that a file describes: its tensors do not tell the context."""
_BLOCK = 32
"""Least number of steps of a window that attend together; fewer are slower."""
_ROTARY_BASE = 10_000.0


@dataclass
class TransformerOptions(MixtureOptions):
    """The options of a `TransformerDynamics`; its arguments are described there."""

    layers: int = 2
    heads: int = 4
    context: int = 64


class TransformerDynamics(MixtureDynamics):
    """Causal transformer over (z, a) pairs with a mixture density, a reward and a termination head.

    A step attends to the steps before it in its episode. `context` bounds them exactly: layer
    after layer looks further back, so the layers share ``context - 1`` steps, each attending to its
    own share of them. The keys and values of these steps are the model's memory; one more step
    costs the same however long the episode is. Positions are relative (rotary embedding, Su et al.
    2021), layers are normalised before attention and MLP.

    Its state: h, the output of the last layer (B, H) float32; the number of steps of the episode,
    (B,) int64; and for each layer the keys and values (B, 2, heads, steps, H / heads) that it still
    attends to.

    Args:
        latent_size: dimensions of z.
        action_size: dimensions of an action.
        hidden_size: of a layer; a multiple of twice the heads.
        layers: number of layers.
        heads: of the attention in each layer.
        context: (z, a) pairs that a prediction depends on, at most, the latest included.
        mixtures: Gaussians for each latent dimension.
        shared_mixture: the dimensions share one mixture, see `Mixture`.
        sampled: it is trained on draws of z from the posterior, not its means.
        is_first: a further input is 1 in the first step of an episode.
        reward_weight: of the squared reward error in the loss; at 0 rewards are not predicted.
        termination_weight: of the termination's cross entropy in the loss.
        termination_pos_weight: of a step that terminates an episode, within that cross entropy.

    Raises:
        ValueError: sizes that do not fit one another.
    """

    Options: ClassVar[type] = TransformerOptions
    FORMAT: ClassVar[int] = 1
    mixed_precision: ClassVar[bool] = True

    def __init__(
        self,
        latent_size: int,
        action_size: int,
        hidden_size: int = 256,
        layers: int = 2,
        heads: int = 4,
        context: int = 64,
        mixtures: int = 5,
        *,
        shared_mixture: bool = False,
        sampled: bool = True,
        is_first: bool = False,
        reward_weight: float = 0.1,
        termination_weight: float = 1.0,
        termination_pos_weight: float = 1.0,
    ) -> None:
        super().__init__(latent_size, action_size, hidden_size, sampled, is_first)
        if not 1 <= layers <= MAX_LAYERS:
            raise ValueError(f"layers={layers} is not possible; choose 1 to {MAX_LAYERS}")
        if not 1 <= context <= MAX_CONTEXT:
            raise ValueError(f"context={context} is not possible; choose 1 to {MAX_CONTEXT}")
        if heads < 1 or hidden_size < 1 or hidden_size % (2 * heads):
            raise ValueError(
                f"hidden_size={hidden_size} is not a multiple of twice the heads={heads}; choose"
                " another hidden_size or number of heads"
            )
        self.layers, self.heads, self.context = layers, heads, context
        self.embedding = nn.Linear(self.input_size, hidden_size)
        self.blocks = nn.ModuleList(_Block(hidden_size, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden_size)
        self.head = MixtureHead(hidden_size, latent_size, mixtures, shared_mixture)
        self.objective = Objective(reward_weight, termination_weight, termination_pos_weight)

    @property
    def sizes(self) -> Mapping[str, Any]:
        """The arguments that build an equal module."""
        own = {name: getattr(self, name) for name in ("layers", "heads", "context")}
        return {**super().sizes, **own}

    def initial_state(self, num_envs: int, device: torch.device | None = None) -> State:
        """The state at the start of every episode: zeros, and no step that is attended to."""
        hidden = torch.zeros(num_envs, self.hidden_size, device=device)
        time = torch.zeros(num_envs, dtype=torch.int64, device=device)
        size, dtype = self.hidden_size // self.heads, self.embedding.weight.dtype
        # The shares of the layers in the steps before the latest: their sum is context - 1.
        pasts = ((self.context - 1 + number) // self.layers for number in range(self.layers))
        caches = (
            torch.zeros(num_envs, 2, self.heads, past, size, dtype=dtype, device=device)
            for past in pasts
        )
        return hidden, time, *caches

    def hidden_states(self, latents: Tensor, actions: Tensor, state: State) -> tuple[Tensor, State]:
        """See `MixtureDynamics.hidden_states`."""
        _, time, *caches = state
        dtype, steps = self.embedding.weight.dtype, latents.shape[1]
        inputs = self._inputs(latents, actions, time.unsqueeze(1))
        # The residual stream has the type of the weights, also under autocast.
        x = self.embedding(inputs.to(dtype)).to(dtype)  # (B, T, H)
        rotation = _Rotation.of(time, steps, self.hidden_size // self.heads)
        after = []
        for block, cache in zip(self.blocks, caches, strict=True):
            x, cache = block(x, cache, rotation, time)
            after.append(cache)
        hidden = self.norm(x).float()
        return hidden, (hidden[:, -1], time + steps, *after)

    def advance(self, latents: Tensor, actions: Tensor, state: State) -> State:
        """See `MixtureDynamics.advance`."""
        return self.hidden_states(latents.unsqueeze(1), actions.unsqueeze(1), state)[1]


class _Rotation(NamedTuple):
    """Cosine and sine of the rotary embedding, (B, 1, T, D / 2) float32."""

    cos: Tensor
    sin: Tensor

    @classmethod
    def of(cls, time: Tensor, steps: int, size: int) -> _Rotation:
        """Of `steps` steps from step `time` (B,) of their episodes on, for heads of `size` D."""
        position = time.unsqueeze(1) + torch.arange(steps, device=time.device)  # (B, T)
        exponent = torch.arange(0, size, 2, device=time.device) / size
        angle = (position.unsqueeze(-1) * _ROTARY_BASE**-exponent).unsqueeze(1)
        return cls(angle.cos(), angle.sin())

    def of_pairs(self, x: Tensor) -> Tensor:
        """`x` (B, heads, T, D), with the pairs (i, i + D / 2) of its last dimension rotated."""
        one, other = x.chunk(2, dim=-1)
        rotated = (one * self.cos - other * self.sin, other * self.cos + one * self.sin)
        return torch.cat(rotated, dim=-1).to(x.dtype)


class _Block(nn.Module):
    """A layer: attention and MLP, each added to its input.

    Args:
        size: H.
        heads: of the attention.
    """

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(size)
        self.projections = nn.Linear(size, 3 * size)
        self.output = nn.Linear(size, size)
        self.mlp = nn.Sequential(
            nn.LayerNorm(size), nn.Linear(size, 4 * size), nn.GELU(), nn.Linear(4 * size, size)
        )

    def forward(
        self, x: Tensor, cache: Tensor, rotation: _Rotation, time: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The output (B, T, H) for `x` (B, T, H), and the cache after these T steps.

        Args:
            x: output of the layer before.
            cache: keys and values of the steps before that it attends to,
                (B, 2, heads, past, D).
            rotation: of these steps.
            time: steps of the episode before these, (B,).
        """
        steps = x.shape[1]
        projected = self.projections(self.norm(x)).unflatten(-1, (3, self.heads, -1))
        query, key, value = projected.permute(2, 0, 3, 1, 4)  # (B, heads, T, D) each
        now = torch.stack([rotation.of_pairs(key), value], dim=1)
        memory = torch.cat([cache, now.to(cache.dtype)], dim=3)  # (B, 2, heads, past + T, D)
        attended = _attention(rotation.of_pairs(query), memory, time)
        x = x + self.output(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(x), memory[:, :, :, steps:]


def _attention(query: Tensor, memory: Tensor, time: Tensor) -> Tensor:
    """Attention of each step to itself and to the steps before it that `memory` reaches back to.

    The steps are cut into blocks, each with the keys that it can attend to, so that the cost is
    proportional to the number of steps.

    Args:
        query: (B, heads, T, D).
        memory: keys and values of the `past` steps before and of the T steps,
            (B, 2, heads, past + T, D).
        time: steps of the episode before these, (B,); what is in `memory` from before is ignored.

    Returns:
        (B, heads, T, D).
    """
    rows, _, steps, _ = query.shape
    past = memory.shape[3] - steps
    block = min(steps, max(past, _BLOCK))
    blocks = -(-steps // block)
    if missing := blocks * block - steps:  # F.pad by nothing would copy
        query, memory = (F.pad(tensor, (0, 0, 0, missing)) for tensor in (query, memory))
    query = query.unflatten(2, (blocks, block)).transpose(1, 2).flatten(0, 1)
    memory = memory.unfold(3, past + block, block)
    key, value = memory.permute(1, 0, 3, 2, 5, 4).flatten(1, 2)  # (B * blocks, heads, slots, D)
    step, slot = (torch.arange(size, device=time.device) for size in (block, past + block))
    distance = step.unsqueeze(1) + past - slot  # (block, slots)
    begin = torch.arange(0, blocks * block, block, device=time.device)
    lived = begin.unsqueeze(1) + slot >= past - time.view(-1, 1, 1)  # (B, blocks, slots)
    mask = ((distance >= 0) & (distance <= past)) & lived.unsqueeze(2)
    mask = mask.flatten(0, 1).unsqueeze(1)  # (B * blocks, 1, block, slots)
    attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    joined: Tensor = attended.unflatten(0, (rows, blocks)).transpose(1, 2).flatten(2, 3)
    return joined[:, :, :steps]
