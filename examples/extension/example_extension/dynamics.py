"""An MLP over the last steps that predicts the next latent as one Gaussian."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from worldmodels.models.dynamics import Prediction, Sequences, State


class Gaussian(NamedTuple):
    """A diagonal Gaussian of a latent vector; both of shape (..., latent)."""

    mean: Tensor
    log_std: Tensor

    def sample(self, uniform: Tensor, normal: Tensor, temperature: float | Tensor) -> Tensor:
        """A draw (..., latent) whose variance is multiplied by the temperature."""
        return self.mean + self.log_std.exp() * temperature**0.5 * normal

    def mode(self) -> Tensor:
        """The mean: (..., latent)."""
        return self.mean

    def expectation(self) -> Tensor:
        """The mean: (..., latent)."""
        return self.mean

    def nll(self, value: Tensor) -> Tensor:
        """Negative log density of `value` in nats a dimension: (..., latent)."""
        standard = (value - self.mean) * torch.exp(-self.log_std)
        return 0.5 * standard.square() + self.log_std + 0.5 * math.log(2 * math.pi)


@dataclass
class StackedMLPOptions:
    """The options of a `StackedMLP`: those with the names of rnn.* keys are set by these keys."""

    hidden_size: int = 256
    steps: int = 4


class StackedMLP(nn.Module):
    """One hidden layer over the last (z, a) pairs, with heads for latent, reward and termination.

    Its state is the hidden layer's output, and these pairs: zeros where there was no step yet.

    Args:
        latent_size: dimensions of z.
        action_size: dimensions of an action.
        sampled: it is trained on draws of z from the posterior, not on its means.
        hidden_size: of the hidden layer.
        steps: number of pairs.
    """

    Options: ClassVar[type] = StackedMLPOptions
    FORMAT: ClassVar[int] = 1
    mixed_precision: ClassVar[bool] = False
    predicts_reward = True

    def __init__(
        self,
        latent_size: int,
        action_size: int,
        sampled: bool = True,
        hidden_size: int = 256,
        steps: int = 4,
    ) -> None:
        super().__init__()
        self.latent_size, self.action_size, self.sampled = latent_size, action_size, sampled
        self.hidden_size, self.steps = hidden_size, steps
        self.layer = nn.Linear(steps * (latent_size + action_size), hidden_size)
        self.head = nn.Linear(hidden_size, 2 * latent_size + 2)

    @property
    def sizes(self) -> Mapping[str, Any]:
        """The arguments that build an equal module."""
        names = ("latent_size", "action_size", "sampled", "hidden_size", "steps")
        return {name: getattr(self, name) for name in names}

    @property
    def state_features(self) -> Mapping[str, int]:
        """The output of the hidden layer."""
        return {"h": self.hidden_size}

    def initial_state(self, num_envs: int, device: torch.device | None = None) -> State:
        """Zeros: (rows, hidden) and (rows, steps, latent + action)."""
        size = self.latent_size + self.action_size
        hidden = torch.zeros(num_envs, self.hidden_size, device=device)
        return hidden, torch.zeros(num_envs, self.steps, size, device=device)

    def advance(self, latents: Tensor, actions: Tensor, state: State) -> State:
        """The state after z_t (rows, latent) and a_t (rows, action)."""
        now = torch.cat([latents, actions], dim=-1).unsqueeze(1)
        pairs = torch.cat([state[1][:, 1:], now], dim=1)  # (rows, steps, latent + action)
        return self._hidden(pairs).float(), pairs

    def predict(self, state: State) -> Prediction[Gaussian]:
        """The prediction of the step after `state`, in float32."""
        return self._predict(state[0])

    def predict_reward(self, state: State) -> Tensor:
        """The reward of the step after `state`: (rows,)."""
        return self._predict(state[0]).reward

    def features(self, state: State, names: Sequence[str]) -> Tensor:
        """The output of the hidden layer: (rows, hidden)."""
        return state[0]

    def loss(self, batch: Sequences, state: State) -> tuple[Tensor, dict[str, Tensor], State]:
        """Negative log-likelihood of the next latents, reward error and termination error."""
        latents = batch.mean
        if self.sampled:
            latents = latents + torch.exp(0.5 * batch.logvar) * torch.randn_like(latents)
        before = state[1] * (~batch.starts).view(-1, 1, 1)  # an episode begins with zeros
        pairs = torch.cat([before, torch.cat([latents[:, :-1], batch.actions], dim=-1)], dim=1)
        windows = pairs[:, 1:].unfold(1, self.steps, 1).transpose(2, 3)  # one for each step
        hidden = self._hidden(windows)
        prediction = self._predict(hidden)
        weight = batch.mask.float() / batch.mask.sum().clamp(min=1)
        nll = (prediction.latent.nll(latents[:, 1:]).mean(dim=-1) * weight).sum()
        reward_mse = ((prediction.reward - batch.rewards).square() * weight).sum()
        entropy = F.binary_cross_entropy_with_logits(
            prediction.termination, batch.terminated, reduction="none"
        )
        loss = nll + 0.1 * reward_mse + (entropy * weight).sum()
        logs = {"nll": nll.detach(), "reward_mse": reward_mse.detach()}
        return loss, logs, (hidden[:, -1].detach(), pairs[:, -self.steps :].detach())

    def _hidden(self, pairs: Tensor) -> Tensor:
        """The output of the hidden layer for pairs (..., steps, latent + action)."""
        return F.relu(self.layer(pairs.flatten(-2).to(self.layer.weight.dtype)))

    def _predict(self, hidden: Tensor) -> Prediction[Gaussian]:
        """The prediction from hidden states (..., hidden)."""
        output = self.head(hidden.to(self.head.weight.dtype)).float()
        sizes = [self.latent_size, self.latent_size, 1, 1]
        mean, log_std, reward, termination = output.split(sizes, dim=-1)
        latent = Gaussian(mean, log_std.clamp(-7.0, 7.0))
        return Prediction(latent, reward.squeeze(-1), termination.squeeze(-1))
