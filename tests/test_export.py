"""An agent as ONNX: equal to PyTorch, described, and one line where it cannot be made."""

import gzip
import hashlib
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from command import error_line, run
from shell import Commands
from torch import Tensor

from worldmodels.agents.folder import load_config, read_agent, save_config
from worldmodels.envs.action_spec import ActionBounds, BoxActions, DiscreteActions
from worldmodels.errors import ArtifactError, ConfigError
from worldmodels.export import onnxruntime_web
from worldmodels.export.controls import Controls, controls_of
from worldmodels.export.graphs import Graph, graphs_of
from worldmodels.export.onnx_files import TOLERANCE, write_graph
from worldmodels.files import weights
from worldmodels.files.atomic import read_json
from worldmodels.files.caches import cache_folder
from worldmodels.models.dynamics import State
from worldmodels.models.mdnrnn import MDNRNN

PRETRAINED = Path(__file__).resolve().parent.parent / "pretrained"


@pytest.mark.system
def test_a_run_is_exported_once_and_its_graphs_compute_what_pytorch_does(copy: Path) -> None:
    command = ("stage=export", "run=smoke")
    done = run(copy, *command)
    assert done.returncode == 0, done.stderr
    folder = copy / "smoke" / "export" / "onnx"
    described = read_json(folder / "export.json")
    agent = read_agent(copy / "smoke" / "controller" / "agent")
    assert described["name"] == "smoke"
    assert described["states"] == ["state_0", "state_1"]
    for graph in graphs_of(agent):
        entry = described["graphs"][graph.name]
        assert entry["largest_difference"] <= TOLERANCE
        session = onnxruntime.InferenceSession(folder / entry["file"])
        example = dict(zip(graph.inputs, graph.example(7), strict=True))
        feeds = {port["name"]: example[port["name"]].numpy() for port in entry["inputs"]}
        with torch.no_grad():
            wanted = graph(*example.values())
        for found, expected in zip(session.run(graph.outputs, feeds), wanted, strict=True):
            np.testing.assert_allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE)
    written = (folder / "dynamics.onnx").stat().st_mtime_ns
    assert "done before" in run(copy, *command).stdout
    assert (folder / "dynamics.onnx").stat().st_mtime_ns == written


class Branching(MDNRNN):
    """Its step depends on a value, which a graph cannot."""

    def advance(self, latents: Tensor, actions: Tensor, state: State) -> State:
        return super().advance(latents if float(latents.sum()) > 0 else -latents, actions, state)


class Growing(MDNRNN):
    """Its state has a column more at each step."""

    def advance(self, latents: Tensor, actions: Tensor, state: State) -> State:
        return tuple(torch.cat([part, part[:, :1]], dim=1) for part in state)


@pytest.mark.parametrize(
    ("kind", "problem"), [(Branching, "torch.export"), (Growing, "one shape and type")]
)
def test_a_dynamics_model_without_a_graph_is_one_line(
    kind: type[MDNRNN], problem: str, tmp_path: Path
) -> None:
    agent = read_agent(PRETRAINED / "carracing")
    model = kind(**agent.dynamics.sizes).eval()
    _, _, dynamics, _ = graphs_of(replace(agent, dynamics=model))
    with pytest.raises(ArtifactError, match=problem) as caught:
        write_graph(tmp_path / "dynamics.onnx", dynamics)
    assert "\n" not in str(caught.value)


class NotANumber(Graph):
    """The second output is the logarithm of a negative number."""

    def __init__(self) -> None:
        super().__init__("nan", ("x",), ("same", "log"))

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return inputs[0] + 0, inputs[0].log()

    def example(self, rows: int) -> tuple[Tensor, ...]:
        return (torch.full((rows, 2), -1.0),)


def test_an_output_that_is_no_number_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="differs from PyTorch by nan, more than"):
        write_graph(tmp_path / "nan.onnx", NotANumber())


def test_an_agent_without_first_latents_is_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "agent"
    shutil.copytree(PRETRAINED / "carracing", folder)
    tree = weights.load(folder / "rnn.safetensors")
    tree["first_latents"] = {name: rows[:0] for name, rows in tree["first_latents"].items()}
    weights.save(folder / "rnn.safetensors", tree)
    save_config(folder, load_config(folder))
    done = run(tmp_path, "stage=export", f"model={folder}")
    assert "first_latents" in error_line(done)
    assert not (tmp_path / "carracing" / "export" / "onnx").exists()


# Keys of the page


def controlled(actions: Any, env_id: str = "Some-v0") -> Any:
    return controls_of(env_id, actions.bounds)


def shipped(name: str) -> tuple[Controls, ActionBounds]:
    config = load_config(PRETRAINED / name)
    return controls_of(config.env_id, config.actions.bounds), config.actions.bounds


def test_the_arrow_keys_drive_a_car() -> None:
    controls, bounds = shipped("carracing")
    assert controls.names == ("steering", "gas", "brake")
    assert controls.rest == (0.0, 0.0, 0.0)
    assert controls.keys == {
        "ArrowLeft": (-1.0, 0.0, 0.0),
        "ArrowRight": (1.0, 0.0, 0.0),
        "ArrowUp": (0.0, 1.0, 0.0),
        "ArrowDown": (0.0, 0.0, 1.0),
    }
    assert controls.action([], bounds).tolist() == [0, 0, 0]
    assert controls.action(["ArrowLeft", "ArrowUp", "x"], bounds).tolist() == [-1, 1, 0]
    assert controls.action(["ArrowLeft", "ArrowRight"], bounds).tolist() == [0, 0, 0]
    assert controls.action(["ArrowUp", "ArrowUp"], bounds).tolist() == [0, 1, 0]


