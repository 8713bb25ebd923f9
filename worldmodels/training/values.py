"""Training of value functions on the returns of recorded episodes (Monte Carlo)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from worldmodels.data.failures import failures
from worldmodels.data.latents import EncodedEpisode, LatentSet
from worldmodels.data.returns import counted_rewards, future_returns
from worldmodels.data.sequences import FailureEnd, episode_ends
from worldmodels.models.dynamics import DynamicsModel, select_rows
from worldmodels.models.features import FeatureSpec
from worldmodels.models.value import ValueEnsemble

EPISODES = 64
"""Episodes whose features are computed in one batch."""
MEMORY = 2**30
"""Bytes of all features, at most; of more episodes some are drawn."""
EPOCHS, LEAST_UPDATES = 2, 600
"""Passes over the rows, or more if these are fewer updates."""
BATCH, LEARNING_RATE, WEIGHT_DECAY = 1024, 1e-3, 1e-2


class ValueRows(NamedTuple):
    """Frames of recorded episodes, from the first rows of an episode on.

    Args:
        features: (rows, F) float16.
        returns: of the next steps, (rows,) float32.
    """

    features: Tensor
    returns: Tensor


@contextmanager
def _one_thread() -> Iterator[None]:
    """Rounding must not depend on the number of cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def value_rows(
    latents: LatentSet,
    indices: np.ndarray,
    dynamics: DynamicsModel,
    spec: FeatureSpec,
    horizon: int,
    failure_end: FailureEnd | None,
    penalty: float,
    seed: int,
    device: torch.device,
) -> ValueRows:
    """The features of recorded frames and the returns that followed them.

    Args:
        latents: encoded episodes.
        indices: of the episodes; of more than fit into `MEMORY`, some are drawn.
        dynamics: the model whose state is part of the features, in float32.
        spec: which features.
        horizon: steps of a return; frames that fewer steps follow are left out, unless the episode
            ended by itself.
        failure_end: where episodes that stall end; None: at their last step, which is then no end.
        penalty: subtracted from the last reward of an episode that ended with a failure.
        seed: of the draw and of sampled latents.
        device: to compute on.

    Raises:
        DataError: the file of latents is damaged.
    """
    dynamics = dynamics.to(device)
    lengths, ended, _ = episode_ends(latents, failure_end)
    order = np.random.default_rng(seed).permutation(indices)
    row_bytes = 2 * spec.size(latents.latent_size, dynamics)
    order = order[np.cumsum(lengths[order]) * row_bytes <= MEMORY]
    order = order[np.argsort(-lengths[order], kind="stable")]  # those that run on are first rows
    generator = torch.Generator().manual_seed(seed)
    parts: list[ValueRows] = []
    with torch.inference_mode(), _one_thread():
        for first in range(0, len(order), EPISODES):
            chosen = order[first : first + EPISODES]
            episodes = [latents.read(int(i), 0, int(lengths[i])) for i in chosen]
            features = _features(episodes, dynamics, spec, generator, device)
            for row, (episode, stalled) in enumerate(zip(episodes, ended[chosen], strict=True)):
                rewards = counted_rewards(
                    episode.rewards, episode.terminated, dynamics.predicts_reward
                )
                terminated = bool(episode.terminated[-1])
                if stalled or failures(episode.rewards, terminated, None):
                    rewards = np.append(rewards[:-1], rewards[-1] - penalty)
                returns = future_returns(rewards, horizon, bool(stalled) or terminated)
                targets = torch.from_numpy(returns.astype(np.float32))
                parts.append(ValueRows(features[: len(returns), row].half().cpu(), targets))
    if not parts:
        return ValueRows(torch.empty(0, row_bytes // 2).half(), torch.empty(0))
    return ValueRows(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _features(
    episodes: list[EncodedEpisode],
    dynamics: DynamicsModel,
    spec: FeatureSpec,
    generator: torch.Generator,
    device: torch.device,
) -> Tensor:
    """The features (T, rows, F) of episodes with falling lengths, T that of the first; 0 after the
    end of an episode."""
    lengths = np.array([len(episode.actions) for episode in episodes])
    steps, rows = int(lengths[0]), len(episodes)
    latent_size, action_size = dynamics.latent_size, dynamics.action_size
    latents = torch.zeros(steps, rows, latent_size)
    actions = torch.zeros(steps + 1, rows, action_size)  # a_{t - 1} at t
    for row, episode in enumerate(episodes):
        count = len(episode.actions)
        mean = torch.from_numpy(episode.mean[:count])
        if spec.sampled:
            noise = torch.randn(mean.shape, generator=generator)
            mean = mean + noise * torch.from_numpy(episode.logvar[:count]).mul(0.5).exp()
        latents[:count, row] = mean
        actions[1 : count + 1, row] = torch.from_numpy(episode.actions)
    latents, actions = latents.to(device), actions.to(device)
    state = dynamics.initial_state(rows, device)
    found = torch.zeros(steps, rows, spec.size(latent_size, dynamics), device=device)
    for time in range(steps):
        running = int((lengths > time).sum())
        state = select_rows(state, slice(running))
        now, before = latents[time, :running], actions[time, :running]
        found[time, :running] = spec.features(now, before, state, dynamics)
        state = dynamics.advance(now, actions[time + 1, :running], state)
    return found


def fit_values(values: ValueEnsemble, rows: ValueRows, seed: int) -> None:
    """Train value functions by the mean squared error, on the device that they are on.

    Args:
        values: trained in place; all on the same batches.
        rows: in host memory.
        seed: of the order of the rows.
    """
    device = values.mean.device
    generator = torch.Generator().manual_seed(seed)
    batches = -(-len(rows.returns) // BATCH)
    epochs = max(EPOCHS, -(-LEAST_UPDATES // batches))
    optimiser = torch.optim.AdamW(
        values.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=True
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, LEARNING_RATE, total_steps=epochs * batches
    )
    with _one_thread():
        for _ in range(epochs):
            for chosen in torch.randperm(len(rows.returns), generator=generator).split(BATCH):
                features = rows.features[chosen].to(device).float()
                wanted = rows.returns[chosen].to(device) / values.horizon
                loss = (values.rates(features) - wanted).square().mean()
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                schedule.step()


@torch.inference_mode()
def explained_variance(values: ValueEnsemble, rows: ValueRows) -> float:
    """The share of the variance of returns that the mean of the value functions explains; 1 is all,
    and 0 or less is no better than the mean return. NaN without rows."""
    if not len(rows.returns):
        return float("nan")
    device = values.mean.device
    with _one_thread():
        found = [
            values(features.to(device).float()).mean(dim=0).cpu()
            for features in rows.features.split(8 * BATCH)
        ]
    error = (torch.cat(found) - rows.returns).double().square().mean()
    return float(1 - error / rows.returns.double().var(correction=0))
