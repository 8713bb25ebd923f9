"""Scores of a policy over episodes, with the uncertainty of their mean, and the paper's scores."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from rich.table import Table
from scipy import stats

CONFIDENCE = 0.95
RESAMPLES = 9999
_TOGETHER = 2**22
"""Returns of resamples that are in memory at once: 34 MB for each array of them."""
MIN_EPISODES = 3
"""Fewest episodes for which a bootstrap interval is computed."""

WORST = ("worst", "worst-2", "worst-3")
"""Names of the videos of the episodes with the lowest returns, from the lowest on."""
RANDOM = "random policy"
AGENT_IN_DREAM = "agent in the dream"
"""Name of the score of an agent in the dream in which its controller was trained."""


@dataclass(frozen=True)
class Score:
    """Returns of one policy, summarised.

    Args:
        name: of the policy.
        returns: sum of rewards of each episode.
        seeds: environment seed of each episode.
        mean: of the returns.
        std: sample standard deviation of the returns (n - 1), as in the paper; 0 for one episode.
        interval: 95 % bootstrap confidence interval of the mean; the minimum and maximum of the
            returns where `has_interval` is False.
        interquartile_mean: mean of the middle half of the returns, robust against outliers.
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
        """Whether there are at least `MIN_EPISODES` returns, not all of them equal."""
        return len(self.returns) >= MIN_EPISODES and min(self.returns) < max(self.returns)

    def record(self) -> dict[str, Any]:
        """The fields for ``scores.json``, where they stand under the policy's name."""
        record = asdict(self)
        del record["name"]
        return record


@dataclass(frozen=True)
class PaperScore:
    """A published score, for comparison.

    Args:
        name: of the policy, with its source.
        mean: of the returns.
        std: of the returns.
        note: number of trials and environment.
    """

    name: str
    mean: float
    std: float
    note: str


_V0 = "100 trials, CarRacing-v0"
_DOOM = "100 trials"
PAPER_SCORES: dict[str, list[PaperScore]] = {
    "CarRacing-v3": [
        PaperScore("paper: full world model", 906.0, 21.0, _V0),
        PaperScore("paper: VAE, controller with a hidden layer", 788.0, 141.0, _V0),
        PaperScore("paper: VAE without MDN-RNN", 632.0, 251.0, _V0),
    ],
    "vizdoom.gymnasium_wrapper:VizdoomTakeCover-v1": [
        PaperScore("paper: temperature 1.15", 1092.0, 556.0, _DOOM),
        PaperScore("paper's repository: temperature 1.25", 973.0, 540.0, _DOOM),
        PaperScore("paper: random policy", 210.0, 108.0, _DOOM),
    ],
}
"""Environment -> published scores: Ha & Schmidhuber 2018, tables 1 and 2, and results.txt of
hardmaru/WorldModelsExperiments. CarRacing-v0 differs from CarRacing-v3 in details. They are here
because the stages evaluate, iterate and report print them beside the scores of a run."""


