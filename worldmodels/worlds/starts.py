"""Where episodes in the learned model begin: latents, actions, and states of the dynamics models.

Shapes are in the letters of docs/shapes.md, with S starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from worldmodels.data.latents import FirstLatents
from worldmodels.data.starts import Starts
from worldmodels.models.dynamics import DynamicsModel, State, reset_rows


class Beginnings(NamedTuple):
    """What episodes begin with.

    Args:
        mean: of the posterior of z_t, (S, Z).
        std: its standard deviation, (S, Z); 0 where latents are not sampled.
        actions: a_{t-1}, (S, A).
        state: of the models, one after another, after z_{t-1} and a_{t-1}, S rows; None where all
            of them are the initial one, whose rows may be large.
    """

    mean: Tensor
    std: Tensor
    actions: Tensor
    state: State | None


@torch.inference_mode()
def beginnings(
    starts: FirstLatents | Starts,
    models: Sequence[DynamicsModel],
    sampled: bool,
    device: torch.device,
) -> Beginnings:
    """The beginnings of episodes in dynamics models.

    Args:
        starts: first latents of recorded episodes, or moments of them.
        models: the members of an ensemble, or one model, on `device`.
        sampled: latents are sampled from their posteriors, also those before a moment.
        device: of the tensors.
    """
    mean = torch.from_numpy(starts.mean).to(device)
    std = torch.from_numpy(sampled * np.exp(0.5 * starts.logvar)).to(device)
    if isinstance(starts, FirstLatents):
        actions = torch.zeros(len(mean), models[0].action_size, device=device)
        return Beginnings(mean, std, actions, None)
    noise = torch.randn(mean.shape, generator=torch.Generator().manual_seed(0)).to(device)
    before, actions = (mean + std * noise)[:, :-1], torch.from_numpy(starts.actions).to(device)
    steps = torch.from_numpy(starts.steps).to(device)
    states = [_state(model, before, actions, steps) for model in models]
    state = tuple(part for state in states for part in state)
    return Beginnings(mean[:, -1], std[:, -1], actions[:, -1], state)


def _state(model: DynamicsModel, latents: Tensor, actions: Tensor, steps: Tensor) -> State:
    """The state of a model after the last `steps` (S,) of latents (S, W, Z) and actions (S, W, A),
    from the initial one."""
    state, history = model.initial_state(len(steps), latents.device), latents.shape[1]
    for time in range(history):
        state = model.advance(latents[:, time], actions[:, time], state)
        state = reset_rows(model, state, steps < history - time)
    return state
