"""A baseline for the dynamics model: the next latent is the current one plus Gaussian noise."""

from __future__ import annotations

import numpy as np

from worldmodels.data.latents import LatentSet
from worldmodels.data.sequences import FailureEnd, episode_ends


def copy_baseline_nll(
    latents: LatentSet,
    train: np.ndarray,
    validation: np.ndarray,
    sampled: bool,
    failure_end: FailureEnd | None = None,
) -> float:
    """Validation NLL of z_{t+1} ~ N(z_t, v_d), in nats per dimension and transition.

    The variances v_d (Z,) maximise the likelihood of the training episodes. Where z is sampled, the
    squared difference is its expectation over both posteriors, computed without sampling:
    E (z_{t+1} - z_t)^2 = (difference of means)^2 + both variances.

    Args:
        latents: encoded episodes.
        train: indices of the training episodes.
        validation: indices of the validation episodes.
        sampled: z is a sample of its posterior, not the mean.
        failure_end: where the model learns that episodes end; the transitions after that do not
            count here either.

    Raises:
        DataError: the file of latents is damaged.
    """
    lengths = episode_ends(latents, failure_end).lengths
    variance = _mean_square_difference(latents, train, lengths, sampled)
    square = _mean_square_difference(latents, validation, lengths, sampled)
    return float(np.mean(0.5 * (np.log(2 * np.pi * variance) + square / variance)))


def _mean_square_difference(
    latents: LatentSet, indices: np.ndarray, lengths: np.ndarray, sampled: bool
) -> np.ndarray:
    """The expected squared step of each dimension over the transitions of episodes: (Z,)."""
    total, count = np.zeros(latents.latent_size), 0
    for index in indices:
        episode = latents.read(int(index), 0, int(lengths[index]))
        step = np.diff(episode.mean.astype(np.float64), axis=0) ** 2
        if sampled:
            spread = np.exp(episode.logvar.astype(np.float64))
            step += spread[1:] + spread[:-1]
        total += step.sum(axis=0)
        count += len(step)
    return total / count
