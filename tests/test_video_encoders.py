"""The encoders of published video networks: random weights, and files of the right form.

R3D-18 is built from a small network in place of torchvision's, except in one test.
"""

import importlib.util
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from command import composed
from exported import exported_shape
from safetensors.torch import save_file
from torch import Tensor, nn
from video_networks import MODULES, SMALL, SmallR3D18, provide, require

from worldmodels import extras
from worldmodels.agents import pretrained
from worldmodels.agents.folder import read_agent
from worldmodels.agents.model_files import load_encoder, save_encoder
from worldmodels.agents.registry import build_encoder
from worldmodels.errors import ArtifactError, ConfigError
from worldmodels.models.encoder import to_input
from worldmodels.models.r3d18 import R3D18VAE
from worldmodels.models.timesformer import TimesformerVAE
from worldmodels.models.video import check_clips

PRETRAINED = Path(__file__).resolve().parent.parent / "pretrained" / "carracing"


@pytest.fixture(params=SMALL)
def name(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    provide(request.param, monkeypatch)
    torch.manual_seed(0)
    return str(request.param)


def pixels(encoder: Any, rows: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    shape = (rows, encoder.clip_length, encoder.frame_size, encoder.frame_size, 3)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


def moved(encoder: Any) -> Any:
    """The encoder with other weights than it begins with, of which some are zero."""
    move(encoder.network)
    return encoder


def move(network: nn.Module) -> None:
    """Add noise to the tensors of a network; variances stay positive."""
    for name, tensor in network.state_dict().items():
        if tensor.is_floating_point():
            noise = 0.05 * torch.randn_like(tensor)
            tensor.add_(noise.abs() if name.endswith("running_var") else noise)


# Networks


def test_clips_become_a_posterior_and_its_latents_the_newest_frame(name: str) -> None:
    encoder = moved(SMALL[name]())
    frames = pixels(encoder, 2)
    loss, logs = encoder.loss(frames)
    loss.backward()
    assert logs.keys() == {"reconstruction", "kl", "active_dims"}
    assert all(part.grad is not None and part.grad.abs().sum() > 0 for part in encoder.parameters())
    mean, logvar = encoder.encode(to_input(frames))
    assert mean.shape == logvar.shape == (2, 5)
    images = encoder.decode(mean)
    assert images.shape == (2, 3, encoder.frame_size, encoder.frame_size)
    encoder.decode = lambda latents: images
    _, logs = encoder.loss(frames)
    error = (images - to_input(frames)[:, -1]).square().sum() / 2
    torch.testing.assert_close(logs["reconstruction"], error.detach())


def test_a_latent_depends_on_every_frame_of_its_clip_alone(name: str) -> None:
    encoder = moved(SMALL[name]()).train()
    images = to_input(pixels(encoder, 3))
    with torch.no_grad():
        mean = encoder.encode(images).mean
        alone = encoder.encode(images[1:2]).mean
        torch.testing.assert_close(mean[1:2], alone, rtol=1e-4, atol=1e-5)
        for frame in range(encoder.clip_length):
            changed = images[1:2].clone()
            changed[:, frame] = 1 - changed[:, frame]
            assert not torch.equal(encoder.encode(changed).mean, alone)


def test_the_network_has_frames_of_its_size_normalised(name: str) -> None:
    encoder = SMALL[name]()
    seen: list[Tensor] = []
    encoder.network.register_forward_pre_hook(
        lambda _, given, named: seen.append((*given, *named.values())[0]), with_kwargs=True
    )
    frames = torch.full((1, 3, encoder.frame_size, encoder.frame_size, 3), 51, dtype=torch.uint8)
    encoder.encode(to_input(frames))
    clips = seen[0] if name == "timesformer" else seen[0].transpose(1, 2)
    wanted = (0.2 - torch.tensor(encoder.MEAN)) / torch.tensor(encoder.STD)
    wanted = wanted.view(3, 1, 1).expand(1, 3, 3, encoder.input_size, encoder.input_size)
    torch.testing.assert_close(clips, wanted)


def test_it_comes_back_from_its_file_frozen_or_not(name: str, tmp_path: Path) -> None:
    path = tmp_path / "vae.safetensors"
    for frozen in (False, True):
        encoder = moved(SMALL[name](frozen=frozen)).eval()
        save_encoder(path, encoder)
        read: Any = load_encoder(path)
        assert type(read) is type(encoder)
        assert read.sizes == encoder.sizes
        assert read.clip_length == 3
        assert all(part.requires_grad is not frozen for part in read.network.parameters())
        assert all(part.requires_grad for part in read.decoder.parameters())
        images = to_input(pixels(encoder, 2))
        with torch.no_grad():
            assert torch.equal(read.encode(images).mean, encoder.encode(images).mean)


def test_bfloat16_in_a_file_does_not_round_the_normalisation(name: str, tmp_path: Path) -> None:
    path = tmp_path / "vae.safetensors"
    encoder = moved(SMALL[name]()).eval()
    images = to_input(pixels(encoder, 2))
    with torch.no_grad():
        wanted = encoder.encode(images).mean
        save_encoder(path, encoder.to(torch.bfloat16))
        read: Any = load_encoder(path)
        assert read.picture_mean.flatten().tolist() == torch.tensor(read.MEAN).tolist()
        assert read.picture_std.flatten().tolist() == torch.tensor(read.STD).tolist()
        torch.testing.assert_close(read.encode(images).mean, wanted, rtol=0.05, atol=0.05)
        # As worlds encode where the hardware has bfloat16.
        found = read.to(torch.bfloat16).encode(images.to(torch.bfloat16)).mean
        assert found.dtype == torch.bfloat16
        torch.testing.assert_close(found.float(), wanted, rtol=0.1, atol=0.1)


def test_r3d18_is_fine_tuned_by_stored_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torchvision's network in evaluation mode, with gradients; the statistics stay."""
    provide("r3d18", monkeypatch)
    model, encoder = published("r3d18"), SMALL["r3d18"]().train()
    state = {k: v for k, v in model.state_dict().items() if encoder.published_name(k) is not None}
    encoder.network.load_state_dict(state)
    clips = torch.randn(4, 3, 3, 16, 16)
    found = encoder.features(clips)
    wanted = model.maps(clips.transpose(1, 2)).mean(dim=2).flatten(1)
    torch.testing.assert_close(found, wanted)
    for features in (found, wanted):
        features.square().sum().backward()
    parts = dict(model.named_parameters())
    for key, part in encoder.network.named_parameters():
        torch.testing.assert_close(part.grad, parts[key].grad)
    torch.optim.Adam(encoder.parameters()).step()
    trained = encoder.network.state_dict().items()
    changed = {key for key, tensor in trained if not torch.equal(tensor, state[key])}
    assert {"stem.0.weight", "stem.1.weight", "layer4.1.conv2.1.bias"} <= changed
    assert not any("running" in key for key in changed)


def test_a_frozen_network_stays_as_it_is(name: str) -> None:
    encoder = SMALL[name](frozen=True)
    before = {key: tensor.clone() for key, tensor in encoder.state_dict().items()}
    optimizer = torch.optim.Adam(part for part in encoder.parameters() if part.requires_grad)
    encoder.train()
    encoder.loss(pixels(encoder, 2))[0].backward()
    optimizer.step()
    changed = {key for key, tensor in encoder.state_dict().items() if (tensor != before[key]).any()}
    trained = {key.split(".")[0] for key in changed}
    assert trained == {"posterior", "expand", "decoder"}


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"frames": 1}, "frames=1 is not possible; choose 2 to 64"),
        ({"patch_size": 1}, "patch_size=1 is not possible; choose 4 to 64"),
        ({"layers": 10**9}, "layers=1000000000 is not possible; choose 1 to 64"),
        ({"heads": 0}, "heads=0 is not possible; choose 1 to 64"),
        ({"hidden_size": 0}, "hidden_size=0 is not possible; choose 1 to 4096"),
        ({"hidden_size": 17}, "hidden_size=17 is not a multiple of heads=2; choose 16"),
        ({"input_size": 40}, "input_size=40 is not possible; choose a multiple of 16 from 16 to"),
        ({"input_size": 1024}, "input_size=1024 is not possible; choose a multiple of 16 from"),
    ],
)
def test_sizes_that_the_arithmetic_does_not_allow(sizes: dict[str, int], said: str) -> None:
    build: Any = TimesformerVAE
    wanted = {"frames": 3, "input_size": 32, "hidden_size": 16, "layers": 2, "heads": 2} | sizes
    with pytest.raises(ValueError, match=said):
        build(4, 16, **wanted)
    with pytest.raises(ValueError, match="choose a multiple of 5 from 20 to 512"):
        check_clips(3, 16, multiple=5)


