"""The interface of a dynamics model: from latents and actions to the next latent.

The transition is (z_t, a_t) -> z_{t+1}, r_t, terminated_t, where r_t and terminated_t are what the
environment answers to a_t (the timeline is drawn in ``worldmodels/data/shards.py``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from worldmodels.models.module import Module

State = tuple[Tensor, ...]
"""A batched state: tensors whose first dimension is the row. The rest is internal to its model."""


class LatentDistribution(Protocol):
    """p(z_{t+1} | ...), for latents (..., Z)."""

    def sample(self, uniform: Tensor, normal: Tensor, temperature: float | Tensor) -> Tensor:
        """A sample (..., Z), a function of its arguments alone.

        Args:
            uniform: in [0, 1), (..., Z), for discrete choices.
            normal: standard normal, (..., Z).
            temperature: 1 is the distribution itself; higher is less certain. A tensor () where
                the model is traced for another program.
        """
        ...

    def mode(self) -> Tensor:
        """The most probable latent, or an approximation of it: (..., Z)."""
        ...

    def expectation(self) -> Tensor:
        """The mean of the distribution, (..., Z); used for ensembles only."""
        ...


LatentT = TypeVar("LatentT", bound=LatentDistribution, covariant=True)


class Prediction(NamedTuple, Generic[LatentT]):
    """The prediction of one step.

    Args:
        latent: the distribution of z_{t+1}.
        reward: r_t.
        termination: a logit, above 0 where the model predicts that the episode terminates; see
            `unweighted`.
    """

    latent: LatentT
    reward: Tensor  # (...)
    termination: Tensor  # (...), a logit


class Sequences(NamedTuple):
    """A batch of windows of episodes; see ``worldmodels/data/sequences.py``."""

    mean: Tensor  # (B, T + 1, Z)
    logvar: Tensor  # (B, T + 1, Z)
    actions: Tensor  # (B, T, A)
    rewards: Tensor  # (B, T)
    terminated: Tensor  # (B, T)
    mask: Tensor  # (B, T) bool, True where the transition is real
    starts: Tensor  # (B,) bool, True where a new episode begins


class DynamicsModel(Module, Protocol):
    """The interface of a dynamics model, a `torch.nn.Module`.

    It is built as ``Class(latent_size=..., action_size=..., sampled=..., **options)``; its options
    are the fields of the dataclass `Options` (`worldmodels.agents.registry`).

    Args:
        latent_size: dimensions of z.
        action_size: dimensions of an action.
        sampled: it is trained on samples of z from the posterior, not on its means.
        termination_pos_weight: of the steps that terminate an episode, in training.
        mixed_precision: where training computes in bfloat16, `loss` is called under autocast; it
            keeps in float32 what needs it, such as the tails of a density.
    """

    mixed_precision: ClassVar[bool]

    latent_size: int
    action_size: int
    sampled: bool

    @property
    def termination_pos_weight(self) -> float:
        """1 for a loss without such a weight."""
        ...

    @property
    def predicts_reward(self) -> bool:
        """Whether rewards are predicted; if not, each step that does not terminate is worth as
        much (`worldmodels.worlds.members.SamplingRule`)."""
        ...

    @property
    def state_features(self) -> Mapping[str, int]:
        """The parts of a state that can be features of a controller: name -> size."""
        ...

    def initial_state(self, num_envs: int, device: torch.device | None = None) -> State:
        """The state at the start of every episode, in `num_envs` rows on `device`."""
        ...

    def advance(self, latents: Tensor, actions: Tensor, state: State) -> State:
        """The state after z_t (B, Z) and a_t (B, A), from the `state` before them; with a gradient
        where one of them has one (controller.optimizer=actor_critic)."""
        ...

    def predict(self, state: State) -> Prediction[LatentDistribution]:
        """The prediction of the step after `state`, one for each row, in float32."""
        ...

    def predict_reward(self, state: State) -> Tensor:
        """The reward of `predict` alone, (B,); used for ensembles only."""
        ...

    def features(self, state: State, names: Sequence[str]) -> Tensor:
        """Parts of a state, named as in `state_features`: (B, the sum of their sizes)."""
        ...

    def loss(self, batch: Sequences, state: State) -> tuple[Tensor, dict[str, Tensor], State]:
        """The training loss of windows of episodes.

        Args:
            batch: windows; rows with ``starts`` begin an episode, with the initial state.
            state: after the previous window of each row, B rows.

        Returns:
            the loss, a scalar; what is logged beside it, detached scalars by name, among them
            ``nll`` (nats a latent dimension and transition); and the state after the windows, cut
            from the graph.
        """
        ...


def unweighted(model: DynamicsModel, logit: Tensor) -> Tensor:
    """The logit of the probability that the episode terminates.

    A model whose cross entropy gives terminations the weight w predicts odds that are w times too
    large (King and Zeng 2001, "Logistic regression in rare events data", section 4.1).

    Args:
        model: that predicts.
        logit: `Prediction.termination`, (...).

    Returns:
        (...).
    """
    return logit - math.log(_pos_weight(model))


def termination_threshold(model: DynamicsModel) -> float:
    """The probability, of `unweighted` logits, above which the model predicts that the episode
    terminates: there its own logit, whose odds are w times too large, is above 0."""
    return 1 / (1 + _pos_weight(model))


def _pos_weight(model: DynamicsModel) -> float:
    """`DynamicsModel.termination_pos_weight`; 1 for a model of another package that has none."""
    return float(getattr(model, "termination_pos_weight", 1.0))


def select_rows(state: State, index: Tensor | slice) -> State:
    """The rows of a state that `index` (a mask, row numbers or a slice) selects."""
    return tuple(part[index] for part in state)


def reset_rows(model: DynamicsModel, state: State, mask: Tensor) -> State:
    """A state whose rows are the initial ones where `mask` (B,) bool is True."""
    return replace_rows(state, model.initial_state(len(mask), mask.device), mask)


def replace_rows(state: State, other: State, mask: Tensor) -> State:
    """A state whose rows are those of `other` where `mask` (B,) bool is True."""
    return tuple(
        torch.where(mask.view(-1, *[1] * (old.dim() - 1)), new, old)
        for new, old in zip(other, state, strict=True)
    )
