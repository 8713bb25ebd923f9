"""The trials of a sweep as a figure: results by trial, and against the values of each key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from worldmodels.config.space import Choices, Range, Space
from worldmodels.config.usage import written
from worldmodels.reporting.charts import COLOURS, INK, STYLE, WIDTH, Drawn, drawn, finish

_PANEL = 1.7
"""Inches."""


class Tried(NamedTuple):
    """A finished trial.

    Args:
        number: from 1.
        result: value of the metric.
        values: of the keys, in the order of the space.
    """

    number: int
    result: float
    values: tuple[object, ...]


def draw_trials(metric: str, trials: Sequence[Tried], space: Space) -> Drawn | None:
    """A panel of the results by trial, and one of them against the values of each key.

    Args:
        metric: its name.
        trials: finished ones, the best first.
        space: what was searched.

    Returns:
        None without trials.
    """
    if not trials:
        return None
    title = f"{metric} of the trials"
    with mpl.rc_context(STYLE | {"svg.hashsalt": title}):  # type: ignore[arg-type]
        panels = 1 + len(space)
        figure = Figure(figsize=(WIDTH, 0.3 + _PANEL * panels), layout="constrained")
        first, *others = figure.subplots(panels, squeeze=False)[:, 0]
        _mark(first, [float(trial.number) for trial in trials], trials)
        first.set_xlabel("trial")
        first.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
        for column, (axes, (key, values)) in enumerate(zip(others, space.items(), strict=True)):
            _draw_key(axes, values, [trial.values[column] for trial in trials], trials)
            axes.set_xlabel(key, parse_math=False)
        for axes in (first, *others):
            axes.set_ylabel(metric, parse_math=False)
            finish(axes)
        best = trials[0]
        described = ", ".join(
            f"{key} {written(value)}" for key, value in zip(space, best.values, strict=True)
        )
        numbers = [
            ("trial", metric, *space),
            *((trial.number, trial.result, *map(written, trial.values)) for trial in trials),
        ]
        text = f"{title}. The best is trial {best.number} with {best.result:.5g}: {described}"
        return drawn(figure, title, text, numbers)


def _draw_key(
    axes: Axes, known: Range | Choices, tried: Sequence[object], trials: Sequence[Tried]
) -> None:
    """The results against the values of a key, on its scale."""
    if isinstance(known, Choices):
        names = [written(value) for value in known.values]
        places = [float(names.index(written(value))) for value in tried]
        axes.set_xticks(range(len(names)), names, parse_math=False)
        axes.set_xlim(-0.5, len(names) - 0.5)
    else:
        places = [float(str(value)) for value in tried]
        if known.log:
            axes.set_xscale("log")
        axes.set_xlim(known.low, known.high)
    _mark(axes, places, trials)


def _mark(axes: Axes, places: Sequence[float], trials: Sequence[Tried]) -> None:
    """A dot for each trial, and a ring around the best."""
    results = [trial.result for trial in trials]
    axes.scatter(places, results, s=18, color=COLOURS[0], alpha=0.8, lw=0, clip_on=False)
    axes.scatter(
        places[:1], results[:1], s=70, facecolor="none", edgecolor=INK, lw=1.2, clip_on=False
    )