def summarise(name: str, returns: np.ndarray, seeds: Sequence[int]) -> Score:
    """Summarise the returns of a policy.

    The interval is the bias-corrected and accelerated bootstrap (Efron 1987) of
    `scipy.stats.bootstrap` with a fixed random seed: equal returns give equal intervals. The
    interquartile mean is `scipy.stats.trim_mean` without the lowest and highest quarter.

    Args:
        name: of the policy.
        returns: (episodes,).
        seeds: (episodes,).

    Raises:
        ValueError: there are no returns, or not as many as seeds.
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
    if len(returns) < MIN_EPISODES or low == high:
        return low, high
    for method in ("BCa", "percentile"):
        with warnings.catch_warnings():
            # BCa is undefined where returns differ only by rounding; SciPy warns and returns NaN.
            warnings.simplefilter("ignore")
            low, high = stats.bootstrap(
                (returns,),
                np.mean,
                confidence_level=CONFIDENCE,
                n_resamples=RESAMPLES,
                batch=max(1, _TOGETHER // len(returns)),
                method=method,
                rng=np.random.default_rng(0),
            ).confidence_interval
        if math.isfinite(low) and math.isfinite(high):
            break
    return float(low), float(high)


def video_episodes(returns: Sequence[float]) -> dict[str, int]:
    """Name of a video -> number of the episode that it shows: the median one, and those of `WORST`
    with the lowest returns that are worse.

    Args:
        returns: (episodes,), at least one.
    """
    order = np.argsort(returns).tolist()
    middle = (len(order) - 1) // 2
    return {"median": order[middle]} | dict(zip(WORST, order[:middle], strict=False))


def exploitation_warning(scores: Sequence[Score]) -> str | None:
    """A warning where the controller exploits errors of the dynamics model.

    That is: in the dream the agent is better than random actions, in the environment it is not,
    both by the lower end of the 95 % interval.

    Args:
        scores: of ``agent``, ``random policy`` and `AGENT_IN_DREAM`, in any order.

    Returns:
        One sentence or two, or None where that is not so, where one of the scores is missing, or
        where there are fewer than `MIN_EPISODES` episodes.
    """
    named = {score.name: score for score in scores}
    if not {"agent", RANDOM, AGENT_IN_DREAM} <= named.keys():
        return None
    agent, random, dream = named["agent"], named[RANDOM], named[AGENT_IN_DREAM]
    few = len(agent.returns) < MIN_EPISODES
    if few or agent.interval[0] > random.mean or dream.interval[0] <= random.mean:
        return None
    return (
        f"The controller exploits the dynamics model: mean return {dream.mean:.0f} in the dream,"
        f" {agent.mean:.0f} in the environment, where random actions reach {random.mean:.0f}."
        " The training data lacks what this controller does: stage=iterate collects episodes with"
        " it and trains again."
    )


SCORE_HEADER = ("policy", "mean ± std", "95 % interval", "interquartile mean", "episodes")


def score_rows(
    scores: Sequence[Score], paper_scores: Sequence[PaperScore]
) -> list[tuple[str, ...]]:
    """The cells below `SCORE_HEADER`; a dash where there are too few episodes for a statistic."""
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
    for paper in paper_scores:
        rows.append((paper.name, f"{paper.mean:.0f} ± {paper.std:.0f}", "–", "–", paper.note))
    return rows


class DreamTrained(NamedTuple):
    """A run whose controller was trained in the dream, and its two scores.

    Args:
        temperatures: of the training: one, or that at its end and that at its beginning.
        run: its name.
        dream: score in the dream, at the temperature of the end.
        environment: score in the environment.
    """

    temperatures: tuple[float, ...]
    run: str
    dream: Score
    environment: Score


TEMPERATURE_HEADER = (
    *("temperature", "run", "score in the dream", "score in the environment"),
    "95 % interval in the environment",
)


def temperature_rows(runs: Sequence[DreamTrained], random: Score) -> list[tuple[str, ...]]:
    """The cells below `TEMPERATURE_HEADER`, by temperature.

    Args:
        runs: in any order.
        random: the random policy's score in the environment, for the last row.
    """
    rows = []
    for run in sorted(runs, key=lambda run: run[:2]):
        spread = [f"{score.mean:.0f} ± {score.std:.0f}" for score in (run.dream, run.environment)]
        temperature = " to ".join(f"{value:g}" for value in reversed(run.temperatures))
        rows.append((temperature, run.run, *spread, _interval_cell(run.environment)))
    chance = f"{random.mean:.0f} ± {random.std:.0f}"
    rows.append(("–", "random policy", "–", chance, _interval_cell(random)))
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


def score_table(scores: Sequence[Score], paper_scores: Sequence[PaperScore]) -> Table:
    """The cells of `score_rows` as a table for the terminal."""
    table = Table(*SCORE_HEADER)
    for row in score_rows(scores, paper_scores):
        table.add_row(*row)
    return table
