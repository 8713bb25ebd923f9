"""Stages with a tracker: their pictures, and the fingerprints of those without one."""

from pathlib import Path

import pytest
from command import ALONE, run
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from worldmodels.files.atomic import read_json

PICTURES = {
    "vae": {"vae/reconstructions", "vae/prior_samples"},
    "rnn": {"rnn/open_loop"},
    "controller": {"controller/episode"},
}


@pytest.mark.parametrize("stage", PICTURES)
def test_a_tracked_stage_has_pictures_and_the_fingerprint_of_one_without(
    copy: Path, stage: str
) -> None:
    folder = copy / "smoke" / stage
    untracked = read_json(folder / "manifest.json")["fingerprint"]
    assert not [*folder.rglob("*tfevents*")]
    words = ("preset=smoke", "overwrite=true", "logger=tensorboard", ALONE)
    done = run(copy, f"stage={stage}", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert read_json(folder / "manifest.json")["fingerprint"] == untracked
    found = EventAccumulator(str(folder), {"images": 0, "scalars": 0}).Reload()
    assert set(found.Tags()["images"]) == PICTURES[stage]
    logged = {event.step for tag in found.Tags()["scalars"] for event in found.Scalars(tag)}
    for name in PICTURES[stage]:
        steps = [image.step for image in found.Images(name)]
        assert steps == sorted(set(steps))
        assert set(steps) <= logged
