"""mkdocs hooks: files of the site that are not in ``docs/``.

The Markdown files at the top of the repository are pages of the site as well: GitHub shows them at
the top level, and mkdocs reads one folder only. Their links, and links to them, are rewritten.

The shipped agents are pages to play on, where the packages of the extra ``onnx`` are installed and
ONNX Runtime Web was fetched before: a build of the site does not download.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from worldmodels.config.shipped import PRETRAINED, agents
from worldmodels.export import onnxruntime_web

ROOT = Path(__file__).resolve().parent.parent
TOP_LEVEL = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
"""File of the repository -> page of the site."""
NOTEBOOK = "notebooks/quickstart.ipynb"
"""A file of the repository that the site has for download."""
PLAY = "<!-- shipped -->"
"""Where docs/play.md has links to the pages of the shipped agents."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the notebook, and the pages of `TOP_LEVEL` with their links rewritten."""
    files.append(File.generated(config, NOTEBOOK, abs_src_path=str(ROOT / NOTEBOOK)))
    for name, page in TOP_LEVEL.items():
        text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, page, content=_linked(text, "")))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Turn the links of a page of ``docs/`` to files outside into links within the site."""
    if PLAY in markdown and _playable():
        names = [name.partition("/")[2] for name in agents()]
        links = ", ".join(f'<a href="play/{name}/index.html">{name}</a>' for name in names)
        markdown = markdown.replace(PLAY, f"The shipped agents: {links}.")
    return _linked(markdown, "../")


def on_post_build(config: MkDocsConfig) -> None:
    """Write the pages of the shipped agents."""
    if not _playable():
        return
    from worldmodels.export.folder import write_onnx
    from worldmodels.export.web import write_page

    for name in agents():
        folder = Path(config.site_dir) / "play" / Path(name).name
        write_onnx(folder, PRETRAINED / folder.name, name, 1.0)
        write_page(folder)


@cache
def _playable() -> bool:
    return onnxruntime_web.kept() and all(map(find_spec, ("onnx", "onnxruntime", "onnxscript")))


def _linked(text: str, folder: str) -> str:
    for name, page in (*TOP_LEVEL.items(), (NOTEBOOK, NOTEBOOK)):
        text = re.sub(rf"\]\({re.escape(folder + name)}(?=[)#])", f"]({page}", text)
    return text
