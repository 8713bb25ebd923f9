"""Which encoder and dynamics model a configuration chooses."""

from pathlib import Path

import pytest
from command import composed, error_line, run

from worldmodels.config import limits
from worldmodels.errors import ConfigError
from worldmodels.runs.artifacts import Run
from worldmodels.stages.context import Context


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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("rnn.layers=3",),
            "rnn.layers=3: rnn.model=mdn_rnn has no such option; give null, or"
            " rnn.model=transformer",
        ),
        (("rnn.model=gru", "rnn.heads=2"), "rnn.heads=2: rnn.model=gru has no such option; give"),
        (
            ("vae.blocks=3",),
            "vae.blocks=3: vae.encoder=conv_vae has no such option; give null, or"
            " vae.encoder=resnet",
        ),
        (
            ("stage=vae", "vae.encoder=resnet", "vae.frames=8"),
            "vae.frames=8: vae.encoder=resnet has no such option; give null, or"
            " vae.encoder=conv3d or r3d18 or timesformer",
        ),
        (("vae.frozen=false",), "vae.frozen=false: vae.encoder=conv_vae has no such option; give"),
        (
            ("stage=sweep", "sweep.target=vae", "sweep.space={vae.blocks: [1, 2]}"),
            "vae.blocks=1: vae.encoder=conv_vae has no such option; give null, or",
        ),
        (
            ("stage=iterate", "iterate.schedule=[{round: 2, rnn: {context: 5}}]"),
            "with the values of iterate.schedule from round 2 on: rnn.context=5: rnn.model=mdn_rnn"
            " has no such option; give null, or",
        ),
    ],
)
def test_a_key_of_another_model_is_refused_before_the_first_stage(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    config = composed("preset=smoke", f"data={tmp_path}", *words)
    limits.check(config)
    with pytest.raises(ConfigError) as caught:
        Context(config, Run(tmp_path / "run")).check()
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    "words",
    [
        ("rnn.model=transformer", "rnn.layers=3", "rnn.heads=2", "rnn.context=5"),
        ("vae.encoder=resnet", "vae.blocks=2"),
        ("vae.encoder=conv3d", "vae.frames=3"),
    ],
)
def test_the_keys_of_the_chosen_model_are_taken(tmp_path: Path, words: tuple[str, ...]) -> None:
    config = composed("stage=all", "preset=smoke", f"data={tmp_path}", *words)
    Context(config, Run(tmp_path / "run")).check()
