"""The schema of ``conf/``: the whole configuration of a command, and operations on it.

Hydra composes the files of ``conf/`` over these dataclasses, so a mistyped key or a value of the
wrong type is an error that names the key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from difflib import get_close_matches
from enum import Enum
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from worldmodels.config.choices import ActionSource, Device, Display, Format, Stage
from worldmodels.config.execution import (
    LoggerConfig,
    MirrorConfig,
    PlayConfig,
    SweepConfig,
    TrainerConfig,
    WatchConfig,
    WorkersConfig,
)
from worldmodels.config.keys import episode_steps, number
from worldmodels.config.policies import (
    ActorCriticConfig,
    BaselineConfig,
    ControllerConfig,
    EvaluateConfig,
    IterateConfig,
)
from worldmodels.config.renames import renamed, renamed_value
from worldmodels.config.sections import (
    CalibrationConfig,
    EnvConfig,
    RNNConfig,
    RolloutsConfig,
    VAEConfig,
)
from worldmodels.errors import ConfigError


@dataclass
class Config:
    """The command."""

    stage: Stage = Stage.all
    """What the command does."""
    run: str = "${env.name}"
    """Name of the run: its artifacts are in <data>/<run>/<stage>/."""
    base: str | None = None
    """Run or folder of an agent whose finished parts are used where this run has none."""
    data: str = "data"
    """Folder of all runs."""
    store: str | None = None
    """Copies the run, while it goes on, to a folder, s3://bucket/prefix or gs://bucket/prefix."""
    resume: str | None = None
    """Copy of a run, from which this one continues if its folder is empty."""
    # 32 bits, what every library takes; the seeds of episodes are drawn from it (seeds.py).
    seed: int = number(1, 0, 2**32 - 1)
    """Seed of collection and training."""
    device: Device = Device.auto
    """Where the models run; auto is cuda where there is a GPU, else cpu."""
    display: Display = Display.auto
    """X display of an environment that needs one: auto starts Xvfb where $DISPLAY is unset, xvfb
    always, forward uses $DISPLAY, where stage=watch then opens a window, none draws without."""
    model: str | None = None
    """Trained agent that stage=rollouts (with rollouts.policy=controller), evaluate, report,
    export, play and watch use instead of the run's own; other stages refuse it. A folder, or
    hf://owner/name@revision on the Hugging Face Hub."""
    format: Format = Format.onnx
    """What stage=export writes: onnx, graphs for ONNX Runtime; web, a page that runs them;
    huggingface, a folder for the Hugging Face Hub; minari and lerobot, the run's episodes as a data
    set of Minari or of LeRobot. What stage=import reads: numpy, archives; videos, with tables of
    actions; minari; lerobot."""
    source: str | None = None
    """Folder of the episodes that stage=import reads."""
    camera: str | None = None
    """Feature of a LeRobot data set whose pictures stage=import reads; null: the only one."""
    compare: list[str] = field(default_factory=list)
    """Other evaluated runs that stage=report shows beside this one."""
    overwrite: bool = False
    """Make the stage's artifact again; the old one is kept until the new one is finished."""
    price_per_hour: float | None = number(None, 0, 1_000_000)
    """Price of the machine for an hour, in any currency; null: costs are not counted."""
    debug: bool = False
    """Show tracebacks of errors."""
    bootstrap: dict[str, Any] = field(default_factory=dict)
    """Keys of the bootstrap run that differ, as nested mappings; empty: no bootstrap run."""
    env: EnvConfig = field(default_factory=EnvConfig)
    rollouts: RolloutsConfig = field(default_factory=RolloutsConfig)
    vae: VAEConfig = field(default_factory=VAEConfig)
    rnn: RNNConfig = field(default_factory=RNNConfig)
    calibration: CalibrationConfig = field(default_factory=CalibrationConfig)
    controller: ControllerConfig = field(default_factory=ControllerConfig)
    actor_critic: ActorCriticConfig = field(default_factory=ActorCriticConfig)
    baseline: BaselineConfig = field(default_factory=BaselineConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    iterate: IterateConfig = field(default_factory=IterateConfig)
    sweep: SweepConfig = field(default_factory=SweepConfig)
    play: PlayConfig = field(default_factory=PlayConfig)
    watch: WatchConfig = field(default_factory=WatchConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    workers: WorkersConfig = field(default_factory=WorkersConfig)
    logger: LoggerConfig = field(default_factory=LoggerConfig)
    mirror: MirrorConfig = field(default_factory=MirrorConfig)


def register() -> None:
    """Make the schema known to Hydra as ``schema``."""
    OmegaConf.register_new_resolver("episode_steps", episode_steps, replace=True)
    # The mappings take any key, also without Hydra's ``+``.
    node = OmegaConf.structured(Config)
    for mapping in (
        node.env.kwargs,
        node.vae.options,
        node.rnn.options,
        node.baseline.options,
        node.sweep.space,
        node.logger.options,
        node.bootstrap,
    ):
        OmegaConf.set_struct(mapping, False)
    ConfigStore.instance().store(name="schema", node=node)


def changed(config: Config, overrides: Mapping[str, Any]) -> Config:
    """`config` with other values, as nested mappings.

    Raises:
        ConfigError: a section has a value that is no mapping.
        OmegaConfBaseException: of OmegaConf, naming the key, for an unknown key or another type.
    """
    for key, value in overrides.items():
        if is_section(key) and not isinstance(value, Mapping):
            raise ConfigError(
                f"{key}={value}: takes no value of its own; give its keys, as in"
                f" {{{key}: {{<key>: <value>}}}}"
            )
    merged = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(config), dict(overrides)))
    assert isinstance(merged, Config)
    return merged


