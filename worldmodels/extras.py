"""Optional packages: which extra of this distribution has them, and which a configuration needs."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from shutil import which

from worldmodels import extensions, trackers
from worldmodels.config.choices import (
    IMPORT,
    Backend,
    Display,
    Engine,
    Format,
    Stage,
    SweepMethod,
    Target,
)
from worldmodels.config.hubs import is_hub
from worldmodels.config.parts import parts
from worldmodels.config.schema import Config
from worldmodels.config.stores import MODULES, protocol
from worldmodels.errors import ConfigError, install

EXTRAS = {
    "ale_py": "atari",
    "envpool": "envpool",
    "gcsfs": "gcs",
    "s3fs": "s3",
    "stable_baselines3": "baselines",
    "grpc": "ray",
    "huggingface_hub": "hub",
    "minari": "minari",
    "pyarrow": "lerobot",
    "onnx": "onnx",
    "onnxruntime": "onnx",
    "onnxscript": "onnx",
    "optuna": "sweep",
    "ray": "ray",
    "submitit": "slurm",
    "tensorboard": "tensorboard",
    "torchvision": "r3d18",
    "transformers": "timesformer",
    "vizdoom": "doom",
}
"""The extra that installs a module."""

PACKAGES = {"imageio_ffmpeg": "imageio-ffmpeg", "pygame": "pygame", "wandb": "wandb"}
"""The package that has a module, of those that every installation should have."""

EXPORTING = (Stage.export, Stage.play)
GRAPHS = (Format.onnx, Format.web)
"""Of `stage=export`, those that have an agent's ONNX graphs."""
VIDEO_FORMATS = (Format.videos, Format.lerobot)
"""Of `stage=import`, those that may have videos."""
WITHOUT_ENV = (IMPORT, Stage.vae, Stage.rnn, Stage.inspect, Stage.report, *EXPORTING)
EVALUATING = (Stage.evaluate, Stage.all, Stage.iterate, Stage.plan)
_LOGGING = (
    *(Stage.vae, Stage.rnn, Stage.controller, Stage.baseline),
    *(Stage.bootstrap, Stage.all, Stage.iterate, Stage.sweep),
)


def check(config: Config) -> None:
    """Raise `ConfigError` if a module that a stage of this command will import is not installed.

    Called before the first stage, so that a chain does not end after hours at its last one.
    """
    for part in parts(config):
        for key, module in _needed(part):
            require(key, module)
        if part.stage in _LOGGING:
            try:
                trackers.check(part.logger)
            except ModuleNotFoundError as error:
                raise _missing(f"logger={part.logger.name}", str(error.name)) from error
    if config.stage in EVALUATING and config.evaluate.video:
        _check_ffmpeg("evaluate.video=true", "choose evaluate.video=false")
    if config.stage is IMPORT and config.format is Format.videos:
        _check_ffmpeg("format=videos", "choose another format")


def require(key: str, module: str) -> None:
    """Raise `ConfigError` if a module, which `key` needs, is not installed."""
    if find_spec(module) is None:
        raise _missing(key, module)


def require_import(key: str, module: str) -> None:
    """As `require`, and import the module.

    Raises:
        ConfigError: the module is not installed, or cannot be imported, as one that belongs to
            another release of torch.
    """
    require(key, module)
    try:
        import_module(module)
    except Exception as error:  # torchvision raises RuntimeError beside another build of torch
        raise ConfigError(
            f"{key}: the Python module {module} cannot be imported ({extensions.reason(error)});"
            f" install the release that fits this torch: {_remedy(module)}"
        ) from error


def _missing(key: str, module: str) -> ConfigError:
    """The error of a module that is not installed, which `key` needs."""
    return ConfigError(f"{key}: the Python module {module} is not installed; {_remedy(module)}")


def _remedy(module: str) -> str:
    if module in EXTRAS:
        return install(EXTRAS[module])
    if module in PACKAGES:
        return f"pip install {PACKAGES[module]}"
    return "install the package that has it"


def _check_ffmpeg(key: str, otherwise: str) -> None:
    """Raise `ConfigError` where imageio-ffmpeg, a package without its program, finds none."""
    from imageio_ffmpeg import get_ffmpeg_exe

    try:
        program = get_ffmpeg_exe()
    except RuntimeError:
        program = ""
    if which(program) is None:
        raise ConfigError(
            f"{key}: there is no program ffmpeg {program or 'here'}; install it, or {otherwise}"
        )


def _needed(config: Config) -> Iterator[tuple[str, str]]:
    """The key that needs a module beyond the hard dependencies, and the module."""
    env, stage = config.env, config.stage
    for key, url in (("store", config.store), ("resume", config.resume)):
        module = None if url is None else MODULES[protocol(key, url)]
        if module is not None:
            yield f"{key}={url}", module
    for key, name in (("model", config.model), ("base", config.base)):
        if name is not None and is_hub(name):
            yield f"{key}={name}", "huggingface_hub"
    if stage not in WITHOUT_ENV:
        module = env.id.partition(":")[0].partition(".")[0]
        if ":" in env.id and module:
            yield f"env={env.name} (env.id={env.id})", module
        if env.engine is Engine.envpool:
            yield "env.engine=envpool", "envpool"
        if config.workers.backend is Backend.ray:
            yield "workers=ray", "ray"
            yield "workers=ray", "grpc"
    if stage is Stage.sweep and config.sweep.method is SweepMethod.tpe:
        yield "stage=sweep", "optuna"
    if stage is Stage.baseline:
        yield "stage=baseline", "stable_baselines3"
    if stage is Stage.sweep and config.sweep.target is Target.baseline:
        yield "sweep.target=baseline", "stable_baselines3"
    if stage is Stage.play or (stage is Stage.export and config.format in GRAPHS):
        for module in ("onnx", "onnxscript", "onnxruntime"):
            yield f"stage={stage.name}", module
    if stage in (IMPORT, Stage.export) and config.format is Format.minari:
        yield "format=minari", "minari"
    if stage in (IMPORT, Stage.export) and config.format is Format.lerobot:
        yield "format=lerobot", "pyarrow"
    if stage is IMPORT and config.format in VIDEO_FORMATS:
        yield f"format={config.format.name}", "imageio_ffmpeg"
    if stage in EVALUATING and config.evaluate.engine is Engine.envpool:
        yield "evaluate.engine=envpool", "envpool"
    if stage is Stage.watch and config.watch.engine is Engine.envpool:
        yield "watch.engine=envpool", "envpool"
    if stage is Stage.watch and config.display is Display.forward:
        yield "display=forward", "pygame"
    if stage in EVALUATING and config.evaluate.video:
        yield "evaluate.video=true", "imageio_ffmpeg"