@pytest.mark.system
def test_it_is_exported(name: str, tmp_path: Path) -> None:
    small = {"latent_size": 32, "frame_size": 64}
    encoder = moved(type(SMALL[name]())(**{**SMALL[name]().sizes, **small})).eval()
    agent = replace(read_agent(PRETRAINED), encoder=encoder)
    assert exported_shape(agent, tmp_path / "encoder.onnx") == [3, 3, 64, 64]


# Published weights


def published(name: str) -> Any:
    """The model as its authors publish it: with its classifier."""
    torch.manual_seed(3)
    if name == "r3d18":
        model = SmallR3D18()
        move(model)
        return model.eval()
    from transformers import TimesformerForVideoClassification

    return TimesformerForVideoClassification(SMALL[name]().network.config).eval()


def test_published_weights_give_what_the_published_model_gives(name: str, tmp_path: Path) -> None:
    model, encoder = published(name), SMALL[name](frozen=True)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    source = pretrained.find(str(tmp_path))
    assert source == pretrained.Source(tmp_path / "model.safetensors", None)
    assert len(source.fingerprint) == 16
    pretrained.load(encoder, source)
    clips = torch.randn(2, 3, 3, encoder.input_size, encoder.input_size)
    with torch.no_grad():
        found = encoder.features(clips)
        if name == "r3d18":
            wanted = model.maps(clips.transpose(1, 2)).mean(dim=2).flatten(1)
        else:
            tokens = model.timesformer(clips).last_hidden_state
            patches = tokens[:, 1:].reshape(2, 4, 3, 16)  # the frames of each patch side by side
            wanted = patches.mean(dim=2).flatten(1)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert not any(part.requires_grad for part in encoder.network.parameters())


