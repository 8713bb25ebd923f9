"""What several tests look at, made once for all workers of pytest-xdist."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from command import ALONE, run, unmeasured
from filelock import FileLock
from shell import Commands

Once = Callable[[str, Callable[[Path], None]], Path]

hypothesis.settings.register_profile("any machine", deadline=None)  # however busy it is
hypothesis.settings.load_profile("any machine")


SIMULATING = {
    *("test_agents", "test_api", "test_baselines", "test_baselines_evaluated", "test_branches"),
    *("test_carracing", "test_carracing_vector", "test_commands"),
    *("test_cores", "test_docs", "test_envs", "test_exploration", "test_hub", "test_integrity"),
    "test_new_environment",
    *("test_overwrite", "test_page", "test_portable", "test_pretrained", "test_resume"),
    *("test_plan", "test_population", "test_store", "test_temperature", "test_watch"),
}
"""Files whose tests run the compiled simulator, as all tests do that use `smoke`."""

LONGEST = ("test_wheel", "test_slurm_cluster", "test_several_processes", "test_ray", "test_cuda")
"""Files of system tests that take minutes: begun last, one of two workers would wait for them."""


def simulates(test: pytest.Item | pytest.FixtureRequest) -> bool:
    """Whether a test runs the compiled simulator."""
    return test.path.stem in SIMULATING or "smoke" in getattr(test, "fixturenames", ())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One of two workers compiles the simulator while the other does what needs none.

    pytest-xdist gives each of them one half of the list to begin with. Of system tests it gives
    each of them one file after another; those of `LONGEST` come first.
    """
    groups: tuple[list[pytest.Item], list[pytest.Item]] = ([], [])
    for item in items:
        groups[simulates(item)].append(item)
    others, simulating = groups
    half = min(len(items) // 2, len(simulating))
    items[:] = simulating[:half] + others + simulating[half:]
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Once:
    """Fill a folder once: the first worker that needs it does, under a lock; the others wait.

    The folder is shared, so no test may write to it.
    """
    root = tmp_path_factory.getbasetemp()
    if worker_id != "master":  # a worker's own folder is below the one that they share
        root = root.parent

    def fill(name: str, make: Callable[[Path], None]) -> Path:
        folder, done = root / name, root / f"{name}.done"
        with FileLock(root / f"{name}.lock"):
            if not done.exists():
                shutil.rmtree(folder, ignore_errors=True)  # another worker failed half way
                folder.mkdir()
                make(folder)
                done.touch()
        return folder

    return fill


@pytest.fixture(autouse=True)
def _compiled(request: pytest.FixtureRequest, once: Once) -> None:
    if simulates(request):
        once("simulator", _compile)


def _compile(folder: Path) -> None:
    """In a process of its own: followed by coverage, the compiler takes twice the time."""
    program = "from worldmodels.envs.carracing.vector import warm_up; warm_up()"
    subprocess.run([sys.executable, "-c", program], check=True, env=unmeasured())


@pytest.fixture(scope="session")
def smoke(once: Once) -> Path:
    """The data folder after ``stage=all preset=smoke``; shared."""

    def make(data: Path) -> None:
        done = run(data, "stage=all", "preset=smoke", ALONE)
        assert done.returncode == 0, done.stdout + done.stderr

    return once("smoke", make)


@pytest.fixture
def copy(smoke: Path, tmp_path: Path) -> Path:
    """A data folder of the test's own, with the run ``smoke``."""
    shutil.copytree(smoke, tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture(scope="session")
def along(smoke: Path, once: Once) -> Path:
    """A data folder with the runs ``smoke`` and ``along``, a search in 32 components; shared."""

    def make(data: Path) -> None:
        shutil.copytree(smoke, data, dirs_exist_ok=True)
        search = ("stage=controller", "preset=smoke", "run=along", "base=smoke", ALONE)
        done = run(data, *search, "controller.pca_components=32")
        assert done.returncode == 0, done.stderr

    return once("along", make)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium, without a window."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("chromium is not installed")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that the test starts lack what not every system has; see ``bare/``."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent / "bare"))


@pytest.fixture
def commands(tmp_path: Path) -> Commands:
    """An empty folder of stand-ins for commands."""
    return Commands(tmp_path)
