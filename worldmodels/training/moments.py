"""What a controller would have seen in recorded episodes: mean and covariance of its features."""

from __future__ import annotations

import numpy as np
import torch

from worldmodels.data.latents import LatentSet
from worldmodels.models.mdnrnn import MDNRNN

EPISODES = 64
"""Spread over all that were recorded; at 300 steps each, 67 frames for each of 288 features."""


@torch.inference_mode()
def feature_moments(latents: LatentSet, memory: MDNRNN | None) -> tuple[np.ndarray, np.ndarray]:
    """Mean (features,) and covariance (features, features) of z, and with M of its h beside it.

    Of means of latents: what their posteriors add is noise that no controller can use.
    """
    numbers = np.unique(np.linspace(0, len(latents.lengths) - 1, EPISODES).round().astype(int))
    size = latents.latent_size + (memory.hidden_size if memory else 0)
    total, square, count = np.zeros(size), np.zeros((size, size)), 0
    for number in numbers:
        episode = latents.episode(int(number))
        rows = episode.mean[:-1]  # (steps, latent)
        if memory is not None:
            rows = np.concatenate([rows, _hidden(memory, rows, episode.actions)], axis=1)
        rows = rows.astype(np.float64)
        total += rows.sum(axis=0)
        square += rows.T @ rows
        count += len(rows)
    mean = total / count
    return mean, square / count - np.outer(mean, mean)


def _hidden(memory: MDNRNN, latents: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """The state that stands beside each of `latents` (steps, latent): (steps, hidden)."""
    inputs = torch.from_numpy(np.concatenate([latents, actions], axis=1))[None]
    hidden, _ = memory.lstm(inputs)  # (1, steps, hidden): after each step
    before = torch.cat([torch.zeros_like(hidden[:, :1]), hidden[:, :-1]], dim=1)
    return np.asarray(before[0])
