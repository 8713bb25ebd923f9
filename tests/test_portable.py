"""The program without what Linux alone has."""

import resource
import sys
from pathlib import Path

import pytest
from command import run

from worldmodels.files.atomic import read_json
from worldmodels.system import resources
from worldmodels.system.resources import Meter


@pytest.mark.system
@pytest.mark.usefixtures("bare")
def test_stages_run_without_what_linux_alone_has(tmp_path: Path) -> None:
    short = ("preset=smoke", "rollouts.episodes=2", "rollouts.max_steps=20", "run=bare")
    done = run(tmp_path, "stage=rollouts", *short, "workers.processes=1")
    assert done.returncode == 0, done.stderr
    used = read_json(tmp_path / "bare/rollouts/manifest.json")["resources"]["peak_bytes"]
    assert all(2**26 < peak < 2**36 for peak in used.values())
    trained = run(tmp_path, "stage=vae", *short, "vae.epochs=1")
    assert trained.returncode == 0, trained.stderr


@pytest.mark.parametrize(("platform", "unit"), [("linux", 1024), ("darwin", 1)])
def test_peak_memory_is_in_bytes(monkeypatch: pytest.MonkeyPatch, platform: str, unit: int) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(resources, "Path", lambda path: Path("/nowhere") / path.lstrip("/"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    peak = Meter().read()["peak_bytes"]["process"]
    assert before <= peak <= 1.5 * before
