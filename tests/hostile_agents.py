"""Agents that a stranger may have made to stop, fill or mislead the program that opens them."""

import json
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from worldmodels.agents.folder import RECORD, fingerprint, read_agent
from worldmodels.agents.model_files import load_first_latents
from worldmodels.evolution.pca import PCASubspace
from worldmodels.files import weights

MEMORY = 512 * 2**20
"""Bytes that opening any of them may take, beyond what the program has in use."""


def judge(root: Path, verdicts: Path) -> None:
    """Open every agent in `root` with little memory, and write down what was raised, by name."""
    in_use = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (in_use + MEMORY, in_use + MEMORY))
    found = {}
    for folder in sorted(root.iterdir()):
        try:
            _open(folder)
            found[folder.name] = ["opened", ""]
        except Exception as error:
            found[folder.name] = [type(error).__name__, str(error)]
        verdicts.write_text(json.dumps(found))


def _open(folder: Path) -> None:
    fingerprint(folder)
    agent = read_agent(folder)
    load_first_latents(folder / "rnn.safetensors")
    PCASubspace.load(folder / "pca_subspace.safetensors", agent.config.controller)


def record(**changes: Any) -> Callable[[Path], None]:
    """Other words in ``agent.json``."""

    def damage(folder: Path) -> None:
        path = folder / RECORD
        content = json.dumps(json.loads(path.read_text()) | changes)
        path.unlink()
        path.write_text(content)

    return damage


def without(*names: str) -> Callable[[Path], None]:
    """``agent.json`` without some of its words."""

    def damage(folder: Path) -> None:
        content = json.loads((folder / RECORD).read_text())
        text(json.dumps({name: content[name] for name in content if name not in names}))(folder)

    return damage


def features(**changes: Any) -> Callable[[Path], None]:
    """Another description of what the controller sees."""
    return _group("features", changes)


def controller(**changes: Any) -> Callable[[Path], None]:
    """Another description of the controller's layers."""
    return _group("controller", changes)


