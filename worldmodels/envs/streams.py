"""Random generators of what is drawn for an episode beside its environment.

Each depends on the episode's seed, with which the environment seeds its own generator too, and is
independent of that one and of the others.
"""

from __future__ import annotations

from enum import Enum

import numpy as np


class Stream(Enum):
    """What is drawn; the value is the spawn key of its generators."""

    ACTIONS = 1
    REPETITIONS = 2
    MIRRORING = 3
    TELEVISION = 4


def generator_of(seed: int, stream: Stream) -> np.random.Generator:
    """A new generator.

    Args:
        seed: of the episode.
        stream: what it is for.
    """
    return np.random.default_rng(np.random.SeedSequence(int(seed), spawn_key=(stream.value,)))
