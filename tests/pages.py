"""Parts of the HTML of a report."""

import re


def rows(page: str, heading: str) -> list[str]:
    """The table rows of the section, or of the part of one, under `heading`, as texts."""
    found = re.search(rf"<h([23])>{re.escape(heading)}</h\1>", page)
    assert found, heading
    section = re.split(rf"<h{found[1]}>|</section>", page[found.end() :])[0]
    return [re.sub(r"<[^>]+>", " ", row) for row in re.findall(r"<tr>(.*?)</tr>", section)]


def headings(page: str) -> list[str]:
    """The headings of a page, without markup."""
    return re.findall(r"<h[1-6]>(.*?)</h[1-6]>", page)
