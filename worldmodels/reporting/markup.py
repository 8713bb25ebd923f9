"""What a page is made of: tables, charts and pictures as HTML that needs no other file.

Every text is escaped by MarkupSafe unless it is `Markup`, which only this package's own templates
and charts are. The page's security policy lets nothing run and nothing be loaded, should one ever
not be.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from pathlib import Path

from markupsafe import Markup

from worldmodels.errors import ArtifactError
from worldmodels.reporting.charts import Chart, draw
from worldmodels.tracking import read_metrics
from worldmodels.untrusted import MEGABYTE, printable, read_bytes

PNG, MP4 = "image/png", "video/mp4"
_MAGIC = {PNG: (0, b"\x89PNG\r\n\x1a\n"), MP4: (4, b"ftyp")}
"""Where in a file its kind is said, and how."""
_MOST = {PNG: 32 * MEGABYTE, MP4: 256 * MEGABYTE}

POLICY = (
    "default-src 'none'; img-src data:; media-src data:; style-src 'unsafe-inline';"
    " base-uri 'none'; form-action 'none'"
)
"""Styles are inline: the page's own, and the attributes that matplotlib writes."""

STYLE = Markup("""
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
""")


def document(title: str, body: Iterable[Markup]) -> str:
    """A whole page."""
    template = Markup(
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width">'
        "<title>{title}</title><style>{style}</style></head><body>{body}</body></html>\n"
    )
    # The quotes of a policy may stand in an attribute as they are.
    filled = template.format(
        policy=Markup(POLICY), title=title, style=STYLE, body=Markup("\n").join(body)
    )
    # Some texts come from files of others: one control character may hide another text.
    return "\n".join(printable(line, len(line) + 1) for line in str(filled).split("\n"))


def paragraph(text: str) -> Markup:
    """Text, or markup, as a paragraph."""
    return Markup("<p>{}</p>").format(text)


def table(rows: Iterable[Sequence[str]], header: Sequence[str]) -> Markup:
    """Rows of text under a header."""
    head = Markup("").join(Markup("<th>{}</th>").format(cell) for cell in header)
    lines = Markup("").join(
        Markup("<tr>{}</tr>").format(Markup("").join(_cell(cell) for cell in row)) for row in rows
    )
    whole = Markup('<div class="wide"><table><tr>{}</tr>{}</table></div>')
    return whole.format(head, lines)


def _cell(text: str) -> Markup:
    return Markup("<td>{}</td>").format(text)


def charts(which: Iterable[Chart], folder: Path) -> Markup:
    """Charts of the metrics of the stage in `folder`, side by side."""
    rows = read_metrics(folder / "metrics.csv")
    return side_by_side(draw(chart, rows) for chart in which)


def side_by_side(drawn: Iterable[Markup | None]) -> Markup:
    """Charts that have something to show."""
    shown = Markup("").join(chart for chart in drawn if chart is not None)
    return Markup('<div class="charts">{}</div>').format(shown)


def picture(path: Path, caption: str) -> Markup:
    """A PNG from a file, if it is there.

    Raises:
        ArtifactError: it is a link, no PNG, or too large for a page.
    """
    content = media(path, PNG)
    return Markup() if content is None else figure(content, caption)


def figure(image: bytes, caption: str) -> Markup:
    """A PNG under which its caption stands."""
    template = Markup('<figure><img alt="{}" src="{}"><figcaption>{}</figcaption></figure>')
    return template.format(caption, data_url(image, PNG), caption)


def film(path: Path, caption: str) -> Markup:
    """A film from a file, if it is there; raises as `picture` does."""
    content = media(path, MP4)
    if content is None:
        return Markup()
    template = Markup(
        '<figure><video controls loop muted playsinline src="{}"></video>'
        "<figcaption>{}</figcaption></figure>"
    )
    return template.format(data_url(content, MP4), caption)


def media(path: Path, kind: str) -> bytes | None:
    """The content of a file that is to stand in a page, None where there is none.

    Raises:
        ArtifactError: it is no regular file, of another kind, or too large.
    """
    if not path.exists() and not path.is_symlink():
        return None
    content = read_bytes(path, _MOST[kind])
    at, magic = _MAGIC[kind]
    if content[at : at + len(magic)] != magic:
        raise ArtifactError(f"{path}: is no {kind}; remove it, or run its stage again")
    return content


def data_url(content: bytes, kind: str) -> str:
    """Content as the address of itself."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
