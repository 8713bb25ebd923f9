"""Scores of a policy over episodes, with the uncertainty of their mean."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from rich.table import Table
from scipy import stats

CONFIDENCE = 0.95
RESAMPLES = 9999
FEWEST = 3
"""Episodes below which a bootstrap interval means nothing."""

IN_ITS_DREAM = "agent in its dream"
"""Name of the score of an agent where it was trained."""


@dataclass(frozen=True)
class Score:
    """How a policy did.

    Args:
        name: of the policy.
        returns: of each episode.
        seeds: of each episode.
        mean: of the returns.
        std: standard deviation of the returns (n - 1), the paper's ±; 0 for one episode.
        interval: 95 % bootstrap interval of the mean; only the range of the returns where
            `has_interval` is False.
        interquartile_mean: mean of the middle half, less moved by outliers.
    """

    name: str
    returns: tuple[float, ...]
    seeds: tuple[int, ...]
    mean: float
    std: float
    interval: tuple[float, float]
    interquartile_mean: float

    @property
    def has_interval(self) -> bool:
        """Whether the returns are enough, and differ enough, to be resampled."""
        return len(self.returns) >= FEWEST and min(self.returns) < max(self.returns)

    def record(self) -> dict[str, Any]:
        """What ``scores.json`` holds of it, under its name."""
        record = asdict(self)
        del record["name"]
        return record

    @classmethod
    def from_record(cls, name: str, record: Mapping[str, Any]) -> Score:
        """The inverse of `record`."""
        lists = {key: tuple(record[key]) for key in ("returns", "seeds", "interval")}
        return cls(name=name, **{**record, **lists})


@dataclass(frozen=True)
class PaperRow:
    """A published score to stand beside.

    Args:
        name: of the policy.
        mean: of the returns.
        std: of the returns.
        note: the environment and the number of trials.
    """

    name: str
    mean: float
    std: float
    note: str


_V0 = "100 trials, CarRacing-v0"
_DOOM = "100 trials"
PAPER_ROWS: dict[str, list[PaperRow]] = {
    "CarRacing-v3": [
        PaperRow("paper: World Models, full", 906.0, 21.0, _V0),
        PaperRow("paper: V and a hidden layer", 788.0, 141.0, _V0),
        PaperRow("paper: V alone", 632.0, 251.0, _V0),
    ],
    "vizdoom.gymnasium_wrapper:VizdoomTakeCover-v1": [
        PaperRow("paper: World Models, temperature 1.15", 1092.0, 556.0, _DOOM),
        PaperRow("its authors' log, temperature 1.25", 973.0, 540.0, _DOOM),
        PaperRow("paper: random policy", 210.0, 108.0, _DOOM),
    ],
}
"""Tables 1 and 2 of Ha & Schmidhuber 2018, and results.txt of hardmaru/WorldModelsExperiments. Its
older CarRacing differs in details: near, not equal."""


class PaperDreams(NamedTuple):
    """What the paper's agent scored that was trained at a temperature: mean and deviation."""

    dream: tuple[float, float]
    real: tuple[float, float]


PAPER_TEMPERATURES: dict[str, dict[float, PaperDreams]] = {
    "vizdoom.gymnasium_wrapper:VizdoomTakeCover-v1": {
        0.1: PaperDreams((2086, 140), (193, 58)),
        0.5: PaperDreams((2060, 277), (196, 50)),
        1.0: PaperDreams((1145, 690), (868, 511)),
        1.15: PaperDreams((918, 546), (1092, 556)),
        1.3: PaperDreams((732, 269), (753, 139)),
    }
}
"""Table 2 of Ha & Schmidhuber 2018."""


def summarise(name: str, returns: np.ndarray, seeds: Sequence[int]) -> Score:
    """The score of `returns` (episodes,), one for each of `seeds`.

    The interval is the bias-corrected and accelerated bootstrap (Efron 1987) with fixed random
    numbers: equal returns have equal intervals.

    Raises:
        ValueError: no returns, or another number of seeds.
    """
    returns = np.asarray(returns, np.float64)
    if not 0 < len(returns) == len(seeds):
        raise ValueError(f"{name}: {len(returns)} returns for {len(seeds)} seeds")
    return Score(
        name=name,
        returns=tuple(returns.tolist()),
        seeds=tuple(int(seed) for seed in seeds),
        mean=float(returns.mean()),
        std=float(returns.std(ddof=1)) if len(returns) > 1 else 0.0,
        interval=_interval(returns),
        interquartile_mean=float(stats.trim_mean(returns, 0.25)),
    )


