"""What a page is made of: tables, charts and pictures as HTML that needs no other file."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Sequence
from pathlib import Path

from worldmodels.reporting.charts import Chart, draw
from worldmodels.tracking import read_metrics

STYLE = """
:root { color-scheme: light dark; --faint: #8883 }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 66rem; margin: 2rem auto; padding: 0 1rem }
h1, h2 { line-height: 1.2 } h2 { margin-top: 3rem; border-bottom: 1px solid var(--faint) }
.figures { display: flex; flex-wrap: wrap; gap: .5rem 2.5rem; padding: 0; margin: 1.5rem 0 }
.figures div { display: flex; flex-direction: column-reverse }
.figures dt { opacity: .65; font-size: .9rem } .figures dd { margin: 0; font-size: 1.5rem }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .93rem }
td, th { text-align: left; padding: .3rem 1.5rem .3rem 0; border-bottom: 1px solid var(--faint);
  vertical-align: top }
.wide { overflow-x: auto; margin: 1rem 0 }
figure { margin: 1.5rem 0 } figcaption { opacity: .65; font-size: .9rem; margin-top: .3rem }
img { width: 100%; image-rendering: pixelated } video { max-width: 100%; border-radius: 4px }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(20rem, 1fr)); gap: 1rem }
.charts svg { width: 100%; height: auto; font-family: inherit }
.absent { opacity: .65; font-style: italic } code { font-size: .9em }
details { margin: 1rem 0 } summary { cursor: pointer }
"""


def table(rows: Iterable[Sequence[str]], header: Sequence[str]) -> str:
    """Rows of text under a header."""
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    lines = [
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    ]
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(lines)}</table></div>'


def charts(which: Iterable[Chart], folder: Path) -> str:
    """Charts of the metrics of the stage in `folder`, side by side."""
    rows = read_metrics(folder / "metrics.csv")
    drawn = [draw(chart, rows) or "" for chart in which]
    return f'<div class="charts">{"".join(drawn)}</div>'


def picture(path: Path, caption: str) -> str:
    """A picture from a file, if it is there."""
    return figure(path.read_bytes(), caption) if path.exists() else ""


def figure(image: bytes, caption: str) -> str:
    """A PNG under which its caption stands."""
    text = html.escape(caption)
    source = data_url(image, "image/png")
    return f'<figure><img alt="{text}" src="{source}"><figcaption>{text}</figcaption></figure>'


def data_url(content: bytes, kind: str) -> str:
    """Content as the address of itself."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