def bootstrap_config(config: Config) -> Config:
    """The configuration of the shorter run before a run that has one; raises the errors of
    `changed`."""
    shorter = changed(config, config.bootstrap)
    shorter.bootstrap = {}
    return shorter


def round_config(config: Config, number: int) -> Config:
    """The configuration of a round of ``stage=iterate``; raises the errors of `changed`.

    Args:
        config: of all rounds.
        number: of the round, from 1. In later ones the controller collects, unless the change of a
            later round gives another policy.
    """
    changes = [change for change in config.iterate.schedule if change["round"] <= number]
    values = ({key: value for key, value in c.items() if key != "round"} for c in changes)
    # Mappings alone are merged first: merging with the schema takes 40 ms.
    together: Any = OmegaConf.merge({"iterate": {"schedule": []}}, *values)
    merged: Any = OmegaConf.to_container(together)
    own = changed(config, merged)
    if number > 1:
        own.bootstrap = {}
        if not any("policy" in c.get("rollouts", {}) for c in changes if c["round"] > 1):
            own.rollouts.policy = ActionSource.controller
        if any("noise" in change.get("rollouts", {}) for change in changes):
            own.iterate.noise = own.rollouts.noise
        else:
            own.rollouts.noise = config.iterate.noise
    return own


def unknown(key: str) -> str:
    """The error of a key that the schema does not have, with its new name or a similar one."""
    present = renamed(key)
    if present is not None:
        return f"{key}: renamed; use {present}"
    keys = list(flat(**vars(Config())))
    meant = [known for known in keys if known.split(".")[-1] == key.split(".")[-1]]
    meant = meant or get_close_matches(key, keys, n=2)
    perhaps = f", perhaps {' or '.join(meant)}" if meant else ""
    return f"{key}: no such key{perhaps}; --help lists all keys"


def is_section(key: str) -> bool:
    """Whether `key` names a group of keys of the schema."""
    return is_dataclass(getattr(Config(), key, None))


def key_error(error: OmegaConfBaseException) -> str:
    """What is wrong with the key that OmegaConf's `error` names."""
    key, message = str(error.full_key), str(error).splitlines()[0]
    if isinstance(error, ConfigAttributeError | ConfigKeyError):
        return unknown(key)
    old = re.match(r"Invalid value '(.+)', expected", message)
    present = renamed_value(key, old[1]) if old else None
    if old and present:
        return f"{key}={old[1]}: renamed; use {key}={present}"
    if is_section(key):
        return (
            f"{key}: takes no value of its own; give one of its keys ({key}.<key>=<value>), or the"
            f" name of a file {key}/<name>.yaml in --config-dir"
        )
    return f"{key}: {message}"


def flat(**groups: Any) -> dict[str, Any]:
    """Flatten configuration groups (or plain values) to ``{"vae.latent_size": 32, ...}``."""
    pairs: dict[str, Any] = {}
    for name, group in groups.items():
        if hasattr(group, "__dataclass_fields__"):
            pairs |= {f"{name}.{key}": plain(value) for key, value in asdict(group).items()}
        else:
            pairs[name] = plain(group)
    return pairs


def plain(value: Any) -> Any:
    """Replace enums in `value` by their names, so that it can be written as JSON."""
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
