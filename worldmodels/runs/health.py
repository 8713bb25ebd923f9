"""Ranges of logged figures that recorded runs stayed in; the page docs/follow.md has them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby

PAGE = "docs/follow.md"
ACTIVE_SHARE = 0.1
"""Of the latent dimensions, at least; recorded runs had 0.21 and more."""
EVALUATIONS = 7
"""Evaluations in a row without a new highest mean from which a search is flat; recorded runs had up
to 3."""
SPREAD, SINCE_BEST = "fitness/spread", "selection/since_best"
"""Figures of a search that follow from logged ones: best minus worst candidate of a generation, and
evaluations since the one with the highest mean."""


@dataclass(frozen=True)
class Range:
    """Where a figure is healthy.

    Args:
        metric: its name.
        low: it is at least this.
        high: it is below this.
        outside: what another value means.
        after: step before which nothing is said.
    """

    metric: str
    outside: str
    low: float = -math.inf
    high: float = math.inf
    after: int = 0

    def in_words(self) -> str:
        """The range, such as ``at least 3.2``."""
        return f"at least {self.low:g}" if math.isfinite(self.low) else f"below {self.high:.4g}"

    def contains(self, value: float) -> bool:
        """Whether `value` is healthy."""
        return self.low <= value < self.high


def of_encoder(latent_size: int) -> tuple[Range, ...]:
    """The ranges of the stage ``vae``."""
    collapse = (
        "the KL term has collapsed, most latent dimensions have no information about the frame;"
        " more data, more epochs or a lower vae.learning_rate may help"
    )
    return (Range("validation/active_dims", collapse, low=ACTIVE_SHARE * latent_size),)


def of_dynamics(copy_last: float, steps: int) -> tuple[Range, ...]:
    """The ranges of the stage ``rnn``.

    Args:
        copy_last: likelihood of the next latent around the last one, nats per dimension.
        steps: of the training, in the first half of which nothing is said.
    """
    useless = (
        "the model predicts the next latent no better than a Gaussian around the last one"
        " (copy_last); more data or more rnn.epochs may help"
    )
    return (Range("validation/nll", useless, high=copy_last, after=steps // 2),)


def of_search() -> tuple[Range, ...]:
    """The ranges of the stage ``controller``."""
    flat = "all candidates score alike, and CMA-ES has nothing to choose by: raise controller.sigma"
    stale = "the search is flat: its mean has not risen; it may be at its end"
    return (
        Range(SPREAD, f"{flat} or controller.episodes", low=1e-9),
        Range(SINCE_BEST, stale, high=EVALUATIONS),
    )


class Health:
    """Judges the figures of a stage; each one outside its range is named once.

    Args:
        ranges: of the stage.
    """

    def __init__(self, ranges: Iterable[Range]) -> None:
        self._ranges = list(ranges)
        self._highest, self._since = -math.inf, 0

    def judge(self, step: int, values: Mapping[str, float]) -> list[str]:
        """What to say about the figures of a step, usually nothing.

        Args:
            step: of the stage.
            values: metric -> value.
        """
        known = {**values, **self._derived(values)}
        wrong = [
            one
            for one in self._ranges
            if step >= one.after and one.metric in known and not one.contains(known[one.metric])
        ]
        self._ranges = [one for one in self._ranges if one not in wrong]
        return [
            f"step {step}: {one.metric} is {known[one.metric]:.4g}, healthy is {one.in_words()}:"
            f" {one.outside} ({PAGE})"
            for one in wrong
        ]

    def replay(self, rows: Iterable[tuple[int, str, float, float]]) -> None:
        """Take account of figures that an earlier process has judged: rows of a metrics file."""
        for step, group in groupby(rows, lambda row: row[0]):
            self.judge(step, {name: value for _, name, value, _ in group})

    def _derived(self, values: Mapping[str, float]) -> dict[str, float]:
        derived: dict[str, float] = {}
        if "fitness/best" in values:
            derived[SPREAD] = values["fitness/best"] - values["fitness/worst"]
        mean = values.get("selection/mean", values.get("novelty/mean"))
        if mean is not None:
            self._since = 0 if mean > self._highest else self._since + 1
            self._highest = max(self._highest, mean)
            derived[SINCE_BEST] = self._since
        return derived
