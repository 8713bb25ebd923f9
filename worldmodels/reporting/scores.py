"""Scores of a policy over episodes, with the uncertainty of their mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from rich.table import Table
from scipy import stats


@dataclass(frozen=True)
class Score:
    """How a policy did.

    Args:
        name: of the policy.
        mean: of the returns.
        std: standard deviation over episodes (n - 1), the paper's ±.
        interval: 95 % bootstrap interval of the mean; as wide as one point where all are equal.
        interquartile_mean: mean of the middle half, less moved by outliers.
        returns: of each episode.
        seeds: of each episode.
    """

    name: str
    mean: float
    std: float
    interval: tuple[float, float]
    interquartile_mean: float
    returns: tuple[float, ...]
    seeds: tuple[int, ...]

    def record(self) -> dict[str, Any]:
        """What ``scores.json`` holds of it."""
        record = asdict(self)
        del record["name"]
        return record


@dataclass(frozen=True)
class PaperRow:
    """A published score to stand beside."""

    name: str
    mean: float
    std: float
    note: str


PAPER_ROWS = {
    "CarRacing-v3": [
        PaperRow("paper, full model", 906.0, 21.0, "CarRacing-v0, 100 tracks (Ha & Schmidhuber)"),
    ]
}


def summarise(name: str, returns: np.ndarray, seeds: Sequence[int]) -> Score:
    """The score of `returns` (episodes,), one for each of `seeds`.

    The interval is SciPy's bias-corrected and accelerated bootstrap (Efron 1987). With fewer than
    three episodes, or equal returns, that is not defined, and the range of the returns is given.
    """
    returns = np.asarray(returns, np.float64)
    low, high = float(returns.min()), float(returns.max())
    if len(returns) >= 3 and low < high:
        interval = stats.bootstrap(
            (returns,), np.mean, confidence_level=0.95, rng=np.random.default_rng(0)
        ).confidence_interval
        low, high = float(interval.low), float(interval.high)
    return Score(
        name=name,
        mean=float(returns.mean()),
        std=float(returns.std(ddof=1)) if len(returns) > 1 else 0.0,
        interval=(low, high),
        interquartile_mean=float(stats.trim_mean(returns, 0.25)),
        returns=tuple(returns.tolist()),
        seeds=tuple(seeds),
    )


def score_table(scores: Sequence[Score], paper: Sequence[PaperRow]) -> Table:
    """The scores and the paper's, for a terminal."""
    table = Table("policy", "mean ± std", "95 % interval", "interquartile mean", "episodes")
    for score in scores:
        table.add_row(
            score.name,
            f"{score.mean:.1f} ± {score.std:.1f}",
            f"{score.interval[0]:.1f} to {score.interval[1]:.1f}",
            f"{score.interquartile_mean:.1f}",
            f"{len(score.returns)} (seeds {score.seeds[0]} to {score.seeds[-1]})",
        )
    for row in paper:
        table.add_row(row.name, f"{row.mean:.0f} ± {row.std:.0f}", "", "", row.note)
    return table
