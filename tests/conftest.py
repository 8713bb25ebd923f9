"""What several tests look at."""

from pathlib import Path

import pytest
from command import run
from shell import Commands


@pytest.fixture(scope="session")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder after ``stage=all preset=smoke``; tests that damage it copy it first."""
    data = tmp_path_factory.mktemp("data")
    done = run(data, "stage=all", "preset=smoke")
    assert done.returncode == 0, done.stdout + done.stderr
    return data


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that the test starts lack what not every system has; see ``bare/``."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent / "bare"))


@pytest.fixture
def commands(tmp_path: Path) -> Commands:
    """An empty folder of stand-ins for commands."""
    return Commands(tmp_path)
