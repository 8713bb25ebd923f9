"""The baseline that any model of time must beat: tomorrow is today, give or take."""

from __future__ import annotations

import numpy as np

from worldmodels.data.latents import LatentSet


def copy_baseline_nll(
    latents: LatentSet, train: np.ndarray, validation: np.ndarray, sampled: bool
) -> float:
    """Validation NLL of z_{t+1} ~ N(z_t, v_d), in nats per dimension and transition.

    The variances v_d (latent,) are those that maximise the likelihood of the training episodes.
    Where z is sampled, the squared difference is taken in expectation over both posteriors:
    E (z_{t+1} - z_t)^2 = (difference of means)^2 + both variances. No sampling, hence no noise.
    """
    variance = _mean_square_difference(latents, train, sampled)
    square = _mean_square_difference(latents, validation, sampled)
    return float(np.mean(0.5 * (np.log(2 * np.pi * variance) + square / variance)))


def _mean_square_difference(latents: LatentSet, indices: np.ndarray, sampled: bool) -> np.ndarray:
    """The expected squared step of each dimension over the transitions of episodes: (latent,)."""
    total, count = np.zeros(latents.latent_size), 0
    for index in indices:
        episode = latents.episode(int(index))
        step = np.diff(episode.mean.astype(np.float64), axis=0) ** 2
        if sampled:
            spread = np.exp(episode.logvar.astype(np.float64))
            step += spread[1:] + spread[:-1]
        total += step.sum(axis=0)
        count += len(step)
    return total / count
