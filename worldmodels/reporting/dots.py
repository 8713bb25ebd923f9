"""Scores as distributions: every episode a dot, with the mean and its interval."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from worldmodels.files.untrusted import printable
from worldmodels.reporting.charts import COLOURS, INK, STYLE, WIDTH, Drawn, drawn, finish
from worldmodels.reporting.scores import PaperScore, Score

_ROW = 0.75
"""Inches of a score."""
_GOLDEN = 0.618034
_BITMAP = 1000
"""With more episodes than this, the dots of a score are a bitmap in the SVG: 100,000 take 20 MB."""


def draw_dots(what: str, scores: Sequence[Score], paper: PaperScore | None = None) -> Drawn:
    """Draw the return of every episode, one row for each score, the first one on top.

    Equal arguments give an equal SVG: the vertical place of a dot in its row depends on the number
    of its episode alone.

    Args:
        what: a row is, such as ``policy``.
        scores: at least one; their names are the labels of the rows.
        paper: a published score; its mean is marked.
    """
    title = f"return of every episode by {what}"
    with mpl.rc_context(STYLE | {"svg.hashsalt": title}):  # type: ignore[arg-type]
        figure = Figure(figsize=(WIDTH, 0.8 + _ROW * len(scores)), layout="constrained")
        axes = figure.add_subplot()
        for row, score in enumerate(scores):
            _draw_row(axes, row, score, COLOURS[row % len(COLOURS)])
        if paper is not None:
            axes.axvline(paper.mean, color=INK, ls="--", lw=1)
            place = axes.get_xaxis_transform()
            mark = f"paper {paper.mean:.0f}"
            axes.text(paper.mean, 1.01, mark, transform=place, ha="center", fontsize=9)
        axes.set_ylim(len(scores) - 0.45, -0.6)
        names = [printable(score.name, 40) for score in scores]
        wrapped = [textwrap.fill(name, 14) for name in names]
        axes.set_yticks(range(len(scores)), wrapped, parse_math=False)
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel("return")
        finish(axes)
        axes.grid(visible=False, axis="y")
        axes.spines["left"].set_visible(False)
        described = [
            f"{name}: mean {score.mean:.1f}, lowest {min(score.returns):.1f}, highest"
            f" {max(score.returns):.1f}"
            for name, score in zip(names, scores, strict=True)
        ]
        table = [
            (score.name, seed, value)
            for score in scores
            for seed, value in zip(score.seeds, score.returns, strict=True)
        ]
        numbers = [(what, "seed", "return"), *table]
        return drawn(figure, title, f"{title}. {'; '.join(described)}", numbers)


def _draw_row(axes: Axes, row: int, score: Score, colour: str) -> None:
    """The dots of one score, its interval as a bar, and its mean as a diamond with its value."""
    # Multiples of the golden ratio are spread evenly, and neighbours are far from one another.
    places = [row + 0.44 * (number * _GOLDEN % 1 - 0.5) for number in range(len(score.returns))]
    many = len(places) > _BITMAP
    axes.scatter(score.returns, places, s=16, color=colour, alpha=0.6, lw=0, rasterized=many)
    if score.has_interval:
        axes.plot(score.interval, (row, row), color=INK, lw=2.5, solid_capstyle="butt")
    axes.plot([score.mean], [row], color=INK, marker="D", ms=6)
    value = f"{score.mean:.0f}".replace("-", "\N{MINUS SIGN}")  # as on the axis
    axes.text(score.mean, row - 0.27, value, ha="center", va="bottom", weight="bold")
