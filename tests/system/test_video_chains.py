"""Every stage with the encoders of published video networks, in small sizes."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from command import ALONE, BRIEFLY, error_line, run
from safetensors.torch import save_file
from video_networks import MODULES, require

import worldmodels
from worldmodels.agents.folder import read_agent
from worldmodels.export.onnx_files import TOLERANCE
from worldmodels.files import weights
from worldmodels.files.atomic import read_json

pytestmark = [pytest.mark.system, pytest.mark.timeout(1800)]

CHOSEN = {
    "r3d18": ("vae.frames=3", "+vae.options.input_size=32"),
    "timesformer": (
        *("vae.frames=3", "+vae.options.input_size=32", "+vae.options.hidden_size=16"),
        *("+vae.options.layers=2", "+vae.options.heads=2"),
    ),
}


def published(encoder: str, path: Path) -> None:
    """Write weights as their authors publish them: random ones, with a classifier."""
    if encoder == "r3d18":
        from torchvision.models.video import r3d_18

        save_file(r3d_18().state_dict(), path)
        return
    from transformers import TimesformerConfig, TimesformerForVideoClassification

    sizes = {"image_size": 32, "num_frames": 3, "hidden_size": 16, "intermediate_size": 64}
    layers = {"num_hidden_layers": 2, "num_attention_heads": 2}
    model = TimesformerForVideoClassification(TimesformerConfig(**sizes, **layers))
    save_file(model.state_dict(), path)


@pytest.mark.parametrize("encoder", CHOSEN)
def test_a_chain_with_a_frozen_network_needs_its_weights_once(encoder: str, tmp_path: Path) -> None:
    require(encoder)
    alone = subprocess.run(
        [sys.executable, "-c", f"import {MODULES[encoder]}"], capture_output=True, text=True
    )
    if alone.returncode != 0:  # commands import it as it is
        pytest.skip(f"{MODULES[encoder]}: {alone.stderr.splitlines()[-1]}")
    source = tmp_path / "weights.safetensors"
    published(encoder, source)
    chosen = (f"vae.encoder={encoder}", f"vae.pretrained={source}", "vae.frozen=true")
    words = ("stage=all", "preset=smoke", "run=r", *chosen, *CHOSEN[encoder], *BRIEFLY, ALONE)
    done = run(tmp_path, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    trained = weights.load(tmp_path / "r/vae/vae.safetensors")["module"]
    stored = weights.load_tensors(source, weights.outline_tensors(source))
    kept = {f"network.{name.removeprefix('timesformer.')}": part for name, part in stored.items()}
    names = [name for name in trained if name.startswith("network.")]
    assert names
    assert all((trained[name] == kept[name]).all() for name in names)

    source.unlink()
    for stage in ("vae", "all"):  # done before, without the published weights
        done = run(tmp_path, f"stage={stage}", *words[1:])
        assert done.returncode == 0, done.stderr
        assert "vae: done before" in done.stdout
    done = run(tmp_path, "stage=vae", *words[1:], "overwrite=true")
    assert "there is no such file or folder" in error_line(done)
    agent = tmp_path / "r/controller/agent"
    assert read_agent(agent).encoder.clip_length == 3
    action = worldmodels.load_agent(agent).act(np.zeros((96, 96, 3), np.uint8))
    assert np.isfinite(action).all()
    words = ("stage=evaluate", "preset=smoke", "run=again", f"model={agent}", *BRIEFLY, ALONE)
    done = run(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    for model in ("gru", "transformer"):
        other = (f"run={model}", "base=r", f"rnn.model={model}", *chosen, *CHOSEN[encoder])
        done = run(tmp_path, "stage=all", "preset=smoke", *other, *BRIEFLY, ALONE)
        assert done.returncode == 0, done.stdout + done.stderr
        assert not (tmp_path / model / "vae").exists()  # that of the base run
        assert (
            model in read_json(tmp_path / model / "rnn/manifest.json")["summary"]["validation_nll"]
        )
        assert "agent" in read_json(tmp_path / model / "evaluate/scores.json")
    done = run(tmp_path, "stage=export", "run=r")
    assert done.returncode == 0, done.stderr
    described = read_json(tmp_path / "r/export/onnx/export.json")
    assert (described["encoder"], described["clip_length"]) == (encoder, 3)
    assert described["graphs"]["encoder"]["largest_difference"] <= TOLERANCE


@pytest.mark.parametrize("frozen", ["true", "false"])
def test_killed_while_a_published_network_is_trained(
    smoke: Path, tmp_path: Path, frozen: str
) -> None:
    """Each attempt dies at its write number so many; the last one ends with the same encoder."""
    require("timesformer")
    source = tmp_path / "weights.safetensors"
    published("timesformer", source)
    words = (
        *("preset=smoke", "stage=vae", "vae.epochs=2", "trainer.checkpoint_seconds=0", ALONE),
        *("vae.encoder=timesformer", f"vae.pretrained={source}", f"vae.frozen={frozen}"),
        *CHOSEN["timesformer"],
    )
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for data in (whole, killed):
        shutil.copytree(smoke / "smoke/rollouts", data / "smoke/rollouts")
    done = run(whole, *words)
    assert done.returncode == 0, done.stderr
    for number in (2, 3, 4):
        done = run(killed, *words, kill_at_write=number)
        assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr
    done = run(killed, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    one, two = (read_json(data / "smoke/vae/manifest.json") for data in (whole, killed))
    assert one["fingerprint"] == two["fingerprint"]
