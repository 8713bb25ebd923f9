"""What is shipped, what is optional, and what a manifest says of the installation."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from command import composed
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import worldmodels
from worldmodels import extras
from worldmodels.config import shipped
from worldmodels.errors import DISTRIBUTION, ConfigError

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path(worldmodels.__file__).parent


def python(script: str, *arguments: str, path: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run a script that finds the package in `path`."""
    line = [sys.executable, "-c", script, *arguments]
    env = {**os.environ, "PYTHONPATH": str(path)}
    return subprocess.run(line, capture_output=True, text=True, env=env, cwd="/", check=False)


# Shipped agents


def test_a_shipped_agent_is_found_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = ("carracing", "carracing-dream", "takecover")
    assert shipped.agents() == [f"pretrained/{name}" for name in names]
    for name in shipped.agents():
        for spelling in (name, f"./{name}/"):
            assert shipped.find_agent(spelling) == shipped.PRETRAINED / Path(name).name
    (tmp_path / "pretrained").mkdir()
    assert shipped.find_agent("pretrained/carracing") == shipped.PRETRAINED / "carracing"


def test_a_folder_of_the_working_directory_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    mine = Path("pretrained/carracing")
    mine.mkdir(parents=True)
    assert shipped.find_agent("pretrained/carracing") is None
    (mine / "agent").mkdir()
    (mine / "agent/agent.json").touch()
    assert shipped.find_agent("pretrained/carracing") == mine / "agent"
    (mine / "agent.json").touch()
    assert shipped.find_agent("pretrained/carracing") == mine


def test_an_unknown_agent_is_refused_with_the_names_of_those_that_are_shipped() -> None:
    with pytest.raises(ConfigError) as refused:
        shipped.require_agent("model", "pretrained/pong")
    assert str(refused.value).startswith("model=pretrained/pong: ")
    assert "pretrained/carracing, pretrained/carracing-dream" in str(refused.value)


# Optional packages


@pytest.mark.parametrize(
    ("overrides", "module", "extra"),
    [
        (["env=takecover"], "vizdoom", "doom"),
        (["env=takecover", "stage=evaluate"], "vizdoom", "doom"),
        (["env=breakout", "stage=rollouts"], "ale_py", "atari"),
        (["env.engine=envpool", "stage=controller"], "envpool", "envpool"),
        (["evaluate.engine=envpool"], "envpool", "envpool"),
        (["logger=tensorboard", "stage=vae"], "tensorboard", "tensorboard"),
        (["workers=ray"], "ray", "ray"),
        (["workers=ray"], "grpc", "ray"),
        (["stage=sweep", "sweep.space={seed: [1, 2]}"], "optuna", "sweep"),
    ],
)
def test_a_missing_extra_is_named(
    overrides: list[str], module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    with pytest.raises(ConfigError) as refused:
        extras.check(composed(*overrides))
    assert str(refused.value).startswith(overrides[0])
    assert f"pip install '{DISTRIBUTION}[{extra}]'" in str(refused.value)


def test_a_stage_that_does_not_play_needs_no_simulator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vizdoom", None)
    for stage in ("vae", "rnn", "inspect", "report"):
        extras.check(composed("env=takecover", f"stage={stage}"))


def test_a_population_needs_no_package_for_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    rates = "sweep.space={vae.learning_rate: {low: 1e-4, high: 1e-2, log: true}}"
    extras.check(composed("stage=sweep", "sweep.method=population", rates))


def test_an_environment_of_a_module_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="the Python module no_such_game is not installed"):
        extras.check(composed("env.id=no_such_game.worlds:Maze-v0"))


def test_every_extra_is_one_of_the_distribution() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    for extra in extras.EXTRAS.values():
        assert re.search(rf"^{extra} = \[", text, re.MULTILINE)


def test_nobody_is_told_to_install_the_distribution_of_somebody_else() -> None:
    folders = ("worldmodels", "conf", "docs", "docker", "slurm", "tests", "benchmarks", "examples")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    for path in [*files, *ROOT.glob("*.md"), ROOT / "pyproject.toml", ROOT / "Makefile"]:
        if path.suffix in (".py", ".md", ".yaml", ".toml", ".sh", ".sbatch", ""):
            text = path.read_text() if path.is_file() else ""
            foreign = (
                r"pip install[^\n#]*[\s'\"=]world-?models(?![-\w/.])|\bworld-?models\[(?=[a-z])"
            )
            assert not re.findall(foreign, text), path


# Versions and hashes


def locked(path: Path) -> dict[str, tuple[Requirement, int]]:
    """The requirements of a lock by name, each with the number of its hashes."""
    found: dict[str, tuple[Requirement, int]] = {}
    for block in re.split(r"\n(?=[^\s#])", path.read_text())[1:]:
        line, *hashes = re.split(r" \\\n\s+--hash=sha256:", block.strip())
        assert all(re.fullmatch("[0-9a-f]{64}", one) for one in hashes), block
        found[canonicalize_name(Requirement(line).name)] = (Requirement(line), len(hashes))
    return found


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PARTS = ("torch", "base", "build", *PROJECT["optional-dependencies"])