def _interval(returns: np.ndarray) -> tuple[float, float]:
    low, high = float(returns.min()), float(returns.max())
    if len(returns) < FEWEST or low == high:
        return low, high
    for method in ("BCa", "percentile"):
        with warnings.catch_warnings():
            # BCa is undefined where the returns are equal but for rounding; SciPy warns of it.
            warnings.simplefilter("ignore")
            low, high = stats.bootstrap(
                (returns,),
                np.mean,
                confidence_level=CONFIDENCE,
                n_resamples=RESAMPLES,
                method=method,
                rng=np.random.default_rng(0),
            ).confidence_interval
        if math.isfinite(low) and math.isfinite(high):
            break
    return float(low), float(high)


def exploited(scores: Sequence[Score]) -> str | None:
    """A line on an agent that exploits its dream: better than random actions there, and no better
    in the game. None where that is not so, or cannot be said of so few episodes."""
    named = {score.name: score for score in scores}
    if not {"agent", "random policy", IN_ITS_DREAM} <= named.keys():
        return None
    agent, random, dream = named["agent"], named["random policy"], named[IN_ITS_DREAM]
    few = len(agent.returns) < FEWEST
    if few or agent.interval[0] > random.mean or dream.interval[0] <= random.mean:
        return None
    return (
        f"The agent exploits its dream: {dream.mean:.0f} there, {agent.mean:.0f} in the game, no"
        f" more than random actions ({random.mean:.0f}). What it does there, M has not seen enough"
        " of: stage=iterate lets it collect, and learns again."
    )


HEADER = ("policy", "mean ± std", "95 % interval", "interquartile mean", "episodes")


def score_rows(scores: Sequence[Score], paper_rows: Sequence[PaperRow]) -> list[tuple[str, ...]]:
    """The cells below `HEADER`; what cannot be said of so few episodes is left empty."""
    rows: list[tuple[str, ...]] = []
    for score in scores:
        spread = f" ± {score.std:.1f}" if len(score.returns) > 1 else ""
        low, high = score.interval
        rows.append(
            (
                score.name,
                f"{score.mean:.1f}{spread}",
                f"{low:.1f} to {high:.1f}" if score.has_interval else "–",
                f"{score.interquartile_mean:.1f}",
                _episodes(score.seeds),
            )
        )
    for row in paper_rows:
        rows.append((row.name, f"{row.mean:.0f} ± {row.std:.0f}", "–", "–", row.note))
    return rows


TEMPERATURE_HEADER = (
    *("temperature", "run", "in its dream", "in the game", "95 % interval of the game"),
    *("paper: dream", "paper: game"),
)


def temperature_rows(
    env_id: str, runs: Sequence[tuple[float, str, Score, Score]], random: Score
) -> list[tuple[str, ...]]:
    """The cells below `TEMPERATURE_HEADER`.

    Args:
        env_id: the environment, for the paper's figures.
        runs: temperature, name of the run, score in its dream, score in the game.
        random: the random policy's score in the game.
    """
    paper = PAPER_TEMPERATURES.get(env_id, {})
    rows = []
    for temperature, name, dream, game in sorted(runs, key=lambda run: run[:2]):
        theirs = paper.get(temperature)
        published = ("–", "–") if theirs is None else tuple(f"{m:.0f} ± {s:.0f}" for m, s in theirs)
        spread = [f"{score.mean:.0f} ± {score.std:.0f}" for score in (dream, game)]
        rows.append((f"{temperature:g}", name, *spread, _interval_cell(game), *published))
    chance = f"{random.mean:.0f} ± {random.std:.0f}"
    rows.append(("–", "random policy", "–", chance, _interval_cell(random), "–", "–"))
    return rows


def _interval_cell(score: Score) -> str:
    low, high = score.interval
    return f"{low:.0f} to {high:.0f}" if score.has_interval else "–"


def _episodes(seeds: Sequence[int]) -> str:
    first, last = seeds[0], seeds[-1]
    if len(seeds) == 1:
        return f"1 (seed {first})"
    if list(seeds) == list(range(first, first + len(seeds))):
        return f"{len(seeds)} (seeds {first} to {last})"
    return f"{len(seeds)}"


def score_table(scores: Sequence[Score], paper_rows: Sequence[PaperRow]) -> Table:
    """The scores and the paper's, for a terminal."""
    table = Table(*HEADER)
    for row in score_rows(scores, paper_rows):
        table.add_row(*row)
    return table
