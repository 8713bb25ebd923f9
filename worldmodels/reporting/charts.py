"""Charts of metrics, as SVG that stands in a page."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from worldmodels.tracking import read_metrics

Row = tuple[int, str, float, float]


def curves(
    path: Path, names: dict[str, str], x_label: str, y_label: str, log: bool = False
) -> str | None:
    """A chart of some metrics of a file over their steps, or None where it has none of them.

    Args:
        names: metric -> label.
    """
    rows = read_metrics(path)
    if not any(row[1] in names for row in rows):
        return None
    figure = Figure(figsize=(6, 3.2), layout="constrained")
    axes = figure.add_subplot()
    for name, label in names.items():
        points = [(row[0], row[2]) for row in rows if row[1] == name]
        if points:
            sparse = len(points) < 30
            axes.plot(*zip(*points, strict=True), label=label, marker="o" if sparse else None, ms=3)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    if log:
        axes.set_yscale("log")
    return _svg(figure)


def over_environment_steps(path: Path) -> str | None:
    """The CMA-ES curve over the steps that were played for it."""
    rows = read_metrics(path)
    steps, total = [], 0.0
    for row in rows:
        if row[1] == "fitness/steps":
            total += row[2]
            steps.append(total)
    if not steps:
        return None
    figure = Figure(figsize=(6, 3.2), layout="constrained")
    axes = figure.add_subplot()
    for name in ("mean", "best"):
        values: Sequence[float] = [row[2] for row in rows if row[1] == f"fitness/{name}"]
        axes.plot(steps, values, label=f"{name} of the generation")
    axes.set_xlabel("environment steps")
    axes.set_ylabel("return")
    return _svg(figure)


def _svg(figure: Figure) -> str:
    axes = figure.axes[0]
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize="small")
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]
