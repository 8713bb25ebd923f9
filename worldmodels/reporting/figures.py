"""The charts of a report as files beside its page: SVG, and CSV with their numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup

from worldmodels.files.atomic import atomic_path
from worldmodels.reporting.charts import Drawn


class Shown(NamedTuple):
    """A chart on the page.

    Args:
        svg: the ``<svg>`` element.
        title: what it shows, in words.
        file: name of its files, relative to the page, without ``.svg`` and ``.csv``.
    """

    svg: Markup
    title: str
    file: str


class Figures:
    """Collects the charts of a page, and writes their files."""

    def __init__(self) -> None:
        self._charts: dict[str, Drawn] = {}

    def take(self, section: str, charts: Iterable[Markup | None]) -> list[Shown]:
        """Name the files of the `charts` of a section; None, a chart without values, is left out.

        Args:
            section: first word of the names.
            charts: what `charts.draw` and `dots.draw_dots` return.
        """
        shown = []
        for chart in charts:
            if chart is None:
                continue
            assert isinstance(chart, Drawn)
            name = "-".join(re.findall(r"[a-z0-9]+", f"{section} {chart.heading}".lower()))
            assert name not in self._charts, f"two charts of the name {name}"
            self._charts[name] = chart
            shown.append(Shown(chart, chart.heading, f"figures/{name}"))
        return shown

    def write(self, folder: Path) -> None:
        """Write ``figures/<name>.svg`` and ``figures/<name>.csv`` below the folder of the page."""
        for name, chart in self._charts.items():
            # A file is opened on its own, where no page gives it a colour.
            svg = str(chart).replace("currentColor", "#222222")
            for suffix, text in (("svg", svg), ("csv", chart.csv)):
                with atomic_path(folder / "figures" / f"{name}.{suffix}") as temporary:
                    temporary.write_text(text)
