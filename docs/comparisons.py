"""The tables of encoders and dynamics models, from what ``benchmarks/model_comparison.py`` wrote.

A value is the mean over seeds, with the least and the greatest of them in brackets. Scores pool the
episodes of all seeds, with the bootstrap interval of their mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tables
from over_seeds import with_range

from worldmodels.reporting.scores import AGENT_IN_DREAM, Score, summarise

PAPER = "paper"
"""The row of the paper's pair of models."""

Result = dict[str, Any]
"""The measures of a row and a seed."""


class Measure(NamedTuple):
    """A figure of a result.

    Args:
        name: of its column.
        of: the figure, or None where a result lacks it.
        digits: after the point.
        better: -1 where less is better, 1 where more is, 0 where neither.
        latents: the figure depends on the encoder's latents: rows with another one are not
            comparable.
        part: ``encoder`` or ``dynamics``: the figure is of this model alone.
    """

    name: str
    of: Callable[[Result], float | None]
    digits: int
    better: int = 0
    latents: bool = False
    part: str | None = None


def _failures(key: str) -> Callable[[Result], float | None]:
    def of(result: Result) -> float | None:
        found: dict[str, float | None] = result["calibration"]["failures"] or {}
        return found.get(key)

    return of


def _difference(steps: int) -> Callable[[Result], float | None]:
    """The size of the difference of predicted and recorded returns."""

    def of(result: Result) -> float | None:
        found = {one["steps"]: one for one in result["calibration"]["horizons"]}
        return abs(found[steps]["difference"]) if steps in found else None

    return of


def _error(steps: int) -> Callable[[Result], float | None]:
    def of(result: Result) -> float | None:
        errors = {one["steps"]: one["error"] for one in result["open_loop"]["errors"]}
        return errors.get(steps)

    return of


def _mean(world: str, policy: str) -> Callable[[Result], float | None]:
    def of(result: Result) -> float | None:
        scores = result["controllers"].get(world, {}).get("scores", {})
        return scores[policy]["mean"] if policy in scores else None

    return of


COSTS = (
    Measure(
        "encoder, M parameters", lambda r: r["encoder"]["parameters"] / 1e6, 2, -1, part="encoder"
    ),
    Measure(
        "dynamics, M parameters",
        lambda r: r["dynamics"]["parameters"] / 1e6,
        2,
        -1,
        part="dynamics",
    ),
    Measure("encoder, epochs", lambda r: r["encoder"]["epochs"], 0),
    Measure("encoder, training s", lambda r: r["encoder"]["training_s"], 0),
    Measure("images/s", lambda r: r["encoder"]["images/s"], 0, 1, part="encoder"),
    Measure("dynamics, epochs", lambda r: r["dynamics"]["epochs"], 0),
    Measure("dynamics, training s", lambda r: r["dynamics"]["training_s"], 0),
    Measure("transitions/s", lambda r: r["dynamics"]["transitions/s"], 0, 1, part="dynamics"),
    Measure("learned model, steps/s", lambda r: r["controllers"]["dream"]["steps/s"], 0, 1),
    Measure("encoder, GB", lambda r: r["encoder"]["peak_bytes"] / 1e9, 2, -1, part="encoder"),
    Measure("dynamics, GB", lambda r: r["dynamics"]["peak_bytes"] / 1e9, 2, -1, part="dynamics"),
)
PREDICTIONS = (
    Measure("validation, nats per dimension", lambda r: r["nll"], 3, -1, latents=True),
    Measure(
        "reconstruction error", lambda r: r["open_loop"]["reconstruction"], 3, -1, part="encoder"
    ),
    *(
        Measure(f"open-loop error, {n} step{'s' * (n > 1)}", _error(n), 2, -1)
        for n in (1, 10, 30, 100)
    ),
    *(Measure(f"return error, {n} steps", _difference(n), 3, -1) for n in (10, 100)),
    Measure("failures: recall", _failures("recall"), 2, 1),
    Measure("precision", _failures("precision"), 2, 1),
    Measure("Brier score", _failures("brier"), 3, -1),
)
SCORES = (
    Measure("trained in the learned model: score", _mean("dream", "agent"), 0, 1),
    Measure("trained in the environment: score", _mean("real", "agent"), 0, 1),
)


def costs(record: dict[str, Any], env: str) -> str:
    """What the models cost: parameters, epochs, seconds, throughput, memory of the process."""
    return _table(_rows(record, env), COSTS)


def predictions(record: dict[str, Any], env: str) -> str:
    """Likelihood, open-loop errors, and calibration of rewards and failures."""
    return _table(_rows(record, env), PREDICTIONS)


