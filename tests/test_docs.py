"""The documentation: its commands, its code, its figures."""

import importlib
import importlib.util
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from command import composed
from omegaconf import OmegaConf

from worldmodels import __version__
from worldmodels.config import limits, schema
from worldmodels.errors import install
from worldmodels.files.atomic import read_json, write_json

ROOT = Path(__file__).resolve().parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def documented_commands(pages: Sequence[Path] = PAGES) -> list[str]:
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_of_a_page_can_follow_one_another(page: Path) -> None:
    """None makes a stage of a run that another has made from something else."""
    made: dict[tuple[str, str], dict[str, str]] = {}
    for command in documented_commands([page]):
        keys = dict(
            word.split("=", 1) for word in shlex.split(command, comments=True) if "=" in word
        )
        if "--multirun" in command or keys.get("overwrite") == "true" or "run" not in keys:
            continue
        sources = {key: keys.get(key, "") for key in ("model", "base", "env")}
        first = made.setdefault((keys["stage"], keys["run"]), sources)
        assert sources == first, command


def test_the_page_on_installing_lists_every_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    page = (ROOT / "docs" / "index.md").read_text()
    (line,) = re.findall(r"pip install -e '\.\[(\w+)\]' .*also: (.*)$", page, re.MULTILINE)
    first, others = line
    assert {first, *others.split(", ")} == project["optional-dependencies"].keys() - {"dev"}


def test_the_page_on_files_names_those_that_a_run_leaves(smoke: Path) -> None:
    """A shard or a figure of the report by the pattern of its name."""
    page = (ROOT / "docs" / "files.md").read_text()
    run = smoke / "smoke"
    for path in run.rglob("*"):
        if path.is_dir() or path.name.startswith("."):
            continue
        name = f"figures/*{path.suffix}" if path.parent.name == "figures" else path.name
        name = re.sub(r"\d{5}", "00000", name)
        assert re.search(rf"`(\S+/)?{re.escape(name)}`", page), path.relative_to(run)
    (header, *_) = (run / "vae" / "metrics.csv").read_text().splitlines()
    scores = read_json(run / "evaluate" / "scores.json")
    fields = {field for score in scores.values() for field in score}
    for word in (*header.split(","), *scores, *fields):
        assert f"`{word}`" in page


@pytest.mark.slow
@pytest.mark.parametrize("name", ["carracing", "takecover"])
def test_the_commands_of_a_study_compose_and_begin_from_a_row_or_an_agent(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    study = importlib.import_module("study_rows").STUDIES[name]()
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


# Links, public files and the site


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def links() -> list[tuple[Path, str]]:
    found = []
    for page in [*PAGES, *sorted((ROOT / "pretrained").rglob("*.md"))]:
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        found += [(page, link) for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text)]
    return found


@pytest.mark.parametrize(
    ("page", "link"), [pytest.param(*one, id=f"{one[0].name}:{one[1]}") for one in links()]
)
def test_a_link_leads_to_a_file_and_a_heading_that_exist(page: Path, link: str) -> None:
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    assert target.is_file(), f"{page.name} links to {path}, which does not exist"
    if anchor:
        assert anchor in anchors(target), f"{page.name}: {target.name} has no heading {anchor}"


def test_the_citation_states_this_version_and_the_paper() -> None:
    citation: Any = OmegaConf.to_container(OmegaConf.load(ROOT / "CITATION.cff"))
    assert citation["version"] == __version__
    assert (
        citation["license"]
        == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["license"]
    )
    names = {a["family-names"] for one in citation["references"] for a in one["authors"]}
    assert names == {"Ha", "Schmidhuber"}


@pytest.mark.parametrize("form", ["bug", "feature"])
def test_an_issue_form_asks_for_what_helps(form: str) -> None:
    path = ROOT / ".github" / "ISSUE_TEMPLATE" / f"{form}.yml"
    content: Any = OmegaConf.to_container(OmegaConf.load(path))
    fields = {part["id"]: part for part in content["body"] if "id" in part}
    assert {"command", "expected", "observed", "doctor"} <= fields.keys()
    assert "stage=doctor" in fields["doctor"]["attributes"]["description"]
    assert "--version" in path.read_text()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; a warning of mkdocs is an error."""
    if not all(map(importlib.util.find_spec, ("mkdocs", "material", "mkdocstrings"))):
        pytest.skip(f"mkdocs is not installed: {install('docs')}")
    folder = tmp_path_factory.mktemp("site")
    command = (sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder))
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.system
def test_the_site_builds_strictly_with_every_page(site: Path) -> None:
    docs = ROOT / "docs"
    pages = {path.relative_to(docs).with_suffix(".html") for path in docs.rglob("*.md")}
    pages |= {Path(f"{name}.html") for name in ("changelog", "contributing", "security")}
    assert {page for page in pages if not (site / page).is_file()} == set()
    assert not list(site.rglob("*.py"))
    assert "rollout" in (site / "api" / "worlds.html").read_text()


@pytest.mark.system
def test_the_site_loads_nothing_from_other_hosts(site: Path) -> None:
    loaded = r"<(?:script|img|iframe|source|video)\b[^>]*\bsrc=\"?https?:|<link\b[^>]*https?:"
    for page in site.rglob("*.html"):
        for tag in re.findall(rf"(?:{loaded})[^>]*>", page.read_text()):
            assert 'rel="canonical"' in tag, f"{page.name} loads {tag}"
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(\"?https?:|@import", sheet.read_text()), sheet.name
