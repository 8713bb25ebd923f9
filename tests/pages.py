"""Parts of the HTML of a report."""

import re


def rows(page: str, heading: str) -> list[str]:
    """The table rows of the section under `heading`, as texts."""
    section = page[page.index(f"<h2>{heading}</h2>") :]
    section = section[: section.index("</section>")]
    return [re.sub(r"<[^>]+>", " ", row) for row in re.findall(r"<tr>(.*?)</tr>", section)]


def headings(page: str) -> list[str]:
    """The headings of a page, without markup."""
    return re.findall(r"<h[1-6]>(.*?)</h[1-6]>", page)
