"""The report page: its contents, and that no text of a run's files becomes markup."""

import base64
import csv
import functools
import os
import re
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from command import ALONE, error_line, run
from pages import headings, rows

from worldmodels.errors import ArtifactError
from worldmodels.files.atomic import read_json, write_json
from worldmodels.reporting.figures import Figures
from worldmodels.reporting.open_loop import OpenLoopResult, OpenLoopRollout, Trajectories
from worldmodels.reporting.page import STAGES, render
from worldmodels.reporting.pictures import EpisodeComparison
from worldmodels.reporting.reproducibility import CHECKLIST, render_checklist
from worldmodels.reporting.scores import AGENT_IN_DREAM
from worldmodels.runs import tracking


class _Reader(HTMLParser):
    """Checks that elements nest, and collects text and what the page would load."""

    VOID = frozenset({"meta", "img"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.sources: list[str] = []
        self.links: list[str] = []
        self.text: list[str] = []
        self.elements: set[str] = set()
        self.attributes: set[str] = set()
        self.policy = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        self._note(tag, attrs)
        found = self.links if tag == "a" else self.sources  # a link loads nothing by itself
        found += [value or "" for name, value in attrs if name in ("src", "href", "poster")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An element of SVG that closes itself opens nothing."""
        self._note(tag, attrs)

    def _note(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.elements.add(tag)
        self.attributes |= named.keys()
        if named.get("http-equiv") == "Content-Security-Policy":
            self.policy = named["content"] or ""

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_a_report_without_stages_names_the_missing_ones() -> None:
    reader = _Reader()
    reader.feed(render("a <b> & c", {}, None))
    assert (reader.open, reader.sources) == ([], [])
    text = " ".join(reader.text)
    assert "a <b> & c" in text
    for stage in ("rollouts", "vae", "rnn", "controller", "evaluate"):
        assert f"The stage '{stage}' of this run is not finished." in text


def test_scores_in_the_dream_stand_beside_those_in_the_environment(
    smoke: Path, tmp_path: Path
) -> None:
    for stage in ("controller", "evaluate"):
        (tmp_path / stage).mkdir()
        shutil.copy(smoke / "smoke" / stage / "manifest.json", tmp_path / stage)
    path = tmp_path / "evaluate/scores.json"
    scores = read_json(smoke / "smoke/evaluate/scores.json")
    write_json(path, scores)
    with pytest.raises(ArtifactError, match=f"{AGENT_IN_DREAM}' is missing; run") as raised:
        render("a", {}, None, dream_trained={"<b>": tmp_path})
    assert str(raised.value).startswith(f"{path}: ")
    write_json(path, scores | {AGENT_IN_DREAM: scores["agent"] | {"mean": 1234.0, "std": 5.0}})
    page = render("a", {}, None, dream_trained={"<b>": tmp_path})
    _, run_row, random_row = rows(page, "Controllers trained in the dream")
    assert "&lt;b&gt;" in run_row
    assert "1234 ± 5" in run_row
    assert f"{scores['agent']['mean']:.0f} ± {scores['agent']['std']:.0f}" in run_row
    assert "random policy" in random_row


def test_predicted_terminations_are_counted_beside_recorded_ones() -> None:
    def trajectories(*ends: int | None) -> Trajectories:
        """Episodes of 40 steps with reward 1 per step, terminated at the step `end`."""
        terminated = np.zeros((len(ends), 40))
        for episode, end in enumerate(ends):
            terminated[episode, 40 if end is None else end - 1 :] = 1
        return Trajectories(1 - terminated, terminated)

    error = np.tile(np.linspace(0, 2, 40), (3, 1))
    predicted = OpenLoopRollout(0.5, trajectories(20, 40, None), error)
    image = np.zeros((4, 4, 4), np.uint8)
    lengths = np.array([40, 40, 40])
    result = OpenLoopResult(
        lengths, trajectories(None, 40, 40), 2.0, (predicted,), image, (0, 39), 7
    )
    header, row = rows(render("a", {}, None, result), "Open-loop predictions")
    assert "terminated in the environment" in header
    # Two terminated, one of these also in the prediction, one prediction ended early.
    assert row.split() == ["0.5", "2", "of", "3", "1", "1", "21", f"{98 / 118:.2f}"]


INJECTED = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(2)>',
    "' onmouseover='alert(3)",
    "</style></title><svg onload=alert(4)>",
    "{{ 7 * 7 }} {stage} %s &lt;b&gt; javascript:alert(5)",
    "-->]]><iframe src=//x>",
)


def poisoned(value: Any, text: str) -> Any:
    """A value of JSON with `text` after each of its texts."""
    if isinstance(value, str):
        return value + text
    if isinstance(value, list):
        return [poisoned(item, text) for item in value]
    if isinstance(value, dict):
        return {key: poisoned(item, text) for key, item in value.items()}
    return value


FREE = ("inputs", "versions", "throughput", "peak_bytes", "validation_nll", "config")


def poisoned_names(value: Any, text: str, free: bool = False) -> Any:
    """The same with `text` in the names of the objects that take any."""
    if isinstance(value, dict):
        named = {key: poisoned_names(item, text, key in FREE) for key, item in value.items()}
        return named | ({text: next(iter(value.values()), 0)} if free and value else {})
    return value


@pytest.mark.parametrize("text", INJECTED)
def test_no_text_of_a_runs_files_becomes_markup(copy: Path, text: str) -> None:
    folders = {stage: copy / "smoke" / stage for stage in STAGES}
    for folder in folders.values():
        path = folder / "manifest.json"
        write_json(path, poisoned(poisoned_names(read_json(path), text), text))
    path = folders["evaluate"] / "scores.json"
    write_json(path, read_json(path) | {f"agent {text}": read_json(path)["agent"]})
    for stage in ("vae", "rnn", "controller"):
        with (folders[stage] / "metrics.csv").open("a", newline="") as file:
            csv.writer(file).writerow((1, f"train/kl{text}", 1.0, 1.0))
    image = np.zeros((4, 4, 3), np.uint8)
    runs, figures = {text: folders, f"other {text}": folders}, Figures()
    page = render(
        text, folders, EpisodeComparison(image, (0, 1), 7), compared=runs, figures=figures
    )
    reader = _Reader()
    reader.feed(page)
    checklist = _Reader()
    checklist.feed(render_checklist(text, folders))
    for read in (reader, checklist):
        assert read.open == []
        assert not read.elements & {"script", "iframe", "object", "embed", "base", "form", "link"}
        assert not [name for name in read.attributes if name.startswith("on")]
        assert all(source.startswith("data:") for source in read.sources)
    assert f"Reproducibility: {text}" in "".join(checklist.text)
    assert checklist.links == []
    figures.write(copy)
    links = [link for link in reader.links if link != CHECKLIST]
    assert 10 < len(links) < len(reader.links)
    assert all(re.fullmatch(r"figures/[a-z0-9-]+\.(svg|csv)", link) for link in links)
    assert {copy / link for link in links} == set((copy / "figures").iterdir())
    for svg in copy.glob("figures/*.svg"):
        elements = {element.tag for element in ElementTree.parse(svg).iter()}
        assert not {name for name in elements if name.endswith(("}script", "}iframe", "}a"))}
    shown = "".join(reader.text)
    assert shown.count(text) > 40
    assert f"World Models: {text}" in shown
    assert f"Environment CarRacing-v3{text}, engine " in shown


def test_the_content_security_policy_forbids_scripts_and_requests() -> None:
    reader = _Reader()
    reader.feed(render("a", {}, None))
    policy = dict(part.split(maxsplit=1) for part in reader.policy.split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["img-src"] == policy["media-src"] == "data:"
    assert "script-src" not in policy


def test_the_page_opens_with_the_agent_and_its_scores(smoke: Path) -> None:
    folders = {stage: smoke / "smoke" / stage for stage in STAGES}
    page = render("a", folders, None)
    assert page.index("<video") < page.index("<h2>Scores</h2>")
    poster = re.search(r'poster="data:image/png;base64,([^"]+)"', page)
    assert poster is not None
    assert base64.b64decode(poster[1]) == (smoke / "smoke/evaluate/median.png").read_bytes()
    assert headings(page)[1:6] == [
        "Scores",
        "Worst episodes of the agent",
        "Controller",
        "Recorded episodes",
        "VAE encoder",
    ]
    score = read_json(smoke / "smoke/evaluate/scores.json")["agent"]
    worst, *others = rows(page, "Scores")[-len(score["seeds"]) :]
    index = int(np.argmin(score["returns"]))
    assert worst.split()[:2] == [str(score["seeds"][index]), f"{score['returns'][index]:.1f}"]
    assert "top of the page" in worst, "of two episodes, the worst is the median one too"
    assert ["not recorded" in row for row in others] == [True]


def test_a_run_of_an_earlier_version_has_a_report_without_poster_and_worst_episode(
    smoke: Path, tmp_path: Path
) -> None:
    without_pictures = shutil.ignore_patterns("*.png", "*.h5")
    shutil.copytree(smoke / "smoke/evaluate", tmp_path / "evaluate", ignore=without_pictures)
    page = render("a", {"evaluate": tmp_path / "evaluate"}, None)
    assert page.count("<video") == 1
    assert "poster=" not in page


def without(*keys: str) -> Callable[[dict[str, Any]], Any]:
    def change(record: dict[str, Any]) -> None:
        *groups, name = keys
        del functools.reduce(dict.__getitem__, groups, record)[name]

    return change


def changed(value: Any, *keys: str) -> Callable[[dict[str, Any]], Any]:
    def change(record: dict[str, Any]) -> None:
        *groups, name = keys
        functools.reduce(dict.__getitem__, groups, record)[name] = value

    return change


@pytest.mark.parametrize(
    ("file", "change", "said"),
    [
        ("rnn/manifest.json", without("summary", "validation_nll"), "summary.validation_nll is"),
        (
            "rnn/manifest.json",
            changed("low", "summary", "validation_nll", "<b>"),
            "<b> is not a",
        ),
        ("rollouts/manifest.json", without("summary"), "summary is missing"),
        (
            "rollouts/manifest.json",
            changed(10**400, "summary", "frames"),
            "summary.frames is not",
        ),
        ("evaluate/manifest.json", changed(5, "config", "env.id"), "config.env.id is not a str"),
        ("evaluate/manifest.json", changed([], "config"), "config is not an object"),
        ("vae/manifest.json", changed({"a": "b"}, "throughput"), "throughput.a is not a number"),
        ("vae/manifest.json", without("resources", "cpu_s"), "resources.cpu_s is missing"),
        ("vae/manifest.json", without("fingerprint"), "fingerprint is missing"),
        (
            "controller/manifest.json",
            changed({"vae": None}, "inputs"),
            "inputs.vae is not a str",
        ),
        ("evaluate/scores.json", changed({}, "agent"), "agent.returns is missing"),
        (
            "evaluate/scores.json",
            changed([1, "high"], "agent", "returns"),
            "agent.returns.1 is not a number",
        ),
        (
            "evaluate/scores.json",
            changed([1e308, -1e308], "agent", "returns"),
            "agent.returns.0 is not a number of at most 1e+100",
        ),
        ("evaluate/scores.json", changed([0, 10**12], "agent", "seeds"), None),
        (
            "evaluate/scores.json",
            changed([0.5, 1], "agent", "seeds"),
            "agent lacks an integer",
        ),
        ("evaluate/scores.json", changed([0], "agent", "seeds"), "agent lacks an integer"),
        ("evaluate/scores.json", changed([1], "agent", "interval"), "agent lacks an integer"),
    ],
)
def test_a_wrong_record_is_an_error_that_names_the_file(
    smoke: Path,
    tmp_path: Path,
    file: str,
    change: Callable[[dict[str, Any]], Any],
    said: str | None,
) -> None:
    folders = {stage: tmp_path / stage for stage in STAGES}
    texts_alone = shutil.ignore_patterns("*.h5", "*.png", "*.mp4", "metrics.csv")
    for stage, folder in folders.items():
        shutil.copytree(smoke / "smoke" / stage, folder, ignore=texts_alone)
    record = read_json(tmp_path / file)
    change(record)
    write_json(tmp_path / file, record)
    if said is None:
        assert "2</td>" in render("a", folders, None)
        return
    with pytest.raises(ArtifactError) as raised:
        render("a", folders, None)
    assert str(raised.value).startswith(f"{tmp_path / file}: ")
    assert said in str(raised.value)


def test_the_report_of_a_wrong_manifest_ends_with_one_line(copy: Path) -> None:
    path = copy / "smoke/rnn/manifest.json"
    record = read_json(path)
    del record["crc32"]
    record["summary"]["validation_nll"] = {"<script>": "\x1b[2J"}
    write_json(path, record)
    line = error_line(run(copy, "stage=report", "preset=smoke", ALONE))
    assert f"{path}: summary.validation_nll.<script> is not a number" in line


@pytest.mark.parametrize(
    "content",
    [b"<script>,name\n1,2\n", b"step,name,value,seconds\n\x00\n1," + b"a" * 200_000 + b",1,1\n"],
)
def test_a_file_that_is_no_metrics_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "metrics.csv").write_bytes(content)
    with pytest.raises(ArtifactError, match=r"metrics\.csv: "):
        tracking.read_metrics(tmp_path / "metrics.csv")


def test_a_torn_header_of_metrics_holds_none(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("step,na")
    assert tracking.read_metrics(tmp_path / "metrics.csv") == []


def without_end(path: Path) -> None:
    """A terabyte of zeros that takes no disk."""
    path.touch()
    os.truncate(path, 2**40)


@pytest.mark.parametrize(
    ("name", "put"),
    [
        ("contact_sheet.png", lambda path: path.symlink_to("/etc/hostname")),
        ("contact_sheet.png", os.mkfifo),
        ("contact_sheet.png", lambda path: path.symlink_to("/dev/zero")),
        ("contact_sheet.png", lambda path: path.write_text("a secret")),
        ("contact_sheet.png", without_end),
        ("metrics.csv", os.mkfifo),
        ("median.mp4", lambda path: path.symlink_to("/etc/hostname")),
        ("median.mp4", lambda path: path.write_text("<script>")),
        ("median.mp4", without_end),
        ("median.png", lambda path: path.write_text("<script>")),
    ],
)
def test_only_regular_png_and_mp4_files_are_embedded(
    smoke: Path, tmp_path: Path, name: str, put: Callable[[Path], Any]
) -> None:
    stages = {"contact_sheet": "rollouts", "metrics": "vae", "median": "evaluate"}
    stage = stages[name.split(".")[0]]
    folder = tmp_path / stage
    shutil.copytree(smoke / "smoke" / stage, folder, ignore=shutil.ignore_patterns("*.h5", name))
    put(folder / name)
    with pytest.raises(ArtifactError, match=rf"{re.escape(name)}: "):
        render("a", {stage: folder}, None)
