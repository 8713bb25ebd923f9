"""The encoders and dynamics models that a configuration or a checkpoint can name.

A package adds its own through Python entry points, without a change here::

    [project.entry-points."worldmodels.dynamics"]
    mlp = "my_package.mlp:StackedMLP"

A name that a file or a configuration gives is only looked up here: of what is registered, what it
names is imported, and nothing else.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from worldmodels import extensions, extras
from worldmodels.agents.stored_modules import check_storable
from worldmodels.config.choices import LatentChoice
from worldmodels.config.sections import RNNConfig, VAEConfig
from worldmodels.config.usage import written
from worldmodels.errors import ConfigError
from worldmodels.models.conv3d import Conv3dVAE
from worldmodels.models.dynamics import DynamicsModel
from worldmodels.models.encoder import Encoder
from worldmodels.models.gru import GRUDynamics
from worldmodels.models.mdnrnn import MDNRNN
from worldmodels.models.r3d18 import R3D18VAE
from worldmodels.models.resnet import ResNetVAE
from worldmodels.models.timesformer import TimesformerVAE
from worldmodels.models.transformer import TransformerDynamics
from worldmodels.models.vae import ConvVAE

ENCODERS: Mapping[str, type[Encoder]] = {
    "conv_vae": ConvVAE,
    "resnet": ResNetVAE,
    "conv3d": Conv3dVAE,
    "r3d18": R3D18VAE,
    "timesformer": TimesformerVAE,
}
_MODULES = {"r3d18": "torchvision", "timesformer": "transformers"}
"""Optional modules, by the encoder whose layers they have."""
DYNAMICS: Mapping[str, type[DynamicsModel]] = {
    "mdn_rnn": MDNRNN,
    "gru": GRUDynamics,
    "transformer": TransformerDynamics,
}
_ENCODERS, _DYNAMICS = "worldmodels.encoders", "worldmodels.dynamics"
"""The groups of entry points."""


def find_encoder(name: str) -> type[Encoder]:
    """The encoder class of that name.

    Raises:
        ConfigError: there is none or more than one, the package that adds it cannot be imported, or
            a module that it is built from is not installed or cannot be imported.
    """
    extensions.check_name(_ENCODERS, "encoder", name, ENCODERS)
    if name in _MODULES:
        extras.require_import(f"encoder {name}", _MODULES[name])
    if name in ENCODERS:
        return ENCODERS[name]
    found: type[Encoder] = extensions.find(_ENCODERS, "encoder", name, ENCODERS)
    return found


def find_dynamics(name: str) -> type[DynamicsModel]:
    """The dynamics model class of that name.

    Raises:
        ConfigError: there is none or more than one, or the package that adds it cannot be imported.
    """
    extensions.check_name(_DYNAMICS, "dynamics model", name, DYNAMICS)
    if name in DYNAMICS:
        return DYNAMICS[name]
    found: type[DynamicsModel] = extensions.find(_DYNAMICS, "dynamics model", name, DYNAMICS)
    return found


def name_of(module: Encoder | DynamicsModel) -> str:
    """The registered name of a module's class; raises `ConfigError` if it has none."""
    kind = type(module)
    for names in (ENCODERS, DYNAMICS):
        for name, known in names.items():
            if known is kind:
                return name
    for group in (_ENCODERS, _DYNAMICS):
        for entry in entry_points(group=group):
            if _names(entry, kind):
                return entry.name
    raise ConfigError(f"{kind.__qualname__}: is not registered; give it an entry point")


def _names(entry: EntryPoint, kind: type) -> bool:
    """Whether an entry point names a class, perhaps by a module that has it from another one.
    Nothing is imported: the module that a class was found by has been imported before."""
    if entry.value == f"{kind.__module__}:{kind.__qualname__}":
        return True
    if entry.module not in sys.modules:
        return False
    try:
        return entry.load() is kind
    except Exception:  # whatever another entry point of such a module raises
        return False


def build_encoder(config: VAEConfig, frame_size: int, like: Encoder | None = None) -> Encoder:
    """The encoder of a configuration, with new weights.

    Args:
        config: names its class and gives its options.
        frame_size: side of the frames, in pixels.
        like: of the same class, whose other sizes are taken over.

    Raises:
        ConfigError: the class or an option is unknown, a key is of another class, or it does not
            take such frames; or its file could not be read, as of a class that is not registered or
            of a size that no file holds (`worldmodels.agents.stored_modules`).
    """
    with _of_key(f"vae.encoder={config.encoder}"):
        kind = find_encoder(config.encoder)
    sizes = {} if like is None or type(like) is not kind else dict(like.sizes)
    sizes |= {"latent_size": config.latent_size, "frame_size": frame_size}
    with _named("vae", f"encoder={config.encoder}"):
        options = extensions.options(kind, vars(config), config.options)
        _check_keys(config, f"vae.encoder={config.encoder}", options, ENCODERS)
        built = kind(**(sizes | options))
    with _of_key(f"vae.encoder={config.encoder}"):
        name_of(built)
        check_storable(built)
    return built


def build_dynamics(
    config: RNNConfig, latent_size: int, action_size: int, other: Mapping[str, Any]
) -> DynamicsModel:
    """The dynamics model of a configuration, with new weights.

    Args:
        config: names its class and gives its options.
        latent_size: dimensions of z.
        action_size: dimensions of an action.
        other: options that come before those of the configuration.

    Raises:
        ConfigError: the class or an option is unknown, a key is of another class, or the class does
            not take a value; or its file could not be read, as of a class that is not registered or
            of a size that no file holds (`worldmodels.agents.stored_modules`).
    """
    with _of_key(f"rnn.model={config.model}"):
        kind = find_dynamics(config.model)
    sizes: dict[str, Any] = {"latent_size": latent_size, "action_size": action_size}
    sizes["sampled"] = config.latent is LatentChoice.sampled
    with _named("rnn", f"model={config.model}"):
        options = extensions.options(kind, vars(config), {**config.options, **other})
        _check_keys(config, f"rnn.model={config.model}", options, DYNAMICS)
        built = kind(**(sizes | options))
    with _of_key(f"rnn.model={config.model}"):
        name_of(built)
        check_storable(built)
    return built


def _check_keys(
    config: VAEConfig | RNNConfig,
    chosen: str,
    options: Mapping[str, Any],
    registered: Mapping[str, type[Encoder] | type[DynamicsModel]],
) -> None:
    """Raise `ConfigError` for a key that only other models have: it would change nothing, and the
    manifest would say that it holds. Such keys are null by default.

    Args:
        config: the section.
        chosen: the key that chooses the class, with its value.
        options: of the chosen class, all of them.
        registered: name -> class of this package.
    """
    for part in fields(config):
        value = getattr(config, part.name)
        if part.default is not None or value is None or part.name in options:
            continue
        others = [name for name, kind in registered.items() if part.name in _option_names(kind)]
        if others:
            key = chosen.partition("=")[0]
            raise ConfigError(
                f"{part.name}={written(value)}: {chosen} has no such option; give null, or"
                f" {key}={' or '.join(others)}"
            )


def _option_names(kind: type[Encoder] | type[DynamicsModel]) -> set[str]:
    return {part.name for part in fields(kind.Options)}


@contextmanager
def _of_key(chosen: str) -> Iterator[None]:
    """Errors of a name, with the key that gives it."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{chosen}: {error}") from error


@contextmanager
def _named(group: str, choice: str) -> Iterator[None]:
    """Errors of a model's options and of its constructor, with the key that they belong to."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{group}.{error}") from error
    except ValueError as error:
        raise ConfigError(f"{group}.{choice}: {error}") from error