@pytest.mark.system
def test_r3d18_is_torchvisions_network(tmp_path: Path) -> None:
    require("r3d18")
    from torchvision.models.video import r3d_18

    model: Any = r3d_18()
    assert model.state_dict().keys() == SmallR3D18().state_dict().keys()
    for key, tensor in model.state_dict().items():
        if "running" in key:
            tensor.uniform_(0.5, 1.5)
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    encoder = R3D18VAE(5, 32, frames=4, input_size=32)
    pretrained.load(encoder, pretrained.find(str(tmp_path / "w.safetensors")))
    model.fc = model.avgpool = nn.Identity()
    clips = torch.randn(2, 4, 3, 32, 32)
    with torch.no_grad():  # the network flattens its last maps: one moment, 2 x 2 places
        wanted = model.eval()(clips.transpose(1, 2))
        torch.testing.assert_close(encoder.features(clips), wanted, rtol=1e-4, atol=1e-4)


def test_half_precision_is_read_as_float32(tmp_path: Path) -> None:
    require("timesformer")
    encoder = SMALL["timesformer"]()
    state = {key: tensor.half() for key, tensor in published("timesformer").state_dict().items()}
    save_file(state, tmp_path / "w.safetensors")
    pretrained.load(encoder, pretrained.find(str(tmp_path / "w.safetensors")))
    assert {part.dtype for part in encoder.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda state: state.pop("layernorm.weight"), "layernorm.weight is missing"),
        (lambda state: state.update(more=torch.ones(2)), "more is too much"),
        (
            lambda state: state.update({"layernorm.bias": torch.ones(2)}),
            r"layernorm.bias is of shape \(2,\), not \(16,\)",
        ),
        (
            lambda state: state.update({"layernorm.bias": torch.ones(16, dtype=torch.int32)}),
            "layernorm.bias is of torch.int32",
        ),
        (
            lambda state: state.update({"timesformer.layernorm.bias": torch.ones(16)}),
            "a tensor is there under two names",
        ),
        (
            lambda state: state.update({"layernorm.bias": torch.full((16,), torch.nan)}),
            "layernorm.bias has numbers that are not finite",
        ),
    ],
)
def test_other_weights_are_one_line(change: Any, said: str, tmp_path: Path) -> None:
    require("timesformer")
    encoder = SMALL["timesformer"]()
    before = {key: tensor.clone() for key, tensor in encoder.state_dict().items()}
    state = dict(published("timesformer").timesformer.state_dict())
    change(state)
    save_file(state, tmp_path / "w.safetensors")
    with pytest.raises(ArtifactError, match=said) as caught:
        pretrained.load(encoder, pretrained.find(str(tmp_path / "w.safetensors")))
    assert "\n" not in str(caught.value)
    assert all(torch.equal(tensor, before[key]) for key, tensor in encoder.state_dict().items())


