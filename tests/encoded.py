"""Encoded episodes of random numbers."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from worldmodels.data.latents import EncodedEpisode, LatentSet, write_latents
from worldmodels.runs.integrity import Listed


def latent_set(path: Path) -> LatentSet:
    """Eight episodes of different lengths, with latents of 4 and actions of 2, written to `path`:
    rows of a batch have different numbers of valid steps."""
    rng = np.random.default_rng(0)

    def encoded() -> Iterator[EncodedEpisode]:
        for seed, steps in enumerate((3, 17, 9, 5, 12, 4, 20, 7)):
            yield EncodedEpisode(
                mean=rng.normal(size=(steps + 1, 4)).astype(np.float32),
                logvar=rng.normal(size=(steps + 1, 4)).astype(np.float32),
                actions=rng.normal(size=(steps, 2)).astype(np.float32),
                rewards=rng.normal(size=steps).astype(np.float32),
                terminated=np.arange(steps) == steps - 1,
                seed=seed,
            )

    write_latents(path, encoded(), {})
    return LatentSet(Listed(path))
