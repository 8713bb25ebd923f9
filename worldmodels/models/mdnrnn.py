"""The mixture-density LSTM, the paper's dynamics model (appendix A.2)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from worldmodels.models.dynamics import Prediction, Sequences, State

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
        logits = self.logits / temperature
        weights = (logits - logits.amax(dim=-1, keepdim=True)).exp().unbind(dim=-1)
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


def _tanh(x: Tensor) -> Tensor:
    """tanh, by the logistic function: PyTorch's own takes five times as long on a CPU."""
    return torch.sigmoid(x * 2).mul_(2).sub_(1)


def _begins(cell: Tensor) -> Tensor:
    """(B, 1) bool: an episode begins where the cell state (B, H) is zero, and nowhere else."""
    return (cell == 0).all(dim=-1, keepdim=True)


@dataclass
class MDNRNNOptions:
    """The options of an `MDNRNN`; its arguments are described there."""

    hidden_size: int = 256
    mixtures: int = 5
    shared_mixture: bool = False
    is_first: bool = False
    reward_weight: float = 0.1
    termination_weight: float = 1.0
    termination_pos_weight: float = 1.0


_SIZES = (
    *("latent_size", "action_size", "sampled", "hidden_size", "mixtures"),
    *("shared_mixture", "is_first", "reward_weight"),
)


