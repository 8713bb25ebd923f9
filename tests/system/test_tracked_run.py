"""A chain with a tracker: its pictures, its lines, and the fingerprints of one without."""

from pathlib import Path

import pytest
from command import ALONE, run
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from worldmodels.files.atomic import read_json

pytestmark = [pytest.mark.system, pytest.mark.timeout(1800)]
PICTURES = {
    "vae": {"vae/reconstructions", "vae/prior_samples"},
    "rnn": {"rnn/open_loop"},
    "controller": {"controller/episode"},
}


def fingerprints(folder: Path) -> dict[str, str]:
    return {stage: read_json(folder / stage / "manifest.json")["fingerprint"] for stage in PICTURES}


@pytest.mark.parametrize("world", ["real", "dream"])
def test_a_tracked_chain_has_pictures_and_the_fingerprints_of_one_without(
    tmp_path: Path, world: str
) -> None:
    words = ("stage=all", "preset=smoke", f"controller.world={world}", ALONE)
    lines = []
    for name, logger in (("without", "csv"), ("with", "tensorboard")):
        done = run(tmp_path, *words, f"run={name}", f"logger={logger}")
        assert done.returncode == 0, done.stdout + done.stderr
        lines.append([line for line in done.stdout.splitlines() if ": stage " in line])
    assert lines[1][0] == "with: stage 1 of 6, rollouts"
    assert lines[1][5].startswith("with: stage 6 of 6, report; those before took ")
    assert fingerprints(tmp_path / "with") == fingerprints(tmp_path / "without")
    for stage, names in PICTURES.items():
        found = EventAccumulator(str(tmp_path / "with" / stage), {"images": 0, "scalars": 0})
        found.Reload()
        assert set(found.Tags()["images"]) == names
        logged = {event.step for tag in found.Tags()["scalars"] for event in found.Scalars(tag)}
        for name in names:
            steps = [image.step for image in found.Images(name)]
            assert steps == sorted(set(steps))
            assert set(steps) <= logged
    assert not [*(tmp_path / "without").rglob("*tfevents*")]