@pytest.mark.parametrize("part", PARTS)
def test_a_lock_pins_what_constraints_pin_and_has_hashes(part: str) -> None:
    constraints = locked(ROOT / "constraints.txt")
    lock = locked(ROOT / f"locks/{part}.txt")
    assert lock
    for name, (requirement, hashes) in lock.items():
        assert re.fullmatch(r"==[\w.]+", str(requirement.specifier))
        assert requirement.specifier == constraints[name][0].specifier
        assert hashes > 0, name


@pytest.mark.parametrize("extra", ["", *PROJECT["optional-dependencies"]])
def test_all_that_an_extra_installs_here_is_in_its_lock(extra: str) -> None:
    """Follows the requirements of the distributions that are installed."""
    names = ("torch", "base", *([extra] if extra else []))
    lock = {name: pin for part in names for name, pin in locked(ROOT / f"locks/{part}.txt").items()}
    lines = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"].get(extra, [])]
    queue = [Requirement(line) for line in lines]
    seen = set()
    while queue:
        wanted = queue.pop()
        name = canonicalize_name(wanted.name)
        if str(wanted) in seen:
            continue
        seen.add(str(wanted))
        if name == canonicalize_name(DISTRIBUTION):
            parts = [PROJECT["optional-dependencies"][part] for part in wanted.extras]
            queue += [Requirement(line) for part in parts for line in part]
            continue
        assert name in lock, f"{wanted}: not in locks/ of {names}; run make lock"
        (version,) = lock[name][0].specifier
        assert wanted.specifier.contains(version.version, prereleases=True), wanted
        with contextlib.suppress(metadata.PackageNotFoundError):  # an extra that is not here
            for line in metadata.requires(wanted.name) or []:
                further = Requirement(line)
                extras_of = wanted.extras or {""}
                marker = further.marker
                if marker is None or any(marker.evaluate({"extra": one}) for one in extras_of):
                    queue.append(further)


def test_what_builds_this_is_locked() -> None:
    lock = locked(ROOT / "locks/build.txt")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for line in project["build-system"]["requires"]:
        requirement = Requirement(line)
        (version,) = lock[requirement.name][0].specifier
        assert requirement.specifier.contains(version.version)


# The command


@pytest.mark.parametrize("flag", ["--version", "--help"])
def test_it_answers_without_loading_what_computes(flag: str) -> None:
    done = python(
        """
import sys
import tomllib
from importlib import metadata
from worldmodels.__main__ import main
try:
    code = main()
finally:
    heavy = {"torch", "scipy", "matplotlib", "numba", "gymnasium"} & set(sys.modules)
    assert not heavy, heavy
sys.exit(code)
""",
        flag,
    )
    assert done.returncode == 0, done.stderr
    wanted = "stage=all" if flag == "--help" else f"{DISTRIBUTION} {worldmodels.__version__}\n"
    assert wanted in done.stdout


@pytest.mark.parametrize("kind", ["missing", "file"])
def test_a_configuration_folder_that_is_none_is_one_line(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / kind
    if kind == "file":
        folder.touch()
    arguments = ("--config-dir", str(folder), "stage=inspect", f"data={tmp_path}/data")
    done = python("import sys; from worldmodels.__main__ import main; sys.exit(main())", *arguments)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: --config-dir {folder}: no such folder; ")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "data").exists()


# The commit of a manifest


def git(folder: Path, *words: str) -> None:
    identity = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.org")
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


def copied(folder: Path) -> Path:
    """The package's own modules in another folder."""
    shutil.copytree(PACKAGE, folder / "worldmodels", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def told(folder: Path) -> tuple[str, str]:
    """Commit and version that the package in `folder` says made an artifact."""
    script = f"""
from worldmodels.runs.provenance import provenance
made = provenance()
print(made["commit"], made["versions"]["{DISTRIBUTION}"])"""
    done = python(script, path=folder)
    assert done.returncode == 0, done.stderr
    commit, version = done.stdout.split()
    return commit, version


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_the_commit_is_of_the_repository_that_has_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WORLDMODELS_COMMIT", raising=False)
    copied(tmp_path)
    git(tmp_path, "init")
    assert told(tmp_path) == ("None", worldmodels.__version__)  # not yet of the repository
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "--message", "all")
    commit, version = told(tmp_path)
    assert re.fullmatch(r"[0-9a-f]{12}(-dirty)?", commit)
    assert version == worldmodels.__version__


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_the_commit_is_not_of_a_repository_around_an_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WORLDMODELS_COMMIT", raising=False)
    installed = copied(tmp_path / "venv/site-packages")
    (installed / "worldmodels/conf").mkdir()  # what tells a wheel from a checkout
    git(tmp_path, "init")
    git(tmp_path, "add", "--all")  # even where the whole environment is committed
    git(tmp_path, "commit", "--message", "all")
    assert told(installed) == ("None", worldmodels.__version__)
