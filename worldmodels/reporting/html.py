"""Pages from the jinja2 templates of ``templates/``.

Autoescape is on: a text from a run's files never becomes markup.
"""

from __future__ import annotations

from collections.abc import Mapping

import jinja2

from worldmodels.files.untrusted import printable

_TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("worldmodels.reporting"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)


def fill(template: str, values: Mapping[str, object]) -> str:
    """A page, with the control characters of its texts as escapes.

    Args:
        template: name of the file.
        values: of its variables.
    """
    page = _TEMPLATES.get_template(template).render(values)
    # A control character in a text of an untrusted file could hide another text.
    return "\n".join(printable(line, len(line) + 1) for line in page.split("\n"))
