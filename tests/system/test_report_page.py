"""The page of stage=report in a real browser: phone width, both colour schemes, no requests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from command import run
from waiting import wait_for

pytestmark = pytest.mark.system

# The contrast of every element's own text with the background behind it (WCAG 2.2, 1.4.3).
LOW_CONTRAST = """() => {
    const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const light = (colour) => parts(colour).slice(0, 3).map((value) => value / 255)
        .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
        .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
    const behind = (element) => {
        const colour = getComputedStyle(element).backgroundColor;
        return parts(colour)[3] === 0 ? behind(element.parentElement) : colour;
    };
    const ratio = (element) => {
        const style = getComputedStyle(element);
        const ink = element.closest("svg") ? style.fill : style.color;
        const [low, high] = [light(ink), light(behind(element))].sort((a, b) => a - b);
        return (high + 0.05) / (low + 0.05);
    };
    const texts = [...document.querySelectorAll("body *")].filter((element) =>
        !element.closest("metadata, style") &&
        [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim()));
    return [texts.length, texts.filter((element) => ratio(element) < 4.5).map((e) => e.outerHTML)];
}"""

UNNAMED = """() => [...document.querySelectorAll("img, svg, video")]
    .filter((element) => !(element.alt || element.ariaLabel)).map((element) => element.outerHTML)"""

LEVELS = "() => [...document.querySelectorAll('h1, h2, h3, h4')].map((h) => Number(h.tagName[1]))"


@pytest.fixture(scope="module")
def report(smoke: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run with a long name beside one whose name is markup."""
    data = tmp_path_factory.mktemp("data")
    name, other = "a_name_without_spaces_that_is_too_long_for_a_phone", "<script>"
    for copied in (name, other):
        shutil.copytree(smoke / "smoke", data / copied)
    words = ("preset=smoke", f"run={name}", f'compare=["{other}"]')
    done = run(data, "stage=report", *words)
    assert done.returncode == 0, done.stderr
    return data / name / "report" / "index.html"


@pytest.fixture
def page(request: Any, browser: Any, report: Path) -> Iterator[Any]:
    """The page in a window of a width and a colour scheme; it may request nothing."""
    width, scheme = request.param
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page = context.new_page()
    requests: list[str] = []
    problems: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(report.as_uri())
    yield page
    assert [url for url in requests if not url.startswith("data:")] == [report.as_uri()]
    assert problems == []
    context.close()


@pytest.mark.parametrize("page", [(375, "light"), (320, "light"), (1200, "dark")], indirect=True)
def test_the_page_is_not_wider_than_the_window(page: Any) -> None:
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width == page.viewport_size["width"]


@pytest.mark.parametrize("page", [(1200, "light"), (1200, "dark")], indirect=True)
def test_texts_have_contrast_and_pictures_have_names(page: Any) -> None:
    page.evaluate("document.querySelector('details').open = true")
    number, low = page.evaluate(LOW_CONTRAST)
    assert number > 200
    assert low == []
    assert page.evaluate(UNNAMED) == []


@pytest.mark.parametrize("page", [(1200, "light")], indirect=True)
def test_headings_are_in_order_and_tables_have_headers(page: Any) -> None:
    levels = page.evaluate(LEVELS)
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    tables = page.evaluate(
        "[...document.querySelectorAll('table')].map((t) => t.querySelectorAll('th[scope]').length)"
    )
    assert tables
    assert min(tables) > 1


@pytest.mark.parametrize("page", [(375, "light")], indirect=True)
def test_the_video_has_a_poster_and_plays(page: Any) -> None:
    video = page.locator("video").first
    assert video.evaluate("(video) => video.poster.startsWith('data:image/png')")
    video.evaluate("(video) => { video.play(); }")
    wait_for(lambda: video.evaluate("(video) => video.error !== null || video.currentTime > 0"))
    assert video.evaluate("(video) => video.error") is None
    assert video.evaluate("(video) => [video.videoWidth, video.videoHeight]") == [776, 256]
