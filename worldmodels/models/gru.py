"""The mixture density network on a GRU."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from worldmodels.models.dynamics import State
from worldmodels.models.heads import MixtureDynamics, MixtureHead, Objective
from worldmodels.models.mdnrnn import tanh


class GRUDynamics(MixtureDynamics):
    """GRU (Cho et al. 2014) with a mixture density head, a reward head and a termination head.

    It has three quarters of the parameters of an LSTM of the same size. Its state is the hidden
    state h, (B, H) float32.

    Args:
        latent_size: dimensions of z.
        action_size: dimensions of an action.
        hidden_size: of the GRU.
        mixtures: Gaussians for each latent dimension.
        shared_mixture: the dimensions share one mixture, see `Mixture`.
        sampled: it is trained on draws of z from the posterior, not its means.
        is_first: a further input is 1 in the first step of an episode.
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
        self.gru = nn.GRU(self.input_size, hidden_size, batch_first=True)
        self.head = MixtureHead(hidden_size, latent_size, mixtures, shared_mixture)
        self.objective = Objective(reward_weight, termination_weight, termination_pos_weight)

    def initial_state(self, num_envs: int, device: torch.device | None = None) -> State:
        """The state at the start of every episode: zeros, one tensor (num_envs, H) float32."""
        return (torch.zeros(num_envs, self.hidden_size, device=device),)

    def hidden_states(self, latents: Tensor, actions: Tensor, state: State) -> tuple[Tensor, State]:
        """See `MixtureDynamics.hidden_states`."""
        (h,) = state
        hidden, h = self.gru(self._inputs(latents, actions, h), h.unsqueeze(0))
        return hidden, (h.squeeze(0),)

    def advance(self, latents: Tensor, actions: Tensor, state: State) -> State:
        """See `MixtureDynamics.advance`."""
        (h,) = state
        weight_ih, weight_hh, bias_ih, bias_hh = self.gru.parameters()
        inputs = self._inputs(latents.unsqueeze(1), actions.unsqueeze(1), h).squeeze(1)
        dtype = weight_ih.dtype
        # float32 from the gates on, for the same reason as in `MDNRNN.advance`.
        from_input = F.linear(inputs.to(dtype), weight_ih, bias_ih).float()
        from_h = F.linear(h.to(dtype), weight_hh, bias_hh).float()
        gates = (from_input + from_h)[:, : 2 * self.hidden_size]
        reset, update = torch.sigmoid(gates).chunk(2, dim=-1)  # (B, H) each
        new = tanh(from_input[:, -self.hidden_size :] + reset * from_h[:, -self.hidden_size :])
        return (new + update * (h - new),)
