"""What trials and members of a sweep are made from, and what is made from them."""

import json
import shutil
from pathlib import Path

import pytest
from command import ALONE, FEW_FRAMES, error_line, run

from worldmodels.config import shipped
from worldmodels.errors import ArtifactError
from worldmodels.runs.artifacts import Run
from worldmodels.runs.bases import base_run

BRIEF = ("preset=smoke", "rollouts.episodes=2", "vae.epochs=1", ALONE, *FEW_FRAMES)
SWEEP = ("stage=sweep", "run=it", "sweep.trials=1", "sweep.space={vae.kl_tolerance: [0, 0.5]}")


def made(folder: Path, *words: str) -> str:
    """What the program prints."""
    done = run(folder, *BRIEF, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.system
def test_a_trial_as_base_has_the_stages_that_its_sweep_has_and_those_of_its_base(
    tmp_path: Path,
) -> None:
    made(tmp_path, "stage=rollouts", "run=first")
    made(tmp_path, *SWEEP, "base=first")
    assert not (tmp_path / "it/rollouts").exists()
    words = ("stage=rnn", "run=next", "rnn.epochs=1", "rnn.baselines=false")
    made(tmp_path, *words, "base=it/trial-001")
    inputs = json.loads((tmp_path / "next/rnn/manifest.json").read_text())["inputs"]
    for stage, folder in (("rollouts", "first"), ("vae", "it/trial-001")):
        manifest = json.loads((tmp_path / folder / stage / "manifest.json").read_text())
        assert inputs[stage] == manifest["fingerprint"]


@pytest.mark.parametrize("part", ["trial-001", "interval-010/member-003"])
def test_the_bases_of_a_base(tmp_path: Path, part: str) -> None:
    for name, base in (("it", "a/first"), ("again", f"again/{part}"), ("other", None), ("bad", 1)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "sweep.json").write_text(json.dumps({"base": base}))

    def names(name: str) -> list[str]:
        found: list[str] = []
        one: Run | None = base_run(tmp_path, name)
        while one is not None:
            assert one.root == tmp_path / one.name
            found.append(one.name)
            one = one.base
        return found

    assert names(f"it/{part}") == [f"it/{part}", "it", "a/first"]
    assert names(f"other/{part}") == [f"other/{part}", "other"]
    assert names("it/tau") == ["it/tau"]  # a run below another
    assert names(f"first/{part}") == [f"first/{part}"]
    assert names("it") == ["it"]
    assert set(names(f"again/{part}")) == {f"again/{part}", "again"}
    with pytest.raises(ArtifactError, match=r"bad/sweep.json: is not the record of a sweep"):
        names(f"bad/{part}")


@pytest.mark.system
def test_trials_of_other_inputs_are_not_ranked_together(tmp_path: Path) -> None:
    words = (*SWEEP, "rollouts.policy=uniform", "vae.latent_size=32")
    for name, squash in (("one", "half_tanh"), ("other", "clipped_tanh")):
        path = shutil.copytree(shipped.PRETRAINED / "carracing", tmp_path / name) / "agent.json"
        record = json.loads(path.read_text())
        record["controller"]["squash"][1] = squash
        path.write_text(json.dumps(record))
    made(tmp_path, *words, f"base={tmp_path}/one")
    before = (tmp_path / "it/sweep.json").read_text()
    line = error_line(run(tmp_path, *BRIEF, *words, f"base={tmp_path}/other"))
    assert "it/sweep.json: a sweep that was made from base " in line
    assert line.endswith("choose another run=, or overwrite=true")
    assert (tmp_path / "it/sweep.json").read_text() == before
    assert "sweep: wrote" in made(tmp_path, *words, f"base={tmp_path}/one")
