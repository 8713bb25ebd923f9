"""mkdocs hooks: the Markdown files at the top of the repository are pages of the site as well.

GitHub shows those files at the top level, and mkdocs reads one folder only. Their links, and links
to them, are rewritten for the site.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
TOP_LEVEL = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
"""File of the repository -> page of the site."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of `TOP_LEVEL`, with their links rewritten."""
    for name, page in TOP_LEVEL.items():
        text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, page, content=_linked(text, "")))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Turn the links of a page of ``docs/`` to files of `TOP_LEVEL` into links to their pages."""
    return _linked(markdown, "../")


def _linked(text: str, folder: str) -> str:
    for name, page in TOP_LEVEL.items():
        text = re.sub(rf"\]\({re.escape(folder + name)}(?=[)#])", f"]({page}", text)
    return text
