"""What the dynamics models with a mixture density share: the density, the heads and the loss."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from worldmodels.models.dynamics import Prediction, Sequences, State, reset_rows

MAX_LOG_STD = 7.0
"""Bound on the magnitude of log standard deviations; beyond it the density over- or underflows."""


class Mixture(NamedTuple):
    """Gaussian mixtures of a latent vector whose dimensions are independent within a component.

    Either each dimension has a mixture of its own (the paper's code), or all of them share one,
    whose component is drawn once for the vector. Shapes are in the letters of docs/shapes.md, and G
    is the number of mixtures: Z, or 1 where it is shared.

    Args:
        logits: of the components, not normalised.
        mean: of the components.
        log_std: natural logarithm of their standard deviations.
    """

    logits: Tensor  # (..., G, K)
    mean: Tensor  # (..., Z, K)
    log_std: Tensor  # (..., Z, K)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density (...) in nats of `value` (..., Z), computed in log space throughout."""
        standard = (value.unsqueeze(-1) - self.mean) * torch.exp(-self.log_std)
        component = -0.5 * standard.square() - self.log_std - 0.5 * math.log(2 * math.pi)
        parts = (*self.logits.shape[:-1], -1, self.logits.shape[-1])
        groups = component.reshape(parts).sum(dim=-2)  # (..., G, K)
        weighted = F.log_softmax(self.logits, dim=-1) + groups
        return torch.logsumexp(weighted, dim=-1).sum(dim=-1)

    def sample(self, uniform: Tensor, normal: Tensor, temperature: float | Tensor) -> Tensor:
        """A sample at `temperature`: logits / temperature, standard deviation * sqrt(temperature).

        Args:
            uniform: in [0, 1), (..., Z), chooses the component by the inverse of the cumulative
                distribution; a shared mixture uses the first one.
            normal: standard normal, (..., Z).
            temperature: above 0; 1 is the distribution itself.

        Returns:
            z (..., Z).
        """
        # Component by component: several times as fast as a softmax, a cumulative sum and gathers.
        weights = _weights(self.logits / temperature)
        drawn = uniform[..., : self.logits.shape[-2]] * sum(weights[1:], start=weights[0])
        means, log_stds = self.mean.unbind(dim=-1), self.log_std.unbind(dim=-1)
        mean, log_std, bound = means[0], log_stds[0], weights[0]
        for number in range(1, len(weights)):
            beyond = drawn >= bound  # (..., G)
            mean = torch.where(beyond, means[number], mean)
            log_std = torch.where(beyond, log_stds[number], log_std)
            bound = bound + weights[number]
        return mean + log_std.exp() * temperature**0.5 * normal

    def mode(self) -> Tensor:
        """The mean of the most probable component, in each dimension: (..., Z)."""
        likeliest = self.logits.argmax(dim=-1, keepdim=True)  # (..., G, 1)
        return self.mean.gather(-1, likeliest.expand(*self.mean.shape[:-1], 1)).squeeze(-1)

    def expectation(self) -> Tensor:
        """The mean of the mixture, in each dimension: (..., Z)."""
        weights, means = _weights(self.logits), self.mean.unbind(dim=-1)
        weighted = [weight * mean for weight, mean in zip(weights, means, strict=True)]
        return sum(weighted[1:], start=weighted[0]) / sum(weights[1:], start=weights[0])


def _weights(logits: Tensor) -> tuple[Tensor, ...]:
    """The weights (...) of each component, not normalised; at most 1."""
    return (logits - logits.amax(dim=-1, keepdim=True)).exp().unbind(dim=-1)


class MixtureHead(nn.Linear):
    """One linear layer for the next latent's mixture, the reward and the termination.

    Args:
        hidden_size: of its input, H.
        latent_size: dimensions of z.
        mixtures: Gaussians for each latent dimension; 1 is a single Gaussian.
        shared_mixture: the dimensions share one mixture, see `Mixture`.
    """

    def __init__(
        self, hidden_size: int, latent_size: int, mixtures: int, shared_mixture: bool
    ) -> None:
        groups = 1 if shared_mixture else latent_size
        super().__init__(hidden_size, (groups + 2 * latent_size) * mixtures + 2)
        self.latent_size, self.groups = latent_size, groups
        self.mixtures, self.shared_mixture = mixtures, shared_mixture
        self._spread_means()

    def _spread_means(self) -> None:
        """Start the components apart, over [-1, 1] of latents whose prior is N(0, 1).

        Components that start equal separate slowly. Measured on CarRacing, 40 epochs over 162
        episodes of 300 steps at a learning rate of 1e-3, validation nats per dimension: 0.9143,
        against 0.9167 as PyTorch initialises. At 3e-3: 0.9064, and 0.9076 with one Gaussian.
        """
        with torch.no_grad():
            bias = self.bias[:-2].view(-1, self.mixtures)
            if self.mixtures > 1:
                bias[self.groups : -self.latent_size] = torch.linspace(-1.0, 1.0, self.mixtures)

    def forward(self, hidden: Tensor) -> Prediction[Mixture]:  # type: ignore[override]
        """The prediction from hidden states (..., H), in float32."""
        output = super().forward(hidden.to(self.weight.dtype)).float()
        mixture, reward, termination = output.split([output.shape[-1] - 2, 1, 1], dim=-1)
        mixture = mixture.unflatten(-1, (-1, self.mixtures))
        mean = mixture[..., self.groups : -self.latent_size, :]
        log_std = mixture[..., -self.latent_size :, :]
        log_std = log_std.clamp(-MAX_LOG_STD, MAX_LOG_STD)
        latent = Mixture(mixture[..., : self.groups, :], mean, log_std)
        return Prediction(latent, reward.squeeze(-1), termination.squeeze(-1))

    def reward(self, hidden: Tensor) -> Tensor:
        """The predicted reward (...) from hidden states (..., H), in float32 throughout."""
        # A seventh of the time of a product with a matrix in the type of the weights.
        return hidden.float() @ self.weight[-2].float() + self.bias[-2].float()


class Objective(NamedTuple):
    """The loss of predictions: negative log-likelihood of latents, and two weighted errors.

    Args:
        reward_weight: of the squared reward error; at 0 rewards are not predicted.
        termination_weight: of the termination's cross entropy.
        termination_pos_weight: of a step that terminates an episode, within that cross entropy.
    """

    reward_weight: float
    termination_weight: float
    termination_pos_weight: float

    def loss(
        self, prediction: Prediction[Mixture], latents: Tensor, batch: Sequences
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The mean over the steps that are not padding.

        Args:
            prediction: of each step of `batch`, (B, T, ...).
            latents: z_{t+1} of these steps, (B, T, Z).
            batch: windows, with their rewards, terminations and mask.

        Returns:
            the loss; and logs ``nll`` (nats per latent dimension and transition),
            ``termination_bce`` and, where rewards are predicted, ``reward_mse``, detached.
        """
        weight = batch.mask.float() / batch.mask.sum().clamp(min=1)
        nll = -(prediction.latent.log_prob(latents) / latents.shape[-1] * weight).sum()
        reward_mse = ((prediction.reward - batch.rewards).square() * weight).sum()
        termination_error = F.binary_cross_entropy_with_logits(
            prediction.termination,
            batch.terminated,
            reduction="none",
            pos_weight=batch.terminated.new_tensor(self.termination_pos_weight),
        )
        termination_bce = (termination_error * weight).sum()
        loss = nll + self.reward_weight * reward_mse + self.termination_weight * termination_bce
        logs = {"nll": nll.detach(), "termination_bce": termination_bce.detach()}
        if self.reward_weight:
            logs["reward_mse"] = reward_mse.detach()
        return loss, logs


@dataclass
class MixtureOptions:
    """The options that every `MixtureDynamics` has; its class describes them."""

    hidden_size: int = 256
    mixtures: int = 5
    shared_mixture: bool = False
    is_first: bool = False
    reward_weight: float = 0.1
    termination_weight: float = 1.0
    termination_pos_weight: float = 1.0


class MixtureDynamics(nn.Module, ABC):
    """A `DynamicsModel` whose heads read the hidden state h: the first tensor of its state.

    A model gives it `FORMAT`, `head` and `objective`, and implements `initial_state`,
    `hidden_states` and `advance`. Its states are zeros where an episode begins.

    Args:
        latent_size: dimensions of z.
        action_size: dimensions of an action.
        hidden_size: of h, which is (B, H) float32.
        sampled: it is trained on draws of z from the posterior (the paper's code), not its means.
        is_first: a further input is 1 in the first step of an episode (the paper's code for Doom).
    """

    Options: ClassVar[type] = MixtureOptions
    FORMAT: ClassVar[int]
    mixed_precision: ClassVar[bool] = False

    head: MixtureHead
    objective: Objective

    def __init__(
        self, latent_size: int, action_size: int, hidden_size: int, sampled: bool, is_first: bool
    ) -> None:
        super().__init__()
        self.latent_size, self.action_size, self.hidden_size = latent_size, action_size, hidden_size
        self.sampled, self.is_first = sampled, is_first
        self.input_size = latent_size + action_size + is_first

    @property
    def sizes(self) -> Mapping[str, Any]:
        """The arguments that build an equal module."""
        return {
            "latent_size": self.latent_size,
            "action_size": self.action_size,
            "sampled": self.sampled,
            "hidden_size": self.hidden_size,
            "mixtures": self.head.mixtures,
            "shared_mixture": self.head.shared_mixture,
            "is_first": self.is_first,
            "reward_weight": self.objective.reward_weight,
            "termination_pos_weight": self.objective.termination_pos_weight,
        }

    @property
    def termination_pos_weight(self) -> float:
        """The weight of terminations in the loss."""
        return self.objective.termination_pos_weight

    @property
    def predicts_reward(self) -> bool:
        """Whether the reward head is trained."""
        return self.objective.reward_weight > 0

    @property
    def state_features(self) -> Mapping[str, int]:
        """The hidden state ``h``."""
        return {"h": self.hidden_size}

    def features(self, state: State, names: Sequence[str]) -> Tensor:
        """The hidden state, (B, H) float32; `names` has no other."""
        return state[0]

    @abstractmethod
    def initial_state(self, num_envs: int, device: torch.device | None = None) -> State:
        """The state at the start of every episode, in `num_envs` rows on `device`: zeros."""

    @abstractmethod
    def hidden_states(self, latents: Tensor, actions: Tensor, state: State) -> tuple[Tensor, State]:
        """The hidden states of a batch of sequences.

        Args:
            latents: z_t, (B, T, Z).
            actions: a_t, (B, T, A).
            state: before the first step, B rows.

        Returns:
            h after each step, (B, T, H); and the state after the last one.
        """

    @abstractmethod
    def advance(self, latents: Tensor, actions: Tensor, state: State) -> State:
        """The state after z_t and a_t.

        Matrix products are computed in the type of the weights; h is float32.

        Args:
            latents: z_t, (B, Z).
            actions: a_t, (B, A).
            state: before this step.
        """

    def predict(self, state: State) -> Prediction[Mixture]:
        """The prediction of the step after `state`, for each of its B rows, in float32."""
        prediction: Prediction[Mixture] = self.head(state[0])
        return prediction

    def predict_reward(self, state: State) -> Tensor:
        """The predicted reward of the step after `state`, for each of its B rows, in float32."""
        return self.head.reward(state[0])

    def forward(
        self, latents: Tensor, actions: Tensor, state: State
    ) -> tuple[Prediction[Mixture], State]:
        """Predictions for every step of a batch of sequences, in one pass.

        Args:
            latents: z_t, (B, T, Z).
            actions: a_t, (B, T, A).
            state: before the first step, B rows; the initial one where an episode begins.

        Returns:
            the predictions of z_{t+1}, r_t and the termination of step t: a mixture with logits
            (B, T, G, K), means and log standard deviations (B, T, Z, K), rewards (B, T), logits of
            termination (B, T); and the state after the last step.
        """
        hidden, state = self.hidden_states(latents, actions, state)
        # In float32 also under autocast: the tails of a density lose most by rounding.
        with torch.autocast(hidden.device.type, enabled=False):
            return self.head(hidden), state

    def loss(self, batch: Sequences, state: State) -> tuple[Tensor, dict[str, Tensor], State]:
        """Negative log-likelihood of the next latents, reward error and termination error.

        With `sampled`, z is sampled from its posterior again in every call, so that the model is
        not trained on one fixed sample (the paper's code).

        Args:
            batch: windows (B, T, ...); rows that begin an episode start from the initial state.
            state: after the previous window of each row, B rows.

        Returns:
            the loss and logs of `Objective`; and the state to carry to the next window, cut from
            the graph.
        """
        latents = batch.mean
        if self.sampled:
            latents = latents + torch.exp(0.5 * batch.logvar) * torch.randn_like(latents)
        state = reset_rows(self, state, batch.starts)
        prediction, state = self(latents[:, :-1], batch.actions, state)
        loss, logs = self.objective.loss(prediction, latents[:, 1:], batch)
        # Copies, for a part may be a view of what was computed for the whole window.
        return loss, logs, tuple(part.detach().clone() for part in state)

    def _inputs(self, latents: Tensor, actions: Tensor, memory: Tensor) -> Tensor:
        """The inputs (B, T, Z + A) of the network, and with `is_first` one more.

        Args:
            latents: z_t, (B, T, Z).
            actions: a_t, (B, T, A).
            memory: a part (B, any) of the state before the first step, zero where an episode begins
                and nowhere else.
        """
        inputs = torch.cat([latents, actions], dim=-1)
        if not self.is_first:
            return inputs
        is_first = torch.zeros_like(inputs[..., :1])
        is_first[:, 0] = (memory == 0).all(dim=-1, keepdim=True)
        return torch.cat([inputs, is_first], dim=-1)
