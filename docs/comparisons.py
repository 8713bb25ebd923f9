"""The tables of encoders and dynamics models, from what ``benchmarks/model_comparison.py`` wrote.

A value is the mean over seeds, with the least and the greatest of them in brackets; a score has its
95 % interval over seeds by Student's t instead, and then the seeds one by one.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tables
from over_seeds import interval, with_interval, with_range

from worldmodels.reporting.scores import AGENT_IN_DREAM

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
    parts = {
        title: Measure(title, _mean(*key), 0)
        for title, key in columns.items()
        if _values(Measure(title, _mean(*key), 0), every)
    }
    rows = []
    for name, results in found.items():
        cells = [name, str(len(results))]
        for measure in parts.values():
            means = _values(measure, results)
            seeds = ", ".join(f"{mean:.0f}" for mean in means)
            cells.append(f"{with_interval(means, '.0f')}; {seeds}" if means else "–")
        rows.append(cells)
    return tables.markdown_table(["", "seeds", *parts], rows)


def verdict(record: dict[str, Any], env: str) -> str:
    """For each measure the paper's row, and the others that are better or worse.

    A row is better or worse than the paper's where the 95 % interval of the difference, paired by
    seed, is above or below zero; with fewer than three seeds nothing is said. Where a measure
    depends on the latents, rows with another encoder are left out; where it is of one model alone,
    rows that have the paper's.
    """
    found = _rows(record, env)
    if PAPER not in found:
        return ""
    others = {name: results for name, results in found.items() if name != PAPER}
    rows, compared, named = [], 0, 0
    for measure in (*PREDICTIONS, *SCORES, *COSTS):
        if not measure.better or not _values(measure, found[PAPER]):
            continue
        better, worse = [], []
        for name, results in others.items():
            if not _comparable(measure, found[PAPER], results):
                continue
            differences = _differences(measure, results, found[PAPER])
            between = interval(differences) if differences else None
            if between is None:
                continue
            low, high = sorted(measure.better * bound for bound in between)
            mean = format(statistics.mean(_values(measure, results)), f",.{measure.digits}f")
            digits = measure.digits + (measure.digits > 0)
            cell = f"{name}: {mean}, {with_interval(differences, f'+,.{digits}f')}"
            compared += measure not in COSTS
            named += measure not in COSTS and not low <= 0 <= high
            if low > 0:
                better.append(cell)
            elif high < 0:
                worse.append(cell)
        paper = _cell(_values(measure, found[PAPER]), measure.digits)
        rows.append((measure.name, paper, "; ".join(better) or "–", "; ".join(worse) or "–"))
    table = tables.markdown_table(("", "paper", "better", "worse"), rows)
    return (
        f"{table.rstrip()}\n\nOf {compared} differences of predictions and scores {named} are"
        " shown; if no models differed, one in 20 would be expected by chance.\n"
    )


TABLES = {"verdict": verdict, "predictions": predictions, "scores": scores, "costs": costs}
"""Last part of a region's name, after the environment -> who writes it."""


def _differences(
    measure: Measure, results: Sequence[Result], paper: Sequence[Result]
) -> list[float]:
    """A measure of a row less the paper's, for each seed that has both."""
    of_paper = {one["seed"]: measure.of(one) for one in paper}
    return [
        value - other
        for one in results
        if (value := measure.of(one)) is not None
        and (other := of_paper.get(one["seed"])) is not None
    ]


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
