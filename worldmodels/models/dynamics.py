"""The interface of a dynamics model: from latents and actions to the next latent.

The transition is (z_t, a_t) -> z_{t+1}, r_t, terminated_t, where r_t and terminated_t are what the
environment answers to a_t (the timeline is drawn in ``worldmodels/data/shards.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from worldmodels.models.module import Module

State = tuple[Tensor, ...]
"""A batched state: tensors whose first dimension is the row. Only its model knows the rest."""


class LatentDistribution(Protocol):
    """p(z_{t+1} | ...), for latents (..., latent)."""

    def sample(self, uniform: Tensor, normal: Tensor, temperature: float) -> Tensor:
        """A draw (..., latent), a function of its arguments alone.

        Args:
            uniform: in [0, 1), (..., latent), for discrete choices.
            normal: standard normal, (..., latent).
            temperature: 1 is the distribution itself; higher is less certain.
        """
        ...

    def mode(self) -> Tensor:
        """The likeliest latent, or nearly: (..., latent)."""
        ...


LatentT = TypeVar("LatentT", bound=LatentDistribution, covariant=True)


class Prediction(NamedTuple, Generic[LatentT]):
    """What a dynamics model says of the next step."""

    latent: LatentT
    reward: Tensor  # (...)
    termination: Tensor  # (...), a logit


class Sequences(NamedTuple):
    """A batch of windows of episodes; see ``worldmodels/data/sequences.py``."""

    mean: Tensor  # (batch, steps + 1, latent)
    logvar: Tensor  # (batch, steps + 1, latent)
    actions: Tensor  # (batch, steps, action)
    rewards: Tensor  # (batch, steps)
    terminated: Tensor  # (batch, steps)
    mask: Tensor  # (batch, steps) bool, True where the transition is real
    starts: Tensor  # (batch,) bool, True where a new episode begins


class DynamicsModel(Module, Protocol):
    """What the pipeline asks of a dynamics model, a `torch.nn.Module`.

    It is built as ``Class(latent_size=..., action_size=..., sampled=..., **options)``; its options
    are the fields of the dataclass `Options` (`worldmodels.registry`).

    Args:
        latent_size: dimensions of z.
        action_size: dimensions of an action.
        sampled: it is trained on draws of z from the posterior, not on its means.
    """

    latent_size: int
    action_size: int
    sampled: bool

    @property
    def predicts_reward(self) -> bool:
        """Whether rewards are predicted; if not, each step that does not end is worth 1."""
        ...

    @property
    def state_features(self) -> Mapping[str, int]:
        """The parts of a state that a controller can see, with their sizes."""
        ...

    def initial_state(self, num_envs: int, device: torch.device | None = None) -> State:
        """The state with which every episode begins, in `num_envs` rows."""
        ...

    def advance(self, latents: Tensor, actions: Tensor, state: State) -> State:
        """The state after z_t (rows, latent) and a_t (rows, action)."""
        ...

    def predict(self, state: State) -> Prediction[LatentDistribution]:
        """The prediction of the step after `state`, one for each row, in float32."""
        ...

    def features(self, state: State, names: Sequence[str]) -> Tensor:
        """Parts of a state, named as in `state_features`: (rows, the sum of their sizes)."""
        ...

    def loss(self, batch: Sequences, state: State) -> tuple[Tensor, dict[str, Tensor], State]:
        """The training loss of windows of episodes.

        Args:
            batch: windows; rows with ``starts`` begin an episode, with the initial state.
            state: after the previous window of each row.

        Returns:
            the loss, a scalar; what is logged beside it, detached scalars by name, among them
            ``nll`` (nats a latent dimension and transition); and the state after the windows, cut
            from the graph.
        """
        ...


def select_rows(state: State, index: Tensor | slice) -> State:
    """The rows of a state that `index` (a mask, row numbers or a slice) selects."""
    return tuple(part[index] for part in state)


def reset_rows(model: DynamicsModel, state: State, mask: Tensor) -> State:
    """A state whose rows are the initial ones where `mask` (rows,) is True."""
    initial = model.initial_state(len(mask), mask.device)
    return tuple(
        torch.where(mask.view(-1, *[1] * (old.dim() - 1)), new, old)
        for new, old in zip(initial, state, strict=True)
    )
