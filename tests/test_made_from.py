"""What an artifact is made from: the keys and inputs by which a stage knows that it is done."""

from pathlib import Path

import pytest
from command import ALONE, error_line, run

from worldmodels.runs.manifests import read_manifest, write_manifest

SMOKE = ("preset=smoke", ALONE)
DREAMT = (
    *("stage=controller", *SMOKE, "run=dreamt", "base=smoke", "controller.world=dream"),
    *("controller.latent=sampled", "controller.starts=recorded", "controller.generations=1"),
)
NOISE = (
    *("stage=rollouts", *SMOKE, "run=noise", "env.num_envs=2", "rollouts.episodes=2"),
    *("rollouts.policy=action_noise", "rollouts.action_noise=0.3", "rollouts.max_steps=3"),
)
SQUASH = "env.squash=[tanh,tanh,tanh]"


def done(data: Path, *words: str) -> str:
    """What a command that succeeds says."""
    result = run(data, *words)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout + result.stderr


@pytest.mark.system
def test_actions_of_another_range_are_those_of_another_controller(copy: Path) -> None:
    line = error_line(run(copy, "stage=controller", *SMOKE, SQUASH))
    assert "smoke/controller was made with env.squash=" in line
    said = done(
        copy, "stage=all", *SMOKE, "run=other", "base=smoke", SQUASH, "evaluate.video=false"
    )
    assert (copy / "other/controller/agent").is_dir(), said
    assert not (copy / "other/rnn").exists()
    done(copy, *NOISE)
    line = error_line(run(copy, *NOISE, "rollouts.episodes=4", SQUASH))
    assert "noise/rollouts was made with env.squash=" in line


@pytest.mark.parametrize("override", [SQUASH, "rollouts.stall_steps=7"])
def test_a_controller_of_the_learned_model_has_its_keys(copy: Path, override: str) -> None:
    done(copy, *DREAMT)
    assert "controller: done before" in done(copy, *DREAMT)
    key = override.partition("=")[0]
    assert f"dreamt/controller was made with {key}=" in error_line(run(copy, *DREAMT, override))


@pytest.mark.parametrize("override", ["env.crop_rows=null", "env.frame_skip=4", "env.size=32"])
def test_a_controller_has_the_frames_of_the_episodes(copy: Path, override: str) -> None:
    line = error_line(run(copy, *DREAMT, override))
    assert override in line
    assert "smoke/rollouts have env." in line


def test_episodes_of_an_older_version_lack_keys_that_are_not_compared(copy: Path) -> None:
    folder = copy / "smoke/rollouts"
    record = read_manifest(folder)
    for key in ("env.size", "env.frame_skip"):
        del record["config"][key]
    write_manifest(folder, record)
    done(copy, *DREAMT)


def test_a_key_of_controllers_does_not_matter_to_random_actions(copy: Path) -> None:
    said = done(copy, "stage=rollouts", *SMOKE, "rollouts.noise_exponent=1")
    assert "rollouts: done before" in said


@pytest.mark.system
def test_models_that_do_not_belong_together_are_neither_used_nor_reported(copy: Path) -> None:
    assert "left out" not in done(copy, "stage=report", *SMOKE)
    done(copy, "stage=vae", *SMOKE, "vae.learning_rate=2e-3", "overwrite=true")
    line = error_line(run(copy, "stage=controller", *SMOKE, "overwrite=true"))
    assert "smoke/rnn: was made from another vae (" in line
    assert "stage=rnn overwrite=true" in line
    said = done(copy, "stage=report", *SMOKE)
    page = (copy / "smoke/report/index.html").read_text()
    for stage, title in (("rnn", "Dynamics model"), ("controller", "Controller")):
        assert f"report: {stage} is left out" in said
        assert f'<h2>{title}</h2>\n<p class="absent">' in page
    assert "report: evaluate is left out" in said
    assert "report: vae is left out" not in said


@pytest.mark.system
def test_scores_of_an_earlier_controller_are_not_reported(copy: Path) -> None:
    done(copy, "stage=controller", *SMOKE, "controller.sigma=0.3", "overwrite=true")
    said = done(copy, "stage=report", *SMOKE)
    assert "report: evaluate is left out" in said
    assert "report: controller is left out" not in said


@pytest.mark.system
def test_damaged_shards_can_be_left_out_of_a_training(copy: Path) -> None:
    path = copy / "smoke/rollouts/shard-00001.h5"
    path.write_bytes(path.read_bytes()[:-5000])
    vae = ("stage=vae", *SMOKE, "rollouts.on_corrupt=skip")
    refused = run(copy, *vae)
    assert refused.returncode == 1
    assert "another set of shards (None, now without rollouts/shard-00001.h5)" in refused.stderr
    done(copy, *vae, "overwrite=true")
    done(copy, "stage=rnn", *SMOKE, "rollouts.on_corrupt=skip", "overwrite=true")
    done(copy, "stage=report", *SMOKE, "rollouts.on_corrupt=skip")
    sheet = (copy / "smoke/report/reproducibility.html").read_text()
    assert "Data files that models were trained on: without rollouts/shard-00001.h5." in sheet
