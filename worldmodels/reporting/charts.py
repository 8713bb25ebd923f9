"""Charts of metrics as inline SVG in the text colour of the page."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

MetricRow = tuple[float, str, float, float]
"""Horizontal position (mostly the step), metric, value, seconds since the start: `tracking.Row`."""

_INK = "#010203"
"""Replaced by ``currentColor``, which matplotlib does not support, in the finished SVG."""

_LINES = ("#3b82d0", "#e07b39", "#5aa469", "#a56cc1", "#c9a227", "#c2506b", "#7f7f7f")
"""Line colours with contrast on white and on black."""

_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",  # the page's own font
    "font.size": 10,
    "text.color": _INK,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "xtick.color": _INK,
    "ytick.color": _INK,
}


@dataclass(frozen=True)
class Chart:
    """Metrics of a chart, and its axes.

    Args:
        lines: metric -> label in the legend.
        x_label: label of the horizontal axis.
        y_label: label of the vertical axis.
        log: logarithmic vertical axis.
        log_x: logarithmic horizontal axis.
        along: metric whose cumulative sum is the horizontal axis; None for the position in the
            rows.
    """

    lines: Mapping[str, str]
    x_label: str
    y_label: str
    log: bool = False
    log_x: bool = False
    along: str | None = None


def draw(chart: Chart, rows: Sequence[MetricRow]) -> Markup | None:
    """Draw a chart; equal arguments give an equal SVG.

    Args:
        chart: what to draw.
        rows: values of any metrics; those that `chart` does not name are ignored.

    Returns:
        An ``<svg>`` element, or None where `rows` has no value of the chart's metrics.
    """
    positions = _cumulative_sum(rows, chart.along) if chart.along else None
    salt = {"svg.hashsalt": f"{chart.y_label} {chart.x_label}"}
    with mpl.rc_context(_STYLE | salt):  # type: ignore[arg-type]
        figure = Figure(figsize=(5.6, 3.2), layout="constrained")
        axes = figure.add_subplot()
        for (name, label), colour in zip(chart.lines.items(), _LINES, strict=False):
            points = [(float(row[0]), row[2]) for row in rows if row[1] == name]
            if positions is not None:
                points = [
                    (positions[int(step)], value)
                    for step, value in points
                    if int(step) in positions
                ]
            if points:
                marker = "o" if len(points) < 30 else None
                axes.plot(
                    *zip(*points, strict=True), label=label, color=colour, marker=marker, ms=3
                )
        if not axes.lines:
            return None
        axes.set_xlabel(chart.x_label)
        axes.set_ylabel(chart.y_label)
        if chart.log:
            axes.set_yscale("log")
        if chart.log_x:
            axes.set_xscale("log")
        else:  # steps and generations
            steps = [1, 2, 2.5, 5, 10]
            locator = MaxNLocator("auto", steps=steps, integer=True, min_n_ticks=1)
            axes.xaxis.set_major_locator(locator)
        axes.grid(alpha=0.2, color=_INK)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize="small")
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    # Safe as markup: matplotlib escapes the labels of a chart.
    return Markup(text[text.index("<svg") :].replace(_INK, "currentColor"))


def _cumulative_sum(rows: Sequence[MetricRow], name: str) -> dict[int, float]:
    """Step -> sum of the metric `name` up to and including it."""
    total, sums = 0.0, {}
    for step, metric, value, _ in rows:
        if metric == name:
            total += value
            sums[int(step)] = total
    return sums
