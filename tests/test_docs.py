"""The documentation: its commands, its code, its figures."""

import importlib
import re
import shlex
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from command import composed

from worldmodels import config as schema
from worldmodels import limits
from worldmodels.files import read_json, write_json

ROOT = Path(__file__).resolve().parent.parent


def documented_commands() -> list[str]:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    text = "\n".join(page.read_text().replace("\\\n", " ") for page in pages)
    commands = re.findall(r"^ *python -m worldmodels (.*)$", text, re.MULTILINE)
    # A folder of the reader's own: tests/test_new_environment.py makes it.
    return [command for command in commands if "--config-dir" not in command]


def checked(overrides: list[str]) -> schema.Config:
    config = composed(*overrides)
    limits.check(config)
    return config


@pytest.mark.parametrize("command", documented_commands())
def test_documented_commands_compose(command: str) -> None:
    words = shlex.split(command, comments=True)
    if "--multirun" in words:
        words.remove("--multirun")
        words = [word.split(",")[0] for word in words]
    checked(words)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["carracing", "takecover"])
def test_the_commands_of_a_study_compose_and_begin_from_a_row_or_an_agent(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    study = importlib.import_module("study").STUDIES[name]()
    made = set()
    for row in study.rows:
        seed = row.seeds[0]
        config = checked(study.command(row, "controller", seed)[3:])
        assert (config.run, config.seed) == (study.run(row, seed), seed)
        folder = ROOT / str(config.base)
        assert config.base == study.base or config.base in made or folder.is_dir()
        made.add(config.run)
    assert len(made) == len(study.rows)


def test_the_documented_dream_environment_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "dream.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(ROOT)
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["frames"].shape == (64, 64, 64, 3)
    assert names["frames"].std() > 0
    assert not names["terminated"].all()


def test_the_documented_simulator_runs() -> None:
    page = (ROOT / "docs" / "simulator.md").read_text()
    names: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(code, names)
    assert names["picture"].shape == (96, 96, 3)
    assert names["frames"].shape == (64, 64, 64, 3)
    assert names["frames"].std() > 0
    assert names["returns"].shape == (16,)
    assert names["batch"].shape == (64, 64, 64, 3)


@pytest.fixture
def renderer(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "docs")
    return importlib.import_module("render")


def test_every_figure_on_a_page_is_the_one_that_was_measured(renderer: ModuleType) -> None:
    for page in renderer.PAGES:
        assert renderer.rendered(page.read_text()) == page.read_text()
    names = set(re.findall(r"<!-- /(\w+) -->", "".join(p.read_text() for p in renderer.PAGES)))
    assert names == set(renderer.regions())


def test_a_studys_new_runs_join_those_kept_before(
    renderer: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def study(folder: Path, *runs: tuple[str, int, int]) -> Path:
        path = folder / "study-some.json"
        keys = ("name", "seed", "steps")
        rows = [{"table": "parts", **dict(zip(keys, run, strict=True))} for run in runs]
        write_json(path, {"commit": str(len(runs)), "runs": rows})
        return path

    kept = tmp_path / "kept"
    monkeypatch.setattr(renderer, "RESULTS", kept)
    study(kept, ("z", 1, 10), ("z", 2, 20), ("zh", 1, 30))
    renderer.take_study(study(tmp_path, ("z", 2, 21), ("zh", 2, 40)))
    record = read_json(kept / "study-some.json")
    assert [run["steps"] for run in record["runs"]] == [10, 21, 30, 40]
    assert record["commit"] == "2"


def test_linked_files_are_there() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