def test_take_cover_moves_left_and_right() -> None:
    controls, _ = shipped("takecover")
    assert controls.names == ("movement",)
    assert controls.keys == {"ArrowLeft": (-1.0,), "ArrowRight": (1.0,)}


def test_digits_choose_discrete_actions() -> None:
    controls = controlled(DiscreteActions(3))
    assert controls.names == ("action 1", "action 2", "action 3")
    assert controls.rest == (1.0, 0.0, 0.0)
    assert controls.keys["3"] == (0.0, 0.0, 1.0)
    bounds = DiscreteActions(3).bounds
    assert controls.action(["3", "2"], bounds).tolist() == [0, 1, 0], "the latest key"


def test_other_boxes_have_keys_for_their_first_two_numbers() -> None:
    assert controlled(BoxActions((-2.0, -2.0), (2.0, 2.0))).keys == {
        "ArrowLeft": (-1.0, 0.0),
        "ArrowRight": (1.0, 0.0),
        "ArrowDown": (0.0, -1.0),
        "ArrowUp": (0.0, 1.0),
    }
    assert controlled(BoxActions((0.0,), (1.0,))).keys == {"ArrowRight": (1.0,)}


# ONNX Runtime Web


@pytest.fixture
def cache(commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, and stand-ins before the other commands on PATH."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CALLS", str(commands.calls_file))
    monkeypatch.setenv("PATH", commands.env["PATH"])
    return cache_folder(f"onnxruntime-web-{onnxruntime_web.VERSION}")


def test_without_npm_the_line_says_what_to_do(
    commands: Commands, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(commands.bin))
    with pytest.raises(ConfigError, match=r"npm, which downloads it, is missing; install npm"):
        onnxruntime_web.fetch()


def test_without_network_the_line_says_what_npm_said(commands: Commands, cache: Path) -> None:
    commands.add("npm", "echo 'npm error getaddrinfo' >&2; exit 1")
    with pytest.raises(ConfigError, match=r"getaddrinfo.*connect to a network, or run npm pack"):
        onnxruntime_web.fetch()


@pytest.fixture
def archive(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small archive, put into the cache folder by hand, with the SHA-512 of its files."""
    package = tmp_path / "package" / "dist"
    package.mkdir(parents=True)
    for name in onnxruntime_web.FILES:
        content = "".join(f"{name} {number * number}\n" for number in range(20_000)).encode()
        (package / name).write_bytes(content)
        monkeypatch.setitem(onnxruntime_web.FILES, name, hashlib.sha512(content).hexdigest())
    cache.mkdir(parents=True)
    packed = shutil.make_archive(str(tmp_path / "a"), "gztar", tmp_path, "package")
    return Path(shutil.move(packed, cache / f"onnxruntime-web-{onnxruntime_web.VERSION}.tgz"))


def test_an_archive_is_unpacked_once_and_what_is_damaged_then_is_repaired(archive: Path) -> None:
    assert onnxruntime_web.fetch() == archive.parent
    assert {path.name for path in archive.parent.iterdir()} == {archive.name} | {
        *onnxruntime_web.FILES
    }
    name, *_ = onnxruntime_web.FILES
    (archive.parent / name).write_text("cut o")
    onnxruntime_web.fetch()
    assert onnxruntime_web.kept()
    archive.unlink()
    assert onnxruntime_web.fetch() == archive.parent


@pytest.mark.parametrize("kind", ["cut off", "damaged", "empty", "text", "no such file"])
def test_a_damaged_archive_is_one_line_and_leaves_nothing(archive: Path, kind: str) -> None:
    content = archive.read_bytes()
    middle = len(content) // 2
    damaged = {
        "cut off": content[:middle],
        "damaged": content[:middle] + bytes(200) + content[middle + 200 :],
        "empty": b"",
        "text": b"no archive",
        "no such file": gzip.compress(bytes(10_240)),
    }
    archive.write_bytes(damaged[kind])
    with pytest.raises(ConfigError, match=rf"^{archive.name}: .*; remove {archive} and get it"):
        onnxruntime_web.fetch()
    assert list(archive.parent.iterdir()) == [archive]


def test_an_archive_with_one_file_of_something_else_is_not_used(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    *_, last = onnxruntime_web.FILES
    monkeypatch.setitem(onnxruntime_web.FILES, last, "0" * 128)
    with pytest.raises(ConfigError, match=rf"{last} is not that of .*SHA-512"):
        onnxruntime_web.fetch()
    assert list(archive.parent.iterdir()) == [archive]


def test_a_damaged_download_is_not_used(archive: Path, commands: Commands) -> None:
    archive.unlink()
    commands.add("npm", f'echo "no archive" > "${{@: -1}}/{archive.name}"')
    with pytest.raises(ConfigError, match=rf"^{archive.name}: .*; try again, or run npm pack"):
        onnxruntime_web.fetch()
    assert list(archive.parent.iterdir()) == []
