"""A chain in the learned model with a tracker."""

from pathlib import Path

import pytest
from command import ALONE, run
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from worldmodels.files.atomic import read_json

pytestmark = [pytest.mark.system, pytest.mark.timeout(1800)]


def test_a_tracked_chain_says_its_stages_and_has_the_agent_of_one_without(tmp_path: Path) -> None:
    words = ("stage=all", "preset=smoke", "controller.world=dream", ALONE)
    found = []
    for name, logger in (("without", "csv"), ("with", "tensorboard")):
        done = run(tmp_path, *words, f"run={name}", f"logger={logger}")
        assert done.returncode == 0, done.stdout + done.stderr
        lines = [line for line in done.stdout.splitlines() if ": stage " in line]
        assert lines[0] == f"{name}: stage 1 of 6, rollouts"
        assert lines[5].startswith(f"{name}: stage 6 of 6, report; those before took ")
        found.append(read_json(tmp_path / name / "controller/manifest.json")["fingerprint"])
    assert found[0] == found[1]
    events = EventAccumulator(str(tmp_path / "with/controller"), {"images": 0}).Reload()
    assert events.Tags()["images"] == ["controller/episode"]
    assert not [*(tmp_path / "without").rglob("*tfevents*")]
