"""Published weights for the networks of encoders (``vae.pretrained``): safetensors, never pickles.

A file may come from an untrusted source. Its tensors are compared with those of the network, by
name, shape and type, before their numbers are read. An encoder that was trained from such weights
needs them no more: its own file holds the whole network.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from worldmodels.agents.hub import fetch_file
from worldmodels.agents.model_files import finite
from worldmodels.config.hubs import is_hub
from worldmodels.errors import ArtifactError, ConfigError
from worldmodels.files import untrusted, weights
from worldmodels.files.untrusted import printable
from worldmodels.models.encoder import Encoder
from worldmodels.models.video import VideoVAE

KEY = "vae.pretrained"
USUAL = "model.safetensors"
_SUFFIX = ".safetensors"
_PICKLES = {".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle"}
_CONVERT = (
    "convert it with safetensors.torch.save_file(torch.load(file, weights_only=True),"
    f' "{USUAL}") where you trust it'
)
_BYTES = 4096 * untrusted.MEGABYTE
"""Of a file, at most."""


class Source(NamedTuple):
    """A file of published weights.

    Args:
        path: of the file.
        address: on the Hub, with the commit; None of a local file.
    """

    path: Path
    address: str | None

    @property
    def fingerprint(self) -> str:
        """Of the file's content."""
        return untrusted.sha256(self.path, _BYTES)[:16]


def find(name: str) -> Source:
    """The file that ``vae.pretrained`` names.

    Args:
        name: path of a file or of a folder with one, or ``hf://owner/name@revision`` on the Hub.

    Raises:
        ConfigError: there is none, it is a pickle, or the Hub cannot be reached.
        ArtifactError: the file on the Hub is too large, or arrived with another size.
    """
    where = f"{KEY}={name}"
    if is_hub(name):
        return _fetched(name)
    path = Path(name)
    if path.is_dir():
        return Source(path / _chosen(where, [file.name for file in path.iterdir()]), None)
    if not path.exists():
        raise ConfigError(
            f"{where}: there is no such file or folder; give one, or hf://owner/name@revision"
        )
    return Source(path.parent / _chosen(where, [path.name]), None)


@functools.cache
def _fetched(name: str) -> Source:
    """See `find`. A revision is resolved once in a process: a command uses one commit."""
    return Source(*fetch_file(KEY, name, partial(_chosen, f"{KEY}={name}"), _BYTES))


def _chosen(where: str, names: Iterable[str]) -> str:
    """The name of the file that has the weights; raises `ConfigError` where there is none."""
    names = sorted(name for name in names if "/" not in name)
    found = [name for name in names if name.endswith(_SUFFIX)]
    if USUAL in found or len(found) == 1:
        return USUAL if USUAL in found else found[0]
    if found:
        raise ConfigError(
            f"{where}: {len(found)} files end in {_SUFFIX} and none is {USUAL}; give the file that"
            " has all weights"
        )
    pickles = [name for name in names if Path(name).suffix in _PICKLES]
    if pickles:
        raise ConfigError(
            f"{where}: {printable(pickles[0], 60)} may hold code that runs where it is read;"
            f" {_CONVERT}"
        )
    raise ConfigError(f"{where}: no file ends in {_SUFFIX}; give weights in this format")


def check(encoder: Encoder, source: Source) -> dict[str, str]:
    """Compare published weights with the network of an encoder, which may be on the meta device.

    Args:
        encoder: the network's.
        source: of the weights.

    Returns:
        the name in the network of each tensor of the file that the network takes, by its name in
        the file.

    Raises:
        ConfigError: the encoder has no network that weights are published for.
        ArtifactError: the file is damaged, or of another network; the first difference is named.
    """
    if not isinstance(encoder, VideoVAE):
        raise ConfigError(
            f"{KEY}: there are no published weights for this encoder; choose vae.encoder=r3d18 or"
            f" timesformer, or {KEY}=null"
        )
    path, expected = source.path, encoder.network.state_dict()
    found = weights.outline_tensors(path)
    named = {name: encoder.published_name(name) for name in found}
    used = {name: own for name, own in named.items() if own is not None}
    wrong = None
    for name, own in used.items():
        if own not in expected:
            wrong = f"{printable(name, 100)} is too much"
        elif found[name].shape != expected[own].shape:
            shapes = [tuple(tensor.shape) for tensor in (found[name], expected[own])]
            wrong = f"{printable(name, 100)} is of shape {shapes[0]}, not {shapes[1]}"
        elif not found[name].is_floating_point():
            wrong = f"{printable(name, 100)} is of {found[name].dtype}"
        if wrong is not None:
            break
    missing = sorted(expected.keys() - set(used.values()))
    if wrong is None and missing:
        wrong = f"{missing[0]} is missing"
    if wrong is None and len(set(used.values())) < len(used):
        wrong = "a tensor is there under two names"
    if wrong is not None:
        raise ArtifactError(
            f"{path}: does not hold the weights of this {type(encoder).__name__}: {wrong}; give the"
            " weights of this network, or the sizes of that one (vae.frames, vae.options)"
        )
    return used


def load(encoder: Encoder, source: Source) -> None:
    """Give the network of an encoder published weights, as float32; raises as `check`."""
    used = check(encoder, source)
    assert isinstance(encoder, VideoVAE)
    stored = weights.load_tensors(source.path, used)
    state = {
        own: finite(source.path, printable(name, 100), stored[name]).to(torch.float32)
        for name, own in used.items()
    }
    encoder.network.load_state_dict(state)
