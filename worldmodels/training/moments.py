"""First and second moments of a controller's features in recorded episodes."""

from __future__ import annotations

import numpy as np
import torch

from worldmodels.data.latents import LatentSet
from worldmodels.models.dynamics import DynamicsModel, select_rows
from worldmodels.models.features import FeatureSpec

EPISODES = 64
"""Spread over all that were recorded; at 300 steps each, 67 frames for each of 288 features."""


@torch.inference_mode()
def feature_moments(
    latents: LatentSet, dynamics: DynamicsModel, spec: FeatureSpec
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and second moments of the features in up to `EPISODES` recorded episodes.

    Latents are the means of their posteriors: sampling adds noise without information.

    Args:
        latents: encoded episodes.
        dynamics: the model whose state is part of the features; on the CPU, in float32.
        spec: which features. Its `updated` is ignored: the state is the one before z_t.

    Returns:
        mean (F,) and second moments about zero (F, F), both float64.

    Raises:
        DataError: the file of latents is damaged.
    """
    numbers = np.unique(np.linspace(0, len(latents.lengths) - 1, EPISODES).round().astype(int))
    # The longest first, so that those still running are the first rows.
    numbers = numbers[np.argsort(-latents.lengths[numbers], kind="stable")]
    lengths = latents.lengths[numbers]
    episodes = [latents.episode(int(number)) for number in numbers]
    state = dynamics.initial_state(len(episodes))
    total, square = np.zeros(()), np.zeros(())
    for time in range(lengths[0]):
        running = episodes[: int((lengths > time).sum())]
        rows = torch.from_numpy(np.stack([episode.mean[time] for episode in running]))
        features = rows  # (running, features)
        if spec.state:
            state = select_rows(state, slice(len(running)))
            features = torch.cat([rows, dynamics.features(state, spec.state)], dim=1)
            actions = torch.from_numpy(np.stack([episode.actions[time] for episode in running]))
            state = dynamics.advance(rows, actions, state)
        values = features.double().numpy()
        total = total + values.sum(axis=0)
        square = square + values.T @ values
    return total / lengths.sum(), square / lengths.sum()
