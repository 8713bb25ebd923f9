"""The reports of rounds, of a run with a bootstrap run, and of a run that uses a round's models."""

import csv
import importlib
import shutil
from pathlib import Path

import pytest
from command import ALONE, BRIEFLY, FEW_FRAMES, run
from conftest import Once

from worldmodels.files.atomic import read_json

SMOKE = ("preset=smoke", ALONE)
TRAINING = ("rollouts", "vae", "rnn", "controller")
VARIANT = (*SMOKE, "run=variant", "base=it/round-2", "evaluate.video=false")


def said(data: Path, *words: str) -> str:
    """What a command that succeeds says."""
    done = run(data, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def rounds(smoke: Path, once: Once, tmp_path: Path) -> Path:
    """A data folder with the rounds ``it``, which began with ``smoke``."""

    def make(data: Path) -> None:
        shutil.copytree(smoke, data, dirs_exist_ok=True)
        later = "iterate.schedule=[{round: 2, rollouts: {max_steps: 12}, evaluate: {video: false}}]"
        output = said(data, "stage=iterate", *SMOKE, "run=it", "base=smoke", later)
        (data / "output.txt").write_text(output)

    shutil.copytree(once("rounds", make), tmp_path / "data")
    return tmp_path / "data"


def reported(data: Path, name: str, section: str) -> bool:
    """Whether the section of a stage has something to show."""
    page = (data / name / "report/index.html").read_text()
    assert f"<h2>{section}</h2>" in page
    return f'<h2>{section}</h2>\n<p class="absent">' not in page


@pytest.mark.system
def test_the_episodes_that_the_controller_before_collected_are_reported(rounds: Path) -> None:
    assert "left out" not in (rounds / "output.txt").read_text()
    search = ("stage=controller", "controller.sigma=0.3", "controller.generations=1")
    said(rounds, *VARIANT, *search)
    said(rounds, *VARIANT, "stage=evaluate", *search[1:])
    assert "left out" not in said(rounds, *VARIANT, "stage=report", *search[1:])
    for name in ("it/round-1", "it/round-2", "variant"):
        assert reported(rounds, name, "Recorded episodes")
        assert reported(rounds, name, "Dynamics model")


@pytest.mark.system
def test_the_episodes_that_the_controller_of_a_bootstrap_run_collected_are_reported(
    tmp_path: Path,
) -> None:
    words = (*SMOKE, *BRIEFLY, *FEW_FRAMES, "run=bootstrapped", "rollouts.policy=controller")
    bootstrap = "+bootstrap={rollouts:{episodes:4,policy:brownian}}"
    assert "left out" not in said(tmp_path, "stage=all", *words, bootstrap)
    assert reported(tmp_path, "bootstrapped", "Recorded episodes")


def curve(data: Path, run: str, of: str, across: str) -> list[list[float]]:
    """The points of a run's line in a figure of the report of the run `of`."""
    axis = f"{across} of all stages"
    name = f"comparison-return-over-{axis.replace(' ', '-')}.csv"
    with (data / of / "report/figures" / name).open(newline="") as file:
        lines = [row for row in csv.DictReader(file) if row["line"] == run]
    return [[float(row[axis]), float(row["return"])] for row in lines]


@pytest.mark.system
def test_rounds_that_began_with_a_finished_run_are_compared(
    rounds: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said(rounds, "stage=report", *SMOKE, "run=it/round-2", "compare=[smoke]")
    said(rounds, "stage=report", *SMOKE, "run=smoke", "compare=[it/round-1,it/round-2]")
    entries = read_json(rounds / "it/rounds.json")["rounds"]
    earned = [[entry["frames"]["total"], entry["earned"]["mean"]] for entry in entries]
    seconds = [
        sum(read_json(rounds / name / stage / "manifest.json")["wall_s"] for stage in TRAINING)
        for name in ("smoke", "it/round-2")
    ]
    spent = [seconds[0] / 3600, sum(seconds) / 3600]
    for run_name, of, number in (
        ("it/round-2", "it/round-2", 2),
        ("it/round-1", "smoke", 1),
        ("it/round-2", "smoke", 2),
    ):
        steps = curve(rounds, run_name, of, "environment steps")
        assert steps == [pytest.approx(point) for point in earned[:number]]
        hours = curve(rounds, run_name, of, "hours")
        assert [point[0] for point in hours] == pytest.approx(spent[:number])
    monkeypatch.syspath_prepend(Path(__file__).parent.parent / "docs")
    found = importlib.import_module("rounds").taken(rounds / "it")
    assert [point.seconds / 3600 for point in found["points"]] == pytest.approx(spent)
    assert found["stages"]["rnn"] == read_json(rounds / "it/round-2/rnn/manifest.json")