def _group(name: str, changes: dict[str, Any]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        said = json.loads((folder / RECORD).read_text())
        record(**{name: said[name] | changes})(folder)

    return damage


def model(name: str, **changes: Any) -> Callable[[Path], None]:
    """Another description of a model: its class, format or sizes."""
    return tree(name, lambda content: content["model"].update(changes))


def text(content: str | bytes, name: str = RECORD) -> Callable[[Path], None]:
    """Another content of a file."""

    def damage(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    return damage


def place(name: str, put: Callable[[Path], Any]) -> Callable[[Path], None]:
    """Something else than a file."""

    def damage(folder: Path) -> None:
        (folder / name).unlink()
        put(folder / name)

    return damage


def tree(name: str, change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """Another content of a file of weights, as the program itself would write it."""

    def damage(folder: Path) -> None:
        path = folder / f"{name}.safetensors"
        content = weights.load(path)
        change(content)
        weights.save(path, content)

    return damage


def sizes(name: str, **changes: Any) -> Callable[[Path], None]:
    return tree(name, lambda content: content["model"]["sizes"].update(changes))


def module(name: str, **changes: torch.Tensor) -> Callable[[Path], None]:
    return tree(name, lambda content: content["module"].update(changes))


def raw(
    skeleton: Any, shape: tuple[int, ...] = (1,), length: int | None = None
) -> Callable[[Path], None]:
    """A file of weights made by hand: its tree, one tensor ``x``, and the length it gives out."""

    def damage(folder: Path) -> None:
        size = 4
        for side in shape:
            size *= side
        text_ = skeleton if isinstance(skeleton, str) else json.dumps(skeleton)
        head = {"x": {"dtype": "F32", "shape": shape, "data_offsets": [0, size]}}
        header = json.dumps({"__metadata__": {"tree": text_}, **head}).encode()
        path = folder / "vae.safetensors"
        path.unlink()
        with path.open("wb") as file:
            file.write((len(header) if length is None else length).to_bytes(8, "little") + header)
            # A hole: takes no disk, reads as zeros.
            file.truncate(min(8 + len(header) + size, 2**41))

    return damage


def flip(folder: Path) -> None:
    """One bit of a weight, in an agent that names its SHA-256s."""
    path = folder / "rnn.safetensors"
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    text(bytes(content), path.name)(folder)


def swap(folder: Path) -> None:
    """Another agent's controller in an agent that names its SHA-256s."""
    path = folder / "controller.safetensors"
    weights.save(path, {"parameters": weights.load(path)["parameters"] + 1})


KEEPING_SHA256 = {"flipped bit", "another controller", "no subspace", "files of another kind"}
KEEPING_SHA256 |= {"a file elsewhere", "a number as files"}
BOX = {"kind": "box", "low": [-1.0, 0.0, 0.0], "high": [1.0, 1.0, 1.0]}
_X = {"__tensor__": "x"}
_DEEP: Any = {"value": 0}
for _ in range(200):
    _DEEP = {"list": [_DEEP]}
CASES: dict[str, Callable[[Path], None]] = {
    "a million latents": sizes("vae", latent_size=10**6),
    "few more latents": sizes("vae", latent_size=33),
    "latents as text": sizes("vae", latent_size="32"),
    "latents as truth": sizes("vae", latent_size=True),
    "latents as half": sizes("vae", latent_size=0.5),
    "latents below zero": sizes("vae", latent_size=-1),
    "tolerance not a number": sizes("vae", kl_tolerance=float("nan")),
    "folded as a number": sizes("vae", folded=3),
    "endless hidden state": sizes("rnn", hidden_size=10**9),
    "mixtures of a thousand digits": sizes("rnn", mixtures=10**1000),
    "actions of another world": sizes("rnn", action_size=7),
    "a class that nobody registered": model("rnn", **{"class": "os.system"}),
    "a class of the other kind": model("vae", **{"class": "mdn_rnn"}),
    "a class as a list": model("vae", **{"class": ["conv_vae"]}),
    "another format": model("rnn", format=99),
    "frames of another size": sizes("vae", frame_size=96),
    "a size that nobody knows": sizes("rnn", __class__="x"),
    "no sizes": tree("vae", lambda content: content["model"].pop("sizes")),
    "sizes as a list": tree("vae", lambda content: content["model"].update(sizes=[1])),
    "no weights": tree("vae", lambda content: content.pop("module")),
    "weights as a number": tree("vae", lambda content: content.update(module=1)),
    "a part too many": tree("vae", lambda content: content.update(more=1)),
    "a tensor less": tree("vae", lambda content: content["module"].pop("first_bias")),
    "a tensor more": module("vae", more=torch.zeros(3)),
    "another shape": module("vae", first_bias=torch.zeros(127)),
    "numbers in place of a tensor": tree(
        "vae", lambda content: content["module"].update(first_bias=[0.0] * 128)
    ),
    "integers for weights": module("vae", first_bias=torch.zeros(128, dtype=torch.int64)),
    "a weight that is not a number": module("vae", first_bias=torch.full((128,), torch.nan)),
    "an endless weight": tree(
        "rnn", lambda content: content["module"]["head.bias"].fill_(torch.inf)
    ),
    "dreams that begin nowhere": tree(
        "rnn",
        lambda content: content["first_latents"].update(
            mean=torch.zeros(0, 32), logvar=torch.zeros(0, 32)
        ),
    ),
    "dreams of another size": tree(
        "rnn", lambda content: content["first_latents"].update(mean=torch.zeros(5, 31))
    ),
    "dreams of a number": tree("rnn", lambda content: content.update(first_latents=5)),
    "dreams without a spread": tree("rnn", lambda content: content["first_latents"].pop("logvar")),
    "controller as a matrix": tree(
        "controller", lambda c: c.update(parameters=c["parameters"][None].clone())
    ),
    "controller in float64": tree(
        "controller", lambda c: c.update(parameters=c["parameters"].double())
    ),
    "controller as a number": tree("controller", lambda c: c.update(parameters=1)),
    "controller too short": tree(
        "controller", lambda c: c.update(parameters=c["parameters"][1:].clone())
    ),
    "controller not finite": tree("controller", lambda c: c["parameters"].fill_(torch.nan)),
    "subspace without a centre": tree("pca_subspace", lambda content: content.pop("centre")),
    "subspace as a vector": tree(
        "pca_subspace", lambda content: content.update(axes=torch.zeros(9).double())
    ),
    "subspace as a number": tree("pca_subspace", lambda content: content.update(axes=1)),
    "subspace not finite": tree("pca_subspace", lambda content: content["axes"].fill_(torch.nan)),
    "a pipe for weights": place("vae.safetensors", os.mkfifo),
    "a pipe for a record": place(RECORD, os.mkfifo),
    "zeros without end": place("rnn.safetensors", lambda path: path.symlink_to("/dev/zero")),
    "a link to a secret": place("rnn.safetensors", lambda path: path.symlink_to("/etc/hostname")),
    "a link to nothing": place("controller.safetensors", lambda path: path.symlink_to("gone")),
    "a record elsewhere": place(RECORD, lambda path: path.symlink_to("/etc/hostname")),
    "a folder for weights": place("vae.safetensors", Path.mkdir),
    "no weights file": place("vae.safetensors", lambda path: None),
    "an empty file": text(b"", "vae.safetensors"),
    "a picture": text(b"\x89PNG\r\n\x1a\n" * 100, "vae.safetensors"),
    "a header without end": raw(_X, length=2**62),
    "a terabyte of holes": raw({"dict": [["module", _X]]}, shape=(2**38,)),
    "a shape beyond numbers": raw(_X, shape=(2**40, 2**40)),
    "no tree": text(
        (2).to_bytes(8, "little") + b"{}",
        "vae.safetensors",
    ),
    "a tree that is none": raw("[" * 100_000),
    "a deep tree": raw(_DEEP),
    "a tensor for a tree": raw(_X),
    "a tensor twice": raw({"dict": [["sizes", _X], ["module", _X]]}),
    "a tensor that is not there": raw({"dict": [["module", {"__tensor__": "y"}], ["x", _X]]}),
    "a tensor of a list": raw({"__tensor__": ["x"]}),
    "a node of another kind": raw({"eval": "exit()"}),
    "a key as a list": raw({"dict": [[[1], _X]]}),
    "a pair of three": raw({"dict": [[1, 2, _X]]}),
    "a list of numbers": raw({"list": [1, 2]}),
    "a key twice": raw({"dict": [["a", _X], ["a", {"value": 1}]]}),
    "escapes for a name": raw({"__tensor__": "\x1b[2J"}),
    "a record of brackets": text("[" * 200_000),
    "a record without end": text("[" + "1," * 2**20 + "1]"),
    "a record of a list": text("[]"),
    "a record of nothing": text("{}"),
    "a record of bytes": text(b"\xff\xfe{}"),
    "a record of a number": text("1" * 5000),
    "words that nobody knows": record(__init__=1),
    "an older format": record(format=1),
    "features as a number": record(features=5),
    "a controller without layers": record(controller={}),
    "truth as text": features(sampled="yes"),
    "bias as a number": controller(bias=1),
    "a state that nobody has": features(state=["k"]),
    "endless hidden units": controller(hidden_units=10**12),
    "another number of hidden units": controller(hidden_units=3),
    "no squashing": controller(squash=[]),
    "squashing as text": controller(squash="tanh"),
    "squashing as a number": controller(squash=3),
    "squashing of lists": controller(squash=[["tanh"], [], {}]),
    "squashing of escapes": controller(squash=["\x1b[31m"] * 3),
    "squashing without end": controller(squash=["tanh"] * 50_000),
    "environment as a number": record(env_id=5),
    "observation as a number": record(observation=5),
    "frames of another size than the encoder's": record(observation={"crop_rows": 84, "size": 65}),
    "frames of endless size": record(observation={"crop_rows": 84, "size": 10**1000}),
    "rows to crop as truth": record(observation={"crop_rows": True, "size": 64}),
    "actions as a list": record(actions=[]),
    "actions of another kind": record(actions=BOX | {"kind": ["box"]}),
    "actions with another field": record(actions=BOX | {"dtype": "object"}),
    "bounds as a number": record(actions=BOX | {"low": 5}),
    "bounds as text": record(actions=BOX | {"low": ["-1"] * 3}),
    "bounds upside down": record(actions=BOX | {"low": [1.0, 1.0, 2.0]}),
    "bounds not finite": record(actions=BOX | {"high": [1.0, 1.0, float("nan")]}),
    "bounds without end": record(
        actions={"kind": "box", "low": [0.0] * 50_000, "high": [1.0] * 50_000}
    ),
    "another number of actions": record(actions={"kind": "box", "low": [0.0], "high": [1.0]}),
    "a choice without end": record(
        actions={"kind": "discrete", "n": 10**12, "start": 0, "action_bins": None}
    ),
    "a choice as half": record(
        actions={"kind": "discrete", "n": 2.5, "start": 0, "action_bins": None}
    ),
    "bins of no action": record(
        actions={"kind": "discrete", "n": 3, "start": 0, "action_bins": [0, 1, 3]}
    ),
    "two bins": record(actions={"kind": "discrete", "n": 3, "start": 0, "action_bins": [0, 1]}),
    "neither observation nor actions": without("observation", "actions"),
    "flipped bit": flip,
    "another controller": swap,
    "no subspace": place("pca_subspace.safetensors", lambda path: None),
    "a number as files": record(files=5),
    "files of another kind": record(files={"vae.safetensors": 5}),
    "a file elsewhere": record(files={"../../secret": "0" * 64}),
}
