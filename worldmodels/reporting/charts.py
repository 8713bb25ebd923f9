"""Charts as inline SVG in the text colour of the page, each with its numbers as CSV."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, product
from typing import Any

import matplotlib as mpl
import numpy as np
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from worldmodels.files.untrusted import printable

MetricRow = tuple[float, str, float, float]
"""Horizontal position (mostly the step), metric, value, seconds since the start: `tracking.Row`."""

_Point = tuple[float, float]

INK = "#010203"
"""Replaced by ``currentColor``, which matplotlib does not support, in the finished SVG."""

COLOURS = ("#3b82d0", "#cf6a24", "#3f9152", "#a56cc1", "#a5851a", "#c2506b", "#7f7f7f")
"""Line colours with a contrast of at least 3:1 on white and on black (WCAG 2.2, 1.4.11)."""

WIDTH = 4.4
"""Inches: text of 10 points has about 10 pixels on a phone, where a chart has 320."""
_LABEL = 56
"""Characters of a label at most, which may be a name from an untrusted file."""
_COLUMN = 26
"""Characters of a label at most, for a legend of two columns."""

STYLE: dict[str, Any] = {
    "svg.fonttype": "none",  # the page's own font
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "savefig.dpi": 200,
    "xtick.color": INK,
    "ytick.color": INK,
}


@dataclass(frozen=True)
class Chart:
    """Metrics of a chart, and its axes.

    Args:
        lines: metric -> label in the legend. Metrics with one label, such as those of several
            seeds, are thin lines beside their mean.
        x_label: label of the horizontal axis.
        y_label: label of the vertical axis.
        log: logarithmic vertical axis.
        log_x: logarithmic horizontal axis.
        reference: metric that is drawn dashed in the text colour, for comparison.
    """

    lines: Mapping[str, str]
    x_label: str
    y_label: str
    log: bool = False
    log_x: bool = False
    reference: str | None = None


class Drawn(Markup):
    """A chart as an ``<svg>`` element.

    Attributes:
        heading: what it shows, in words.
        csv: its numbers, with a line of column names.
    """

    heading: str
    csv: str


def draw(chart: Chart, rows: Sequence[MetricRow]) -> Drawn | None:
    """Draw a chart; equal arguments give an equal SVG.

    Args:
        chart: what to draw.
        rows: values of any metrics; those that `chart` does not name are ignored.

    Returns:
        An ``<svg>`` element, or None where `rows` has no value of the chart's metrics.
    """
    curves = {
        name: [(float(row[0]), row[2]) for row in rows if row[1] == name] for name in chart.lines
    }
    curves = {name: points for name, points in curves.items() if points}
    if not curves:
        return None
    title = f"{chart.y_label} over {chart.x_label}"
    with mpl.rc_context(STYLE | {"svg.hashsalt": title}):  # type: ignore[arg-type]
        shown = {chart.lines[name]: printable(chart.lines[name], _LABEL) for name in curves}
        columns = 2 if max(map(len, shown.values())) <= _COLUMN else 1
        height = 2.8 + 0.2 * math.ceil(len(shown) / columns)
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        axes = figure.add_subplot()
        labels = dict.fromkeys(chart.lines[name] for name in chart.lines if name != chart.reference)
        styles = dict(zip(labels, cycle(product(("-", "--", ":"), COLOURS))))
        handles = {}
        lines = {
            label: _Lines([curves[name] for name in curves if chart.lines[name] == label], chart)
            for label in shown
        }
        for label, several in lines.items():
            is_reference = chart.lines.get(chart.reference or "") == label
            style, colour = ("--", INK) if is_reference else styles[label]
            handles[label] = several.plot(axes, color=colour, linestyle=style)
        _set_scales(axes, chart)
        finish(axes)
        _add_legend(figure, [(shown[label], line) for label, line in handles.items()], columns)
        ends = [
            f"{name} from {points[0][1]:.4g} to {points[-1][1]:.4g}"
            for label in shown
            for name, points in lines[label].named(shown[label])
        ]
        table = [
            (name, x, value)
            for label in shown
            for name, points in lines[label].named(label)
            for x, value in points
        ]
        numbers = [("line", chart.x_label, chart.y_label), *table]
        return drawn(figure, title, f"{title}: {'; '.join(ends)}", numbers)


class _Lines:
    """The lines of one label.

    Attributes:
        each: their points.
        mean: of several lines, at all positions of their points that each of them covers; empty
            where they have fewer than two positions in common.
    """

    def __init__(self, each: Sequence[Sequence[_Point]], chart: Chart) -> None:
        self.each, self.mean = each, list[_Point]()
        low, high = max(line[0][0] for line in each), min(line[-1][0] for line in each)
        positions = sorted({x for line in each for x, _ in line if low <= x <= high})
        if len(each) > 1 and len(positions) > 1:
            values = [interpolated(line, positions, chart.log_x) for line in each]
            self.mean = list(zip(positions, np.mean(values, axis=0).tolist(), strict=True))

    def named(self, label: str) -> Iterator[tuple[str, Sequence[_Point]]]:
        """Name and points of each line and of the mean."""
        if len(self.each) == 1:
            yield label, self.each[0]
            return
        for number, points in enumerate(self.each, 1):
            yield f"{label}, {number}", points
        if self.mean:
            yield f"{label}, mean", self.mean

    def plot(self, axes: Axes, **style: Any) -> Line2D:
        """Draw the lines; the result stands for them in the legend."""
        for points in self.each:
            marker = "o" if len(points) < 30 else None
            look = {"linewidth": 0.5} if self.mean else {"marker": marker, "markersize": 3}
            (line,) = axes.plot(*zip(*points, strict=True), **style, **look)
        if self.mean:
            (line,) = axes.plot(*zip(*self.mean, strict=True), **style, linewidth=2)
        return line


def interpolated(
    line: Sequence[tuple[float, float]], positions: Sequence[float], log_x: bool
) -> np.ndarray:
    """The values of a line at positions between its points, linear in the position.

    Args:
        line: positions, which increase, and values.
        positions: within those of the line.
        log_x: linear in the logarithm of the position, which is above 0.
    """
    scale = np.log if log_x else np.asarray
    return np.interp(scale(positions), scale([x for x, _ in line]), [y for _, y in line])


def _set_scales(axes: Axes, chart: Chart) -> None:
    """Labels and scales of axes whose lines are drawn."""
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    if chart.log:
        axes.set_yscale("log")
    elif axes.dataLim.y0 == axes.dataLim.y1 == 0:  # a fraction that is always 0 is not negative
        axes.set_ylim(0, 1)
    if chart.log_x:
        axes.set_xscale("log")
    else:  # steps and generations
        locator = MaxNLocator(6, steps=[1, 2, 2.5, 5, 10], integer=True, min_n_ticks=1)
        axes.xaxis.set_major_locator(locator)


def finish(axes: Axes) -> None:
    """The grid and the frame of a chart."""
    axes.grid(alpha=0.2, color=INK)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _add_legend(figure: Figure, lines: Sequence[tuple[str, Line2D]], columns: int) -> None:
    """A legend above the axes, with the label of each of `lines` as it is: matplotlib leaves out
    those that begin with ``_``, and reads ``$`` as mathematics."""
    legend = figure.legend(
        [line for _, line in lines],
        [str(number) for number in range(len(lines))],
        loc="outside upper left",
        ncols=columns,
        frameon=False,
        fontsize=9,
        columnspacing=1,
    )
    for text, (label, _) in zip(legend.get_texts(), lines, strict=True):
        text.set_parse_math(False)
        text.set_text(label)


def drawn(
    figure: Figure, title: str, description: str, numbers: Iterable[Sequence[object]]
) -> Drawn:
    """A finished figure, drawn in `STYLE`.

    Args:
        figure: of matplotlib.
        title: what it shows, in words.
        description: the alternative text.
        numbers: rows of the CSV, the first with the names of the columns.
    """
    buffer, table = io.StringIO(), io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    # Ids of groups are "axes_1" and the like in every chart, and nothing refers to them.
    text = re.sub(r'<g id="[^"]*"', "<g", text[text.index("<svg") :]).replace(INK, "currentColor")
    label = escape(printable(description))
    # Safe as markup: matplotlib escapes the labels of a chart.
    svg = Drawn(text.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1))
    csv.writer(table, lineterminator="\n").writerows(numbers)
    svg.heading, svg.csv = title, table.getvalue()
    return svg
