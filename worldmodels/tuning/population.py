"""Population-based training (Jaderberg et al. 2017) of a learning rate: which member trains next,
from whose weights, and at which rate.

All members train for an interval, before the next one begins for any of them. Then the worst
quarter continues from weights and optimiser of members of the best quarter (*exploit*), each
at its parent's rate times one of `FACTORS` (*explore*). What is drawn depends on the seed, the
interval and the member alone, so that a population that was killed goes on as it would have.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from worldmodels.config.space import Range
from worldmodels.errors import TrainingError

FACTORS = (0.8, 1.25)
"""By one of which a learning rate is multiplied when weights are copied."""
QUARTER = 4


@dataclass(frozen=True)
class Interval:
    """Training of one member over one interval.

    Args:
        number: of the interval, from 1.
        member: from 1.
        parent: member from whose weights it goes on; None at the beginning.
        rate: learning rate.
        result: value of the metric at its end; None where the training failed.
        seconds: of work.
    """

    number: int
    member: int
    parent: int | None
    rate: float
    result: float | None = None
    seconds: float = 0.0

    @property
    def folder(self) -> str:
        """Of its run."""
        return folder_of(self.number, self.member)

    def record(self) -> dict[str, Any]:
        """As JSON holds it."""
        return asdict(self)

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Interval:
        """The interval of a `record`; raises what a damaged one gives."""
        return cls(**{part.name: record[part.name] for part in fields(cls)})


def folder_of(number: int, member: int) -> str:
    """The folder of a member's run in an interval, below that of the sweep."""
    return f"interval-{number:03d}/member-{member:03d}"


def ends(epochs: int, interval: int) -> list[int]:
    """Epochs after which each interval ends; the last one may be shorter."""
    return [min(epochs, end) for end in range(interval, epochs + interval, interval)]


class Population:
    """The members of a population; lower results are better.

    Args:
        rates: from which the members' first learning rates are drawn.
        members: number of them, at least four.
        intervals: number of them.
        seed: of all that is drawn.
        done: intervals that ended before, in the order in which `next` gave them.
    """

    def __init__(
        self, rates: Range, members: int, intervals: int, seed: int, done: Sequence[Interval] = ()
    ) -> None:
        self.done = list(done)
        self.members, self.intervals = members, intervals
        self._rates, self._seed = rates, seed

    def next(self) -> Interval | None:
        """The interval that is trained next; None after the last one.

        Raises:
            TrainingError: the training of all members has failed.
        """
        number, member = (part + 1 for part in divmod(len(self.done), self.members))
        if number > self.intervals:
            return None
        generator = self._generator(number, member)
        if number == 1:
            return Interval(number, member, None, _drawn(self._rates, generator))
        last = self.ended(number - 1)
        alive = sorted(
            (one for one in last if one.result is not None),
            key=lambda one: (one.result, one.member),
        )
        if not alive:
            raise TrainingError(
                f"interval {number - 1}: the training of all {self.members} members has failed;"
                " give lower learning rates in sweep.space"
            )
        count = self.members // QUARTER
        kept = alive[: self.members - count]
        own = last[member - 1]
        if own in kept:
            return Interval(number, member, member, own.rate)
        best = kept[:count]
        parent = best[int(generator.integers(len(best)))]
        factor = FACTORS[int(generator.integers(len(FACTORS)))]
        return Interval(number, member, parent.member, parent.rate * factor)

    def ended(self, number: int) -> list[Interval]:
        """Those of the interval `number` that ended, by member."""
        return [one for one in self.done if one.number == number]

    def best(self) -> Interval | None:
        """The member with the best result in the last interval that all have ended."""
        number = len(self.done) // self.members
        found = [one for one in self.ended(number) if one.result is not None]
        return min(found, key=lambda one: (one.result, one.member), default=None)

    def lineage(self, last: Interval) -> list[Interval]:
        """The intervals that led to the weights of `last`, from the first one to it."""
        found = [last]
        while found[0].parent is not None:
            found.insert(0, self.ended(found[0].number - 1)[found[0].parent - 1])
        return found

    def _generator(self, number: int, member: int) -> np.random.Generator:
        sequence = np.random.SeedSequence([self._seed, number, member])
        return np.random.Generator(np.random.Philox(sequence))


def _drawn(rates: Range, generator: np.random.Generator) -> float:
    """A rate between the ends of `rates`."""
    if rates.log:
        low, high = math.log(rates.low), math.log(rates.high)
        return math.exp(generator.uniform(low, high))
    return float(generator.uniform(rates.low, rates.high))
