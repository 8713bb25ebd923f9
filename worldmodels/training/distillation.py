"""Training of a predictor of a random network on recorded latents (Burda et al. 2018).

It takes seconds, so it has no checkpoints. Shapes are in the letters of docs/shapes.md: B batch,
Z latent.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from worldmodels.data.latents import LatentSet
from worldmodels.models.distillation import Distillation
from worldmodels.system import interrupts

UPDATES, BATCH_SIZE, LEARNING_RATE = 2000, 256, 1e-3
FRAMES = 65_536
"""Recorded latents that it is trained on, at most."""
_LEAST_STD = 1e-3
"""Of a dimension, in its standardisation."""


def distil(latents: LatentSet, sampled: bool, seed: int) -> Distillation:
    """Train a predictor, on the CPU and in one thread, so that its rounding is the same everywhere.

    Args:
        latents: recorded episodes, of which at most `FRAMES` latents are used.
        sampled: latents are sampled from their posteriors, else their means.
        seed: of weights, batches and samples.

    Returns:
        the trained networks, on the CPU, whose `scale` is the mean error on these latents.

    Raises:
        DataError: the file of latents is damaged.
        Stopped: the process was asked to stop.
    """
    generator = torch.Generator().manual_seed(seed)
    mean, std = _recorded(latents, sampled, generator)
    model = Distillation(latents.latent_size)
    model.draw(generator)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        _fit(model, mean, std, generator)
    finally:
        torch.set_num_threads(threads)
    return model.requires_grad_(False).eval()


def _recorded(
    latents: LatentSet, sampled: bool, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Means and standard deviations (frames, Z) of the posteriors of recorded frames that are drawn
    from all of them; the latter 0 for means alone."""
    first = np.concatenate([[0], np.cumsum(latents.lengths + 1)])
    drawn = torch.randperm(int(first[-1]), generator=generator)[:FRAMES].sort().values.numpy()
    means, stds = [], []
    for index, (start, stop) in enumerate(pairwise(first)):
        rows = drawn[np.searchsorted(drawn, start) : np.searchsorted(drawn, stop)] - start
        if len(rows):
            episode = latents.episode(index)
            means.append(episode.mean[rows])
            stds.append(sampled * np.exp(0.5 * episode.logvar[rows]))
    return torch.from_numpy(np.concatenate(means)), torch.from_numpy(np.concatenate(stds)).float()


def _fit(model: Distillation, mean: Tensor, std: Tensor, generator: torch.Generator) -> None:
    """Train the predictor on posteriors (frames, Z), and set what standardises both sides."""

    def draw(rows: Tensor) -> Tensor:
        noise = torch.randn(len(rows), mean.shape[1], generator=generator)
        return mean[rows] + std[rows] * noise

    every = draw(torch.arange(len(mean)))
    model.mean.copy_(every.mean(dim=0))
    model.std.copy_(every.std(dim=0, correction=0).clamp(min=_LEAST_STD))
    optimiser = torch.optim.Adam(model.predictor.parameters(), LEARNING_RATE)
    for _ in range(UPDATES):
        interrupts.check()
        rows = torch.randint(len(mean), (BATCH_SIZE,), generator=generator)
        optimiser.zero_grad()
        model.errors(draw(rows)).mean().backward()
        optimiser.step()
    with torch.no_grad():
        model.scale.copy_(model.errors(every).mean())
