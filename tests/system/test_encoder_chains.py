"""Every stage with the encoders that are not the default, with each dynamics model."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from command import ALONE, error_line, run

import worldmodels
from worldmodels.agents.folder import read_agent
from worldmodels.export.onnx_files import TOLERANCE
from worldmodels.files.atomic import read_json

pytestmark = [pytest.mark.system, pytest.mark.timeout(1800)]

WORDS = ("preset=smoke", "evaluate.engine=native", "rnn.baselines=false", ALONE)
CHOSEN = {
    "resnet": ("vae.encoder=resnet", "vae.blocks=2"),
    "conv3d": ("vae.encoder=conv3d", "vae.frames=3"),
}


@pytest.mark.parametrize("encoder", CHOSEN)
def test_every_stage_uses_the_encoder_with_each_dynamics_model(copy: Path, encoder: str) -> None:
    anew = ("stage=vae", "preset=smoke", "overwrite=true", ALONE)
    done = run(copy, *anew, *CHOSEN[encoder])
    assert done.returncode == 0, done.stdout + done.stderr
    for model in ("mdn_rnn", "gru", "transformer"):
        chosen = (f"run={model}", "base=smoke", f"rnn.model={model}", "controller.world=dream")
        video = f"evaluate.video={str(model == 'mdn_rnn').lower()}"
        done = run(copy, "stage=all", *WORDS, *CHOSEN[encoder], *chosen, video)
        assert done.returncode == 0, done.stdout + done.stderr
        made = copy / model
        assert not (made / "vae").exists()  # that of the base run
        scores = read_json(made / "evaluate/scores.json")
        assert {"agent", "random policy", "agent in the dream"} <= scores.keys()
        assert "is not finished" not in (made / "report/index.html").read_text()
    assert list((copy / "mdn_rnn/evaluate").glob("*.mp4"))
    agent = copy / "mdn_rnn/controller/agent"
    clip = 3 if encoder == "conv3d" else 1
    assert read_agent(agent).encoder.clip_length == clip

    frames = np.random.default_rng(0).integers(256, size=(4, 3, 96, 96, 3), dtype=np.uint8)
    together, alone = worldmodels.load_agent(agent), worldmodels.load_agent(agent)
    together.reset(seed=0)
    alone.reset(seed=1)
    for batch in frames:
        actions = together.act(batch)
        np.testing.assert_allclose(np.asarray(actions)[1], alone.act(batch[1]), atol=1e-4)
    env = worldmodels.make_dream(agent, 2, decoded=True)
    assert env.reset(seed=0)[0].shape == (2, 64, 64, 3)

    shutil.rmtree(copy / "mdn_rnn/evaluate")
    again = ("run=mdn_rnn", f"model={agent}", *CHOSEN[encoder])
    done = run(copy, "stage=evaluate", *WORDS, *again)
    assert done.returncode == 0, done.stderr
    done = run(copy, "stage=export", "run=mdn_rnn")
    assert done.returncode == 0, done.stderr
    described = read_json(copy / "mdn_rnn/export/onnx/export.json")
    assert (described["encoder"], described["clip_length"]) == (encoder, clip)
    assert described["graphs"]["encoder"]["largest_difference"] <= TOLERANCE

    shutil.copytree(copy / "smoke/rollouts", copy / "other/rollouts")
    other = "vae.blocks=1" if encoder == "resnet" else "vae.frames=4"
    words = ("stage=vae", "preset=smoke", "run=other", f"base={agent}", ALONE)
    line = error_line(run(copy, *words, CHOSEN[encoder][0], other))
    assert "its sizes differ from those of" in line


def test_weights_of_another_encoder_are_refused(copy: Path) -> None:
    agent, words = copy / "smoke/controller/agent", ("stage=vae", "preset=smoke", ALONE)
    shutil.copytree(copy / "smoke/rollouts", copy / "other/rollouts")
    line = error_line(run(copy, *words, "run=other", f"base={agent}", *CHOSEN["resnet"]))
    assert "its sizes differ from those of" in line
    assert not (copy / "other/vae/vae.safetensors").exists()
    line = error_line(run(copy, *words, *CHOSEN["conv3d"]))
    assert "vae.encoder" in line
