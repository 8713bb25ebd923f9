"""The distribution: built, installed into an environment of its own, and run in an empty folder."""

import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import environment, error_line

import worldmodels
from worldmodels.errors import DISTRIBUTION

pytestmark = [pytest.mark.system, pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parents[2]
INSIDE = ("conf", "pretrained")
"""Folders of the repository that are folders of the installed package."""
AROUND = ("tests", "docs", "benchmarks", "cloud", "docker", "slurm", "locks")


def do(*line: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command of the tools that build and install; fails with what it printed."""
    done = subprocess.run(line, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The sdist, the wheel built from it, and the wheel built from the tree."""
    pytest.importorskip("build", reason="build is not installed: pip install -e '.[dev]'")
    folder = tmp_path_factory.mktemp("built")
    build = (sys.executable, "-m", "build", "--outdir")
    do(*build, folder / "chain", ROOT)
    do(*build, folder / "tree", "--wheel", ROOT)
    (sdist,) = (folder / "chain").glob("*.tar.gz")
    (from_sdist,) = (folder / "chain").glob("*.whl")
    (from_tree,) = (folder / "tree").glob("*.whl")
    return {"sdist": sdist, "from sdist": from_sdist, "from tree": from_tree}


@pytest.fixture(scope="module")
def scripts(built: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The commands of an environment that has the wheel and its dependencies, and no more."""
    env = tmp_path_factory.mktemp("installed") / "env"
    do(sys.executable, "-m", "venv", env)
    pip = (env / "bin/python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
    do(*pip, "--no-compile", "--constraint", ROOT / "constraints.txt", built["from tree"])
    yield env / "bin"
    shutil.rmtree(env)  # 2 GB, which pytest would keep for three sessions


def program(
    scripts: Path, folder: Path, *words: str, name: str = "worldmodels"
) -> subprocess.CompletedProcess[str]:
    """Run the installed command in a folder."""
    kept = {key: value for key, value in environment().items() if key != "PYTHONPATH"}
    return subprocess.run(
        [scripts / name, *words], cwd=folder, env=kept, capture_output=True, text=True, check=False
    )


def files(folder: str) -> set[str]:
    """The files of a folder of the repository, by their paths in it."""
    paths = (path for path in (ROOT / folder).rglob("*") if path.is_file())
    return {path.relative_to(ROOT).as_posix() for path in paths if "__pycache__" not in path.parts}


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


# What is in them


def test_the_wheel_has_the_package_its_configuration_its_agents_and_nothing_else(
    built: dict[str, Path],
) -> None:
    names = set(contents(built["from tree"]))
    metadata = {name for name in names if name.startswith("worldmodels_gym-")}
    inside = {f"worldmodels/{name}" for folder in INSIDE for name in files(folder)}
    assert names - metadata == files("worldmodels") | inside
    assert {"worldmodels/conf/config.yaml", "worldmodels/pretrained/carracing/agent.json"} <= inside
    assert {Path(name).name for name in metadata} == {
        *("METADATA", "RECORD", "WHEEL", "entry_points.txt", "LICENSE"),
    }


def test_the_wheel_of_the_sdist_is_that_of_the_tree(built: dict[str, Path]) -> None:
    assert contents(built["from sdist"]) == contents(built["from tree"])


def test_the_sdist_has_what_a_developer_needs(built: dict[str, Path]) -> None:
    with tarfile.open(built["sdist"]) as archive:
        names = {member.name.partition("/")[2] for member in archive if member.isfile()}
    for folder in ("worldmodels", *INSIDE, *AROUND):
        assert {name for name in names if name.startswith(f"{folder}/")} == files(folder)
    assert {"README.md", "LICENSE", "Makefile", "constraints.txt", "pyproject.toml"} <= names
    assert {name for name in names if name.startswith("data/")} == {"data/.gitkeep"}


# What they do


def test_it_says_what_it_is(scripts: Path, tmp_path: Path) -> None:
    for name in ("worldmodels", "python"):
        words = ("-m", "worldmodels") if name == "python" else ()
        done = program(scripts, tmp_path, *words, "--version", name=name)
        assert done.stdout == f"{DISTRIBUTION} {worldmodels.__version__}\n", done.stderr
        done = program(scripts, tmp_path, *words, "--help", name=name)
        assert "preset=laptop " in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["stage=all", "env=takecover"], f"pip install '{DISTRIBUTION}[doom]'"),
        (["stage=all", "env=breakout"], f"pip install '{DISTRIBUTION}[atari]'"),
        (["evaluate.engine=envpool"], f"pip install '{DISTRIBUTION}[envpool]'"),
        (["stage=play"], f"pip install '{DISTRIBUTION}[onnx]'"),
        (["logger=tensorboard"], f"pip install '{DISTRIBUTION}[tensorboard]'"),
        (
            ["stage=evaluate", "model=pretrained/pong"],
            "pretrained/carracing, pretrained/carracing-dream",
        ),
        (["base=pretrained/pong"], "pretrained/carracing, pretrained/carracing-dream"),
        (["--config-dir", "nowhere"], "nowhere: no such folder"),
    ],
)
def test_what_is_missing_is_one_line_before_anything_is_made(
    scripts: Path, tmp_path: Path, words: list[str], said: str
) -> None:
    assert said in error_line(program(scripts, tmp_path, *words, "preset=smoke"))
    assert not list(tmp_path.iterdir())


def test_the_python_interface_finds_a_shipped_agent(scripts: Path, tmp_path: Path) -> None:
    code = (
        "import numpy, worldmodels; agent = worldmodels.load_agent('pretrained/carracing');"
        "print(agent.act(numpy.zeros((96, 96, 3), numpy.uint8)).shape)"
    )
    done = program(scripts, tmp_path, "-c", code, name="python")
    assert done.stdout == "(3,)\n", done.stderr


def test_a_shipped_agent_plays(scripts: Path, tmp_path: Path) -> None:
    few = ("evaluate.episodes=1", "env.max_steps=50", "evaluate.video=false")
    agent = "model=pretrained/carracing"
    done = program(scripts, tmp_path, "stage=evaluate", "run=check", agent, *few)
    assert done.returncode == 0, done.stdout + done.stderr
    scores = json.loads((tmp_path / "data/check/evaluate/scores.json").read_text())
    assert set(scores) == {"agent", "random policy"}


def test_an_environment_of_ones_own_needs_no_checkout(scripts: Path, tmp_path: Path) -> None:
    shutil.copy(ROOT / "tests/picture_env.py", tmp_path)
    (tmp_path / "my-conf/env").mkdir(parents=True)
    (tmp_path / "my-conf/env/countdown.yaml").write_text(
        "name: countdown\nid: picture_env:Countdown-v0\nengine: gymnasium\ncrop_rows: null\n"
    )
    done = program(
        scripts,
        tmp_path,
        *("--config-dir", "my-conf", "stage=rollouts", "env=countdown", "preset=smoke"),
        "env.max_steps=10",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "data/countdown-smoke/rollouts/manifest.json").exists()


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("from tree", ()),
        # The same files: what takes longest is left out.
        ("sdist", ("rnn.baselines=false", "evaluate.video=false", "evaluate.engine=native")),
    ],
)
def test_it_runs_the_chain_in_an_empty_folder(
    built: dict[str, Path], scripts: Path, tmp_path: Path, kind: str, words: tuple[str, ...]
) -> None:
    if kind == "sdist":
        pip = (scripts / "python", "-m", "pip", "--disable-pip-version-check", "install")
        do(*pip, "--no-deps", "--force-reinstall", built["sdist"])
    done = program(scripts, tmp_path, "stage=all", "preset=smoke", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "data/smoke/report/index.html").exists()
    made = json.loads((tmp_path / "data/smoke/evaluate/manifest.json").read_text())
    assert made["commit"] is None
    assert made["versions"][DISTRIBUTION] == worldmodels.__version__