def scores(record: dict[str, Any], env: str) -> str:
    """Scores of the controllers in the environment and in the learned model."""
    found = _rows(record, env)
    columns = {
        "trained in the learned model: score": ("dream", "agent"),
        "the same in the learned model": ("dream", AGENT_IN_DREAM),
        "trained in the environment: score": ("real", "agent"),
    }
    every = [one for results in found.values() for one in results]
    parts = {title: key for title, key in columns.items() if _pooled(every, *key)}
    rows = []
    for name, results in found.items():
        cells = [name, str(len(results))]
        for world, policy in parts.values():
            score = _pooled(results, world, policy)
            if score is None:
                cells.append("–")
                continue
            low, high = score.interval
            means = ", ".join(f"{_mean(world, policy)(one):.0f}" for one in results)
            cells.append(f"{score.mean:.0f} ({low:.0f} to {high:.0f}); {means}")
        rows.append(cells)
    return tables.markdown_table(["", "seeds", *parts], rows)


def verdict(record: dict[str, Any], env: str) -> str:
    """For each measure the paper's row, and the others that are better or worse.

    A row is better than another where each of its seeds is better than all of the other's; with
    one seed nothing is said. Where a measure depends on the latents, rows with another encoder are
    left out; where it is of one model alone, rows that have the paper's.
    """
    found = _rows(record, env)
    if PAPER not in found:
        return ""
    others = {name: results for name, results in found.items() if name != PAPER}
    rows = []
    for measure in (*PREDICTIONS, *SCORES, *COSTS):
        paper = _values(measure, found[PAPER])
        if not measure.better or not paper:
            continue
        better, worse = [], []
        for name, results in others.items():
            values = _values(measure, results)
            if min(len(paper), len(values)) < 2 or not _comparable(measure, found[PAPER], results):
                continue
            cell = f"{name}: {_cell(values, measure.digits)}"
            if _all_better(values, paper, measure.better):
                better.append(cell)
            elif _all_better(paper, values, measure.better):
                worse.append(cell)
        cells = (_cell(paper, measure.digits), "; ".join(better) or "–", "; ".join(worse) or "–")
        rows.append((measure.name, *cells))
    return tables.markdown_table(("", "paper", "better", "worse"), rows)


TABLES = {"verdict": verdict, "predictions": predictions, "scores": scores, "costs": costs}
"""Last part of a region's name, after the environment -> who writes it."""


def _all_better(values: Sequence[float], than: Sequence[float], better: int) -> bool:
    """Whether each of some values is better than all others; `better` as in `Measure`."""
    return min(better * value for value in values) > max(better * value for value in than)


def _comparable(measure: Measure, paper: Sequence[Result], other: Sequence[Result]) -> bool:
    """Whether a figure of two rows is of different models, and says the same of both."""
    if measure.part is not None:
        return _name(paper, measure.part) != _name(other, measure.part)
    return not measure.latents or _name(paper, "encoder") == _name(other, "encoder")


def _rows(record: dict[str, Any], env: str) -> dict[str, list[Result]]:
    """Row -> its results, a seed each."""
    found: dict[str, list[Result]] = {}
    for result in record["rows"]:
        if result["env"] == env:
            found.setdefault(result["row"], []).append(result)
    return found


def _name(results: Sequence[Result], part: str) -> str:
    """The name of the encoder or of the dynamics model of a row."""
    return str(results[0][f"{part}_name"])


def _table(found: dict[str, list[Result]], measures: Sequence[Measure]) -> str:
    """A row for each measure, a column for each pair of models; empty without results."""
    if not found:
        return ""
    rows = [["seeds", *(str(len(results)) for results in found.values())]]
    for measure in measures:
        values = (_values(measure, results) for results in found.values())
        rows.append([measure.name, *(_cell(one, measure.digits) for one in values)])
    return tables.markdown_table(["", *found], rows)


def _values(measure: Measure, results: Sequence[Result]) -> list[float]:
    return [value for one in results if (value := measure.of(one)) is not None]


def _cell(values: Sequence[float], digits: int) -> str:
    if not values:
        return "–"
    return with_range(values, f",.{digits}f")


def _pooled(results: Sequence[Result], world: str, policy: str) -> Score | None:
    """The score over the episodes of all seeds; None where a controller was not trained there."""
    found = [one["controllers"].get(world, {}).get("scores", {}).get(policy) for one in results]
    returns = [score["returns"] for score in found if score is not None]
    if not returns:
        return None
    joined = np.concatenate(returns)
    return summarise(policy, joined, range(len(joined)))