class MDNRNN(nn.Module):
    """LSTM with a mixture density head, a reward head and a termination head.

    Its state is the LSTM's hidden and cell state, h and c, each (B, H) float32.

    Args:
        latent_size: dimensions of z.
        action_size: dimensions of an action.
        hidden_size: of the LSTM (256 for CarRacing, 512 for Doom).
        mixtures: Gaussians for each latent dimension (5); 1 is the single-Gaussian baseline.
        shared_mixture: the dimensions share one mixture, see `Mixture`.
        sampled: it is trained on draws of z from the posterior (the paper's code), not its means.
        is_first: a further input is 1 in the first step of an episode (the paper's code for Doom).
        reward_weight: of the squared reward error in the loss; at 0 rewards are not predicted.
        termination_weight: of the termination's cross entropy in the loss.
        termination_pos_weight: of a step that terminates an episode, within that cross entropy.
    """

    Options: ClassVar[type] = MDNRNNOptions
    FORMAT: ClassVar[int] = 1

    def __init__(
        self,
        latent_size: int,
        action_size: int,
        hidden_size: int = 256,
        mixtures: int = 5,
        *,
        shared_mixture: bool = False,
        sampled: bool = True,
        is_first: bool = False,
        reward_weight: float = 0.1,
        termination_weight: float = 1.0,
        termination_pos_weight: float = 1.0,
    ) -> None:
        super().__init__()
        self.latent_size = latent_size
        self.action_size = action_size
        self.hidden_size = hidden_size
        self.mixtures = mixtures
        self.shared_mixture = shared_mixture
        self.sampled = sampled
        self.is_first = is_first
        self.reward_weight = reward_weight
        self.termination_weight = termination_weight
        self.termination_pos_weight = termination_pos_weight
        self.lstm = nn.LSTM(latent_size + action_size + is_first, hidden_size, batch_first=True)
        self._groups = 1 if shared_mixture else latent_size
        self.head = nn.Linear(hidden_size, (self._groups + 2 * latent_size) * mixtures + 2)
        self._spread_means()

    def _spread_means(self) -> None:
        """Start the components apart, over [-1, 1] of latents whose prior is N(0, 1).

        Components that start equal separate slowly. Measured on CarRacing, 40 epochs over 162
        episodes of 300 steps at a learning rate of 1e-3, validation nats a dimension: 0.9143,
        against 0.9167 as PyTorch initialises. At 3e-3: 0.9064, and 0.9076 with one Gaussian.
        """
        with torch.no_grad():
            bias = self.head.bias[:-2].view(-1, self.mixtures)
            if self.mixtures > 1:
                bias[self._groups : -self.latent_size] = torch.linspace(-1.0, 1.0, self.mixtures)

    @property
    def sizes(self) -> Mapping[str, Any]:
        """The arguments that build an equal module."""
        return {name: getattr(self, name) for name in _SIZES}

    @property
    def predicts_reward(self) -> bool:
        """Whether the reward head is trained."""
        return self.reward_weight > 0

    @property
    def state_features(self) -> Mapping[str, int]:
        """The hidden state ``h`` and the cell state ``c``."""
        return {"h": self.hidden_size, "c": self.hidden_size}

    def initial_state(self, num_envs: int, device: torch.device | None = None) -> State:
        """The state at the start of every episode: zeros, two tensors (num_envs, H) float32."""
        zeros = torch.zeros(num_envs, self.hidden_size, device=device)
        return zeros, zeros.clone()

    def features(self, state: State, names: Sequence[str]) -> Tensor:
        """Hidden and cell state, in the order of `names`: (B, H * len(names)) float32."""
        parts = dict(zip("hc", state, strict=True))
        if len(names) == 1:
            return parts[names[0]]
        return torch.cat([parts[name] for name in names], dim=-1)

    def advance(self, latents: Tensor, actions: Tensor, state: State) -> State:
        """The state after z_t and a_t.

        Matrix products are computed in the type of the weights; states are float32.

        Args:
            latents: z_t, (B, Z).
            actions: a_t, (B, A).
            state: before this step.
        """
        # One cell step by hand: nn.LSTM on a sequence of one is slower at every batch size.
        h, c = state
        weight_ih, weight_hh, bias_ih, bias_hh = self.lstm.parameters()
        inputs = [latents, actions]
        if self.is_first:
            inputs.append(_begins(c).to(latents.dtype))
        dtype = weight_ih.dtype
        gates = F.linear(torch.cat(inputs, dim=-1).to(dtype), weight_ih, bias_ih + bias_hh)
        # float32 from here on: a forget gate near 1 is a long memory, which bfloat16 would round.
        gates = torch.addmm(gates, h.to(dtype), weight_hh.t()).float()
        enter, forget, cell, output = gates.chunk(4, dim=-1)  # (B, H) each
        c = torch.sigmoid(forget) * c + torch.sigmoid(enter) * _tanh(cell)
        return torch.sigmoid(output) * _tanh(c), c

    def predict(self, state: State) -> Prediction[Mixture]:
        """The prediction of the step after `state`, for each of its B rows, in float32."""
        return self._predict(state[0])

    def _predict(self, h: Tensor) -> Prediction[Mixture]:
        """The prediction from hidden states (..., H)."""
        output = self.head(h.to(self.head.weight.dtype)).float()
        mixture, reward, termination = output.split([output.shape[-1] - 2, 1, 1], dim=-1)
        mixture = mixture.unflatten(-1, (-1, self.mixtures))
        mean = mixture[..., self._groups : -self.latent_size, :]
        log_std = mixture[..., -self.latent_size :, :]
        log_std = log_std.clamp(-MAX_LOG_STD, MAX_LOG_STD)
        latent = Mixture(mixture[..., : self._groups, :], mean, log_std)
        return Prediction(latent, reward.squeeze(-1), termination.squeeze(-1))

    def forward(
        self, latents: Tensor, actions: Tensor, state: State
    ) -> tuple[Prediction[Mixture], State]:
        """Predictions for every step of a batch of sequences, as one pass of the LSTM.

        Args:
            latents: z_t, (B, T, Z).
            actions: a_t, (B, T, A).
            state: h and c before the first step, (B, H) each; zeros where an episode begins.

        Returns:
            the predictions of z_{t+1}, r_t and the termination of step t: a mixture with logits
            (B, T, G, K), means and log standard deviations (B, T, Z, K), rewards (B, T), logits of
            termination (B, T); and h and c after the last step, (B, H) each.
        """
        h, c = state
        inputs = torch.cat([latents, actions], dim=-1)  # (B, T, Z + A)
        if self.is_first:
            is_first = torch.zeros_like(inputs[..., :1])
            is_first[:, 0] = _begins(c)
            inputs = torch.cat([inputs, is_first], dim=-1)
        hidden, (h, c) = self.lstm(inputs, (h.unsqueeze(0), c.unsqueeze(0)))
        return self._predict(hidden), (h.squeeze(0), c.squeeze(0))

    def loss(self, batch: Sequences, state: State) -> tuple[Tensor, dict[str, Tensor], State]:
        """Negative log-likelihood of the next latents, reward error and termination error.

        With `sampled`, z is sampled from its posterior again in every call, so that the model is
        not trained on one fixed sample (the paper's code).

        Args:
            batch: windows (B, T, ...); rows that begin an episode start from the zero state.
            state: h and c after the previous window of each row, (B, H) each.

        Returns:
            the loss; logs ``nll`` (nats per latent dimension and transition),
            ``termination_bce`` and, where rewards are predicted, ``reward_mse``; and the state to
            carry to the next window, cut from the graph.
        """
        latents = batch.mean
        if self.sampled:
            latents = latents + torch.exp(0.5 * batch.logvar) * torch.randn_like(latents)
        keep = (~batch.starts).unsqueeze(-1).to(state[0].dtype)
        prediction, (h, c) = self(
            latents[:, :-1], batch.actions, tuple(part * keep for part in state)
        )
        weight = batch.mask.float() / batch.mask.sum().clamp(min=1)
        mixture = Mixture(*(part.float() for part in prediction.latent))
        nll = -(mixture.log_prob(latents[:, 1:]) / self.latent_size * weight).sum()
        reward_error = (prediction.reward.float() - batch.rewards).square()
        reward_mse = (reward_error * weight).sum()
        termination_error = F.binary_cross_entropy_with_logits(
            prediction.termination.float(),
            batch.terminated,
            reduction="none",
            pos_weight=batch.terminated.new_tensor(self.termination_pos_weight),
        )
        termination_bce = (termination_error * weight).sum()
        loss = nll + self.reward_weight * reward_mse + self.termination_weight * termination_bce
        logs = {"nll": nll.detach(), "termination_bce": termination_bce.detach()}
        if self.reward_weight:
            logs["reward_mse"] = reward_mse.detach()
        return loss, logs, (h.detach().float(), c.detach().float())
