"""Weights of published networks on the Hugging Face Hub, and what can use none or needs none."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from command import composed, error_line, run
from hub import COMMIT, Hub, serving
from safetensors.torch import save_file
from video_networks import provide

from worldmodels.agents import pretrained
from worldmodels.agents.hub import find_agent
from worldmodels.agents.model_files import save_dynamics
from worldmodels.config import limits
from worldmodels.config.schema import flat
from worldmodels.data.latents import FirstLatents
from worldmodels.errors import ArtifactError, ConfigError
from worldmodels.models.transformer import TransformerDynamics
from worldmodels.runs.artifacts import Run
from worldmodels.stages.context import Context
from worldmodels.stages.inputs import Inputs, Previous

NAME = "someone/network"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A Hub with weights, and with other files."""
    pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    folder = tmp_path / "repository"
    folder.mkdir()
    save_file({"a": torch.ones(2)}, folder / "model.safetensors")
    (folder / "pytorch_model.bin").write_bytes(bytes(1000))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    pretrained._fetched.cache_clear()
    with serving() as server:
        server.repositories[NAME] = folder
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        yield server
    pretrained._fetched.cache_clear()


def test_weights_are_fetched_once_and_only_their_file(hub: Hub) -> None:
    source = pretrained.find(f"hf://{NAME}@main")
    assert source.address == f"hf://{NAME}@{COMMIT}"
    assert source.path.name == "model.safetensors"
    pretrained._fetched.cache_clear()
    assert pretrained.find(f"hf://{NAME}") == source
    assert hub.sent == ["model.safetensors"]
    hub.repositories.clear()  # with a commit, no network is needed
    pretrained._fetched.cache_clear()
    assert pretrained.find(f"hf://{NAME}@{COMMIT}") == source


def test_what_the_hub_does_not_have_is_one_line(hub: Hub) -> None:
    for size, said in ((None, "has no size"), (2**40, "at most 4,294,967,296 are fetched")):
        hub.sizes["model.safetensors"] = size
        with pytest.raises(ArtifactError, match=said):
            pretrained.find(f"hf://{NAME}")
    (hub.repositories[NAME] / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"pytorch_model.bin may hold code") as caught:
        pretrained.find(f"hf://{NAME}")
    assert "\n" not in str(caught.value)
    assert hub.sent == []


# Commands


def test_without_a_network_a_hub_is_one_line_before_the_first_stage(
    hub: Hub, tmp_path: Path
) -> None:
    with serving() as other:
        closed = other.address
    words = ("stage=all", "preset=smoke", f"vae.pretrained=hf://{NAME}")
    line = error_line(run(tmp_path, *words, variables={"HF_ENDPOINT": closed}))
    assert line.startswith(f"error: vae.pretrained=hf://{NAME}: cannot be fetched (")
    assert line.endswith("connect to a network, or give a file or folder")
    assert not (tmp_path / "smoke").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("vae.encoder=r3d18", "vae.frozen=true"),
            "vae.frozen=true: the network's weights would stay random; give vae",
        ),
        (("vae.pretrained=FILE",), "vae.pretrained: there are no published weights for this enco"),
        (
            ("vae.pretrained=FILE", "base=pretrained/carracing"),
            "vae.pretrained=FILE: training starts from the encoder of the agent base=pretr",
        ),
        (("vae.pretrained=hf://a/b/c",), "vae.pretrained=hf://a/b/c: no address on the Hub; give"),
    ],
)
def test_what_training_cannot_start_from_ends_a_chain_before_its_first_stage(
    words: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provide("r3d18", monkeypatch)
    file = tmp_path / "w.safetensors"
    save_file({"a": torch.ones(2)}, file)
    words = tuple(word.replace("FILE", str(file)) for word in words)
    config = composed("stage=all", "preset=smoke", f"data={tmp_path}", *words)
    published = None if config.base is None else find_agent("base", config.base)
    with pytest.raises(ConfigError) as caught:
        limits.check(config)
        Context(config, Run(tmp_path / "run"), published).check()
    assert str(caught.value).startswith(said.replace("FILE", str(file)))
    assert "\n" not in str(caught.value)


def test_a_finished_encoder_needs_its_published_weights_no_more(tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    save_file({"a": torch.ones(2)}, file)
    config, run = composed("preset=smoke", f"vae.pretrained={file}"), Run(tmp_path / "run")
    inputs = Inputs(config, run)
    used = inputs.pretrained_fingerprint()
    assert used == {"pretrained": pretrained.find(str(file)).fingerprint}
    assert inputs.pretrained_before() is None
    with run.begin("vae", flat(vae=config.vae), used) as folder:
        folder.finish("abc")
    file.unlink()
    assert inputs.pretrained_fingerprint() == used
    assert inputs.pretrained_before() == used["pretrained"]
    other = replace(config, vae=replace(config.vae, pretrained=f"{tmp_path}/other"))
    for unfinished in (
        Inputs(config, Run(tmp_path / "another")),
        Inputs(replace(config, overwrite=True), run),
        Inputs(other, run),
    ):
        with pytest.raises(ConfigError, match="there is no such file or folder"):
            unfinished.pretrained_fingerprint()


def test_weights_for_another_number_of_attention_heads_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their tensors have the same shapes."""
    build = partial(TransformerDynamics, 4, 2, hidden_size=8, mixtures=2)
    path = tmp_path / "rnn.safetensors"
    trained = build(heads=2, context=6)
    save_dynamics(path, trained, FirstLatents(*np.zeros((2, 3, 4), np.float32)))
    monkeypatch.setattr(Inputs, "previous", lambda inputs, stage: Previous(path, ""))
    inputs = Inputs(composed("preset=smoke"), Run(tmp_path / "run"))
    started = build(heads=2, context=8)  # what is not of the network may differ
    inputs.warm_start("rnn", started)
    torch.testing.assert_close(started.state_dict(), trained.state_dict())
    with pytest.raises(ConfigError, match=r"^rnn: its sizes differ from those of .*rnn.safeten"):
        inputs.warm_start("rnn", build(heads=1, context=6))
