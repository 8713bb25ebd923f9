"""Episode seeds, drawn from disjoint ranges.

An agent is evaluated on seeds that neither training nor selection used. Each purpose has its own
range of the 31-bit seeds that simulators take, so this holds by construction:

    evaluation  [0, 2**28)         chosen by the user: first_seed, first_seed + 1, ...
    rollouts    [2**28, 2**29)
    selection   [2**29, 2**30)
    training    [2**30, 2**31)

Imported episodes (stage ``import``) keep the seeds that they were recorded with, in any range.
"""

from __future__ import annotations

from enum import Enum

import numpy as np

from worldmodels.errors import ConfigError

EVALUATION_END = 2**28


class Purpose(Enum):
    """What episodes are for; the value is the range's first seed and its size."""

    ROLLOUTS = 2**28
    SELECTION = 2**29
    TRAINING = 2**30


def draw(purpose: Purpose, seed: int, *path: int, count: int) -> list[int]:
    """Draw `count` distinct episode seeds, a function of the run's seed and `path` alone.

    Args:
        purpose: what the episodes are for.
        seed: of the run.
        path: what the seeds are for within the purpose: a generation, a round.
        count: number of seeds.
    """
    sequence = np.random.SeedSequence([seed, purpose.value, *path])
    offsets: dict[int, None] = {}
    generator = np.random.Generator(np.random.Philox(sequence))
    while len(offsets) < count:
        offsets.setdefault(int(generator.integers(purpose.value)))
    return [purpose.value + offset for offset in offsets]


def of_member(seed: int, member: int) -> int:
    """The seed of a member of an ensemble, numbered from 0: the first has that of the run."""
    if member == 0:
        return seed
    # Without a number of `Purpose`, so that no seed of an episode is drawn from the same sequence.
    return int(np.random.SeedSequence([seed, 0, member]).generate_state(1)[0])


def evaluation(first_seed: int, count: int) -> list[int]:
    """The public seeds of an evaluation; raises `ConfigError` outside their range."""
    if first_seed < 0 or first_seed + count > EVALUATION_END:
        raise ConfigError(
            f"evaluate.first_seed={first_seed}: seeds of evaluations lie in [0, {EVALUATION_END}),"
            " the rest is for training"
        )
    return list(range(first_seed, first_seed + count))
