"""A dynamics model of another package: installed by pip, found by its entry point, trained."""

import subprocess
import sys
from pathlib import Path

import pytest
from command import ALONE, BRIEFLY, error_line, started_anew

from worldmodels.files import read_json

pytestmark = [pytest.mark.system, pytest.mark.timeout(1800)]
PACKAGE = Path(__file__).resolve().parents[2] / "examples" / "gru_dynamics"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages with the example, which programs started from here find."""
    folder = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
    subprocess.run([*pip, str(PACKAGE)], check=True)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder


def test_it_is_trained_and_its_agent_is_evaluated(site: Path, tmp_path: Path) -> None:
    chosen = ("preset=smoke", "rnn.model=gru", "+rnn.options.layers=2", "controller.world=dream")
    data = tmp_path / "data"
    done = started_anew(data, "stage=all", *chosen, ALONE, *BRIEFLY)
    assert done.returncode == 0, done.stderr
    scores = read_json(data / "smoke/evaluate/scores.json")
    assert {"agent", "random policy", "agent in the dream"} <= scores.keys()
    made = read_json(data / "smoke/rnn/manifest.json")["summary"]["validation_nll"]
    assert "gru" in made
    line = error_line(started_anew(tmp_path, "stage=rnn", *chosen, "+rnn.options.depth=3"))
    assert "rnn.options.depth: no such option; GRUModel has hidden_size, layers" in line


def test_a_package_that_cannot_be_imported_is_one_line(site: Path, tmp_path: Path) -> None:
    (site / "gru_dynamics.py").write_text("import no_such_module\n")
    line = error_line(started_anew(tmp_path, "stage=rnn", "preset=smoke", "rnn.model=gru"))
    assert "dynamics model gru: gru_dynamics:GRUModel cannot be imported" in line
    assert "no_such_module" in line
