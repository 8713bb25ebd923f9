"""The mixture-density LSTM, the paper's dynamics model (appendix A.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from worldmodels.models.dynamics import State
from worldmodels.models.heads import MixtureDynamics, MixtureHead, Objective


def tanh(x: Tensor) -> Tensor:
    """tanh, by the logistic function: PyTorch's own takes five times as long on a CPU."""
    if x.requires_grad:  # what follows is in place
        return torch.tanh(x)
    return torch.sigmoid(x * 2).mul_(2).sub_(1)


class MDNRNN(MixtureDynamics):
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
        super().__init__(latent_size, action_size, hidden_size, sampled, is_first)
        self.lstm = nn.LSTM(self.input_size, hidden_size, batch_first=True)
        self.head = MixtureHead(hidden_size, latent_size, mixtures, shared_mixture)
        self.objective = Objective(reward_weight, termination_weight, termination_pos_weight)

    @property
    def state_features(self) -> Mapping[str, int]:
        """The hidden state ``h`` and the cell state ``c``."""
        return {"h": self.hidden_size, "c": self.hidden_size}

    def features(self, state: State, names: Sequence[str]) -> Tensor:
        """Hidden and cell state, in the order of `names`: (B, H * len(names)) float32."""
        parts = dict(zip("hc", state, strict=True))
        if len(names) == 1:
            return parts[names[0]]
        return torch.cat([parts[name] for name in names], dim=-1)

    def initial_state(self, num_envs: int, device: torch.device | None = None) -> State:
        """The state at the start of every episode: zeros, two tensors (num_envs, H) float32."""
        zeros = torch.zeros(num_envs, self.hidden_size, device=device)
        return zeros, zeros.clone()

    def hidden_states(self, latents: Tensor, actions: Tensor, state: State) -> tuple[Tensor, State]:
        """See `MixtureDynamics.hidden_states`."""
        h, c = state
        inputs = self._inputs(latents, actions, c)
        hidden, (h, c) = self.lstm(inputs, (h.unsqueeze(0), c.unsqueeze(0)))
        return hidden, (h.squeeze(0), c.squeeze(0))

    def advance(self, latents: Tensor, actions: Tensor, state: State) -> State:
        """See `MixtureDynamics.advance`; h and c are float32."""
        # One cell step by hand: nn.LSTM on a sequence of one is slower at every batch size.
        h, c = state
        weight_ih, weight_hh, bias_ih, bias_hh = self.lstm.parameters()
        inputs = self._inputs(latents.unsqueeze(1), actions.unsqueeze(1), c).squeeze(1)
        dtype = weight_ih.dtype
        gates = F.linear(inputs.to(dtype), weight_ih, bias_ih + bias_hh)
        # float32 from here on: a forget gate near 1 is a long memory, which bfloat16 would round.
        gates = torch.addmm(gates, h.to(dtype), weight_hh.t()).float()
        enter, forget, cell, output = gates.chunk(4, dim=-1)  # (B, H) each
        if gates.requires_grad:
            c = torch.sigmoid(forget) * c + torch.sigmoid(enter) * torch.tanh(cell)
            return torch.sigmoid(output) * torch.tanh(c), c
        # In place: fewer arrays compete for the cache.
        c = torch.sigmoid(forget).mul_(c).add_(torch.sigmoid(enter).mul_(tanh(cell)))
        return torch.sigmoid(output).mul_(tanh(c)), c
