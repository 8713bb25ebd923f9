"""Which encoder and dynamics model a configuration chooses."""

from pathlib import Path

import pytest
from command import error_line, run


@pytest.mark.parametrize(
    ("word", "said"),
    [
        (
            "vae.encoder=resnet",
            "vae.encoder=resnet: unknown encoder 'resnet'; choose one of conv_vae",
        ),
        ("rnn.model=conv_vae", "rnn.model=conv_vae: unknown dynamics model 'conv_vae'; choose"),
        ("+rnn.options.layers=2", "rnn.options.layers: no such option; MDNRNN has hidden_size"),
        ("rnn.death_weight=5", "rnn.death_weight: renamed; use rnn.termination_pos_weight"),
        ("+vae.options.kl_tolerance=high", "vae.options.kl_tolerance"),
        (
            "env.size=96",
            "vae.encoder=conv_vae: takes frames of 64 pixels, not env.size=96; choose env.size=64",
        ),
    ],
)
def test_what_no_model_has_ends_a_chain_before_its_first_stage(
    tmp_path: Path, word: str, said: str
) -> None:
    line = error_line(run(tmp_path, "stage=all", "preset=smoke", word))
    assert said in line
    assert not list(tmp_path.rglob("manifest.json"))
