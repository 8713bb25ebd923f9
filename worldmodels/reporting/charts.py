"""Charts of metrics, as SVG that stands in a page and takes its text colour."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.figure import Figure

Place = tuple[float, str, float, float]
"""Of a metric: where it is on the horizontal axis, name, value, seconds (see `tracking.Row`)."""

_INK = "#010203"
"""Stands for the page's text colour until the SVG is written."""

_LINES = ("#3b82d0", "#e07b39", "#5aa469", "#a56cc1", "#c9a227", "#c2506b", "#7f7f7f")
"""Legible on white and on black."""

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
    """What a chart shows.

    Args:
        lines: metric -> label.
        x_label: of the horizontal axis.
        y_label: of the vertical axis.
        log: whether the vertical axis is logarithmic.
        log_x: whether the horizontal axis is.
        along: metric whose running sum is the horizontal axis; the step if None.
    """

    lines: Mapping[str, str]
    x_label: str
    y_label: str
    log: bool = False
    log_x: bool = False
    along: str | None = None


def draw(chart: Chart, rows: Sequence[Place]) -> Markup | None:
    """`chart` of metrics as an ``<svg>`` element, or None where `rows` has none of its lines."""
    places = _running_sum(rows, chart.along) if chart.along else None
    salt = {"svg.hashsalt": f"{chart.y_label} {chart.x_label}"}
    with mpl.rc_context(_STYLE | salt):  # type: ignore[arg-type]
        figure = Figure(figsize=(5.6, 3.2), layout="constrained")
        axes = figure.add_subplot()
        for (name, label), colour in zip(chart.lines.items(), _LINES, strict=False):
            points = [(float(row[0]), row[2]) for row in rows if row[1] == name]
            if places is not None:
                points = [
                    (places[int(step)], value) for step, value in points if int(step) in places
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
        axes.grid(alpha=0.2, color=_INK)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize="small")
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    # matplotlib escapes the texts of a chart.
    return Markup(text[text.index("<svg") :].replace(_INK, "currentColor"))


def _running_sum(rows: Sequence[Place], name: str) -> dict[int, float]:
    """Step -> the sum of metric `name` up to it."""
    total, sums = 0.0, {}
    for step, metric, value, _ in rows:
        if metric == name:
            total += value
            sums[int(step)] = total
    return sums