@pytest.mark.parametrize(
    ("files", "given", "said"),
    [
        ((), "w.safetensors", "there is no such file or folder; give one, or hf://owner/name"),
        ((), ".", "no file ends in .safetensors; give weights in this format"),
        (("w.pth",), "w.pth", "w.pth may hold code that runs where it is read; convert it with"),
        (("pytorch_model.bin",), ".", "pytorch_model.bin may hold code that runs where it is read"),
        (("a.safetensors", "b.safetensors"), ".", "2 files end in .safetensors and none is model."),
    ],
)
def test_where_there_are_no_weights_is_one_line(
    files: tuple[str, ...], given: str, said: str, tmp_path: Path
) -> None:
    for file in files:
        (tmp_path / file).touch()
    with pytest.raises(ConfigError, match=said) as caught:
        pretrained.find(str(tmp_path / given))
    assert str(caught.value).startswith(f"vae.pretrained={tmp_path / given}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"\xff" * 64, b"\x08" + bytes(7) + b'{"a":{}}'])
def test_a_damaged_file_is_one_line(content: bytes, tmp_path: Path) -> None:
    require("timesformer")
    (tmp_path / "w.safetensors").write_bytes(content)
    with pytest.raises(
        ArtifactError, match=r"w.safetensors is damaged .*; copy it again"
    ) as caught:
        pretrained.load(SMALL["timesformer"](), pretrained.find(str(tmp_path / "w.safetensors")))
    assert "\n" not in str(caught.value)


# Optional packages


@pytest.mark.parametrize("encoder", MODULES)
def test_without_the_package_the_line_names_the_extra(
    encoder: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = importlib.util.find_spec
    module = MODULES[encoder]
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == module else found(name))
    config = composed("preset=smoke", f"vae.encoder={encoder}").vae
    said = (
        f"vae.encoder={encoder}: encoder {encoder}: the Python module {module} is not installed;"
        rf" pip install 'worldmodels-gym\[{encoder}\]'"
    )
    with pytest.raises(ConfigError, match=said):
        build_encoder(config, 64)
    monkeypatch.undo()
    provide(encoder, monkeypatch)
    save_encoder(tmp_path / "vae.safetensors", SMALL[encoder]())
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == module else found(name))
    with pytest.raises(ArtifactError, match=rf"vae.safetensors: encoder {encoder}: the Python mod"):
        load_encoder(tmp_path / "vae.safetensors")


def test_a_package_that_does_not_fit_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise RuntimeError("operator torchvision::nms\ndoes not exist")

    monkeypatch.setattr(extras, "find_spec", lambda name: True)
    monkeypatch.setattr(extras, "import_module", broken)
    config = composed("preset=smoke", "vae.encoder=r3d18").vae
    with pytest.raises(
        ConfigError, match=r"torchvision cannot be imported \(RuntimeError: oper"
    ) as caught:
        build_encoder(config, 64)
    assert "\n" not in str(caught.value)


def test_the_file_of_an_encoder_needs_no_published_weights(name: str, tmp_path: Path) -> None:
    weights = tmp_path / "published"
    weights.mkdir()
    encoder = SMALL[name]()
    save_file(published(name).state_dict(), weights / "model.safetensors")
    pretrained.load(encoder, pretrained.find(str(weights)))
    save_encoder(tmp_path / "vae.safetensors", encoder)
    shutil.rmtree(weights)
    read: Any = load_encoder(tmp_path / "vae.safetensors")
    images = to_input(pixels(encoder, 2))
    with torch.no_grad():
        torch.testing.assert_close(read.encode(images).mean, encoder.eval().encode(images).mean)
