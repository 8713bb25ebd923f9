"""Which encoder and dynamics model a configuration chooses."""

from pathlib import Path

import pytest
from command import error_line, run


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "vae.encoder=unet",
            "vae.encoder=unet: unknown encoder 'unet'; choose one of conv_vae, resnet, conv3d,"
            " r3d18, timesformer",
        ),
        (
            "vae.encoder=conv3d env.size=72",
            "vae.encoder=conv3d: takes frames of a multiple of 16 pixels, not env.size=72; choose"
            " env.size=64",
        ),
        ("vae.encoder=conv3d vae.frames=1", "vae.frames=1: choose 2 to 64"),
        (
            "vae.encoder=resnet +vae.options.channels=8",
            "vae.options.channels: no such option; ResNetVAE has blocks, kl_tolerance",
        ),
        ("rnn.model=conv_vae", "rnn.model=conv_vae: unknown dynamics model 'conv_vae'; choose"),
        ("+rnn.options.layers=2", "rnn.options.layers: no such option; MDNRNN has hidden_size"),
        ("rnn.death_weight=5", "rnn.death_weight: renamed; use rnn.termination_pos_weight"),
        ("+vae.options.kl_tolerance=high", "vae.options.kl_tolerance"),
        (
            "env.size=96",
            "vae.encoder=conv_vae: takes frames of 64 pixels, not env.size=96; choose env.size=64",
        ),
        (
            "rnn.model=gru controller.features=zch",
            "controller.features=zch: this dynamics model's state has no c (it has h); choose z or"
            " zh, or another model",
        ),
        (
            "rnn.model=transformer rnn.hidden_size=36",
            "rnn.model=transformer: hidden_size=36 is not a multiple of twice the heads=4; choose",
        ),
    ],
)
def test_what_no_model_has_ends_a_chain_before_its_first_stage(
    tmp_path: Path, words: str, said: str
) -> None:
    line = error_line(run(tmp_path, "stage=all", "preset=smoke", *words.split()))
    assert said in line
    assert not list(tmp_path.rglob("manifest.json"))
