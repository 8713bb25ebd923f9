"""Checks of a configuration: each number within its range, and keys that depend on one another.

They run before any work begins, because a mistake would otherwise end a stage hours later. The
range of a key is where it is defined.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf.errors import OmegaConfBaseException

from worldmodels import seeds
from worldmodels.config import baselines, collection, exploration, rounds
from worldmodels.config.choices import (
    EXPORTS,
    IMPORT,
    IMPORTS,
    Backend,
    Device,
    Features,
    Optimizer,
    Stage,
    StartChoice,
    SweepMethod,
    WorldKind,
)
from worldmodels.config.execution import WorkersConfig
from worldmodels.config.hubs import hub_address, is_hub
from worldmodels.config.keys import Limit, limits_of
from worldmodels.config.policies import ControllerConfig
from worldmodels.config.schema import (
    Config,
    bootstrap_config,
    flat,
    key_error,
    round_config,
    unknown,
)
from worldmodels.config.space import SECTIONS, population_rate, read_space, with_values
from worldmodels.config.stores import protocol
from worldmodels.errors import ConfigError

LIMITS = limits_of(Config)
"""Of every number, and of every number in a list; null, where a key takes it, is not a number."""

PATHS = {"base", "data", "model", "vae.pretrained"}
"""Texts that may have any character of a file name."""
AGENT_STAGES = (
    *(Stage.rollouts, Stage.evaluate, Stage.report, Stage.export, Stage.play, Stage.watch),
    Stage.doctor,
)
"""The stages that take an agent of ``model=``; the others train, or read episodes."""
ACTIONS = Limit(1, 1024)
"""Of the numbers that an agent acts with: the length of env.squash."""

GENERATION = 1_000_000
"""Episodes of a generation, at most: candidates times episodes."""
SHARD_FRAMES = 4_194_304
"""Frames of 64x64 that one process may have to hold for a shard: 52 GB; fewer that are larger."""
COVARIANCE = 20_000
"""Parameters of a search with a full covariance matrix, at most: 3 GB a matrix."""


def check(config: Config) -> None:
    """Raise `ConfigError`, in one line that names the key, for what no stage could use."""
    for key in _unknown_keys(config):
        raise ConfigError(unknown(key))
    values = flat(**vars(config))
    for key, limit in LIMITS.items():
        _check_number(key, values[key], limit)
    # Sections first: the default of run is env.name.
    for key in sorted(values.keys() - PATHS, key=lambda key: ("." not in key, key)):
        for text in value if isinstance(value := values[key], list) else [value]:
            if isinstance(text, str) and not text.isprintable():
                raise ConfigError(f"{key}={text}: has control characters; choose printable text")
    for key, url in (("store", config.store), ("resume", config.resume)):
        if url is not None:
            protocol(key, url)
    for key, name in (
        ("model", config.model),
        ("base", config.base),
        ("vae.pretrained", config.vae.pretrained),
    ):
        if name is not None and is_hub(name):
            hub_address(key, name)
    if config.model is not None and config.stage not in AGENT_STAGES:
        raise ConfigError(
            f"model={config.model}: stage={config.stage.name} plays no given agent, which"
            f" {', '.join(stage.name for stage in AGENT_STAGES[:-1])} do; remove it, or give"
            " base=<agent>, from whose parts training starts"
        )
    _check_format(config)
    if Path(config.env.name).name != config.env.name:
        raise ConfigError(f"env.name={config.env.name}: choose a name for folders")
    if config.env.squash is not None and len(config.env.squash) not in ACTIONS:
        raise ConfigError(f"env.squash has {len(config.env.squash)} entries: choose {ACTIONS}")
    if config.env.action_bins is not None and len(config.env.action_bins) != 3:
        raise ConfigError(
            f"env.action_bins has {len(config.env.action_bins)} entries: choose three actions"
        )
    if config.workers.backend is Backend.ray:
        _check_cluster(config.workers)
    _check_search(config.controller)
    _check_gradients(config)
    _check_memory(config)
    baselines.check(config)
    collection.check(config)
    exploration.check(config)
    if config.rnn.failure_termination is not None and config.rollouts.stall_steps is None:
        raise ConfigError(
            f"rnn.failure_termination={config.rnn.failure_termination}: needs rollouts.stall_steps,"
            " by which failures are found"
        )
    seeds.evaluation(config.evaluate.first_seed, config.evaluate.episodes)
    if config.stage in (Stage.all, Stage.iterate, Stage.plan):
        _check_latents(config)
        _check_members(config)
        _check_split(config)
    _check_schedule(config)  # first: the bootstrap run has it as well
    if config.bootstrap:
        _check_changed("bootstrap.*", partial(bootstrap_config, config))
    if config.stage is Stage.sweep or (config.stage is Stage.plan and config.sweep.space):
        _check_sweep(config)


def _check_changed(where: str, changed: Callable[[], Config]) -> None:
    """Check the configuration that other values give."""
    try:
        check(changed())
    except ConfigError as error:
        raise ConfigError(f"with the values of {where}: {error}") from None
    except OmegaConfBaseException as error:
        raise ConfigError(f"with the values of {where}: {key_error(error)}") from None


def _check_schedule(config: Config) -> None:
    """The changes of later rounds: the round of each, and the configurations they give."""
    for number in rounds.numbers(config):
        where = f"iterate.schedule from round {number} on"
        _check_changed(where, partial(round_config, config, number))
    rounds.check(config)


def _check_sweep(config: Config) -> None:
    """The space of a sweep: the configurations at its ends."""
    space = read_space(config.sweep.space)
    if config.sweep.method is SweepMethod.population:
        population_rate(config)
    if config.bootstrap:
        raise ConfigError(
            "stage=sweep: a run with a bootstrap run has two values of a key; choose a"
            " preset without one, such as preset=quick"
        )
    if config.trainer.grouped:
        raise ConfigError("stage=sweep: trials train in one process; give trainer.devices=1")
    target = Stage[config.sweep.target.name]
    if config.stage is Stage.plan and target is Stage.baseline:
        raise ConfigError("sweep.target=baseline: stage=plan does not estimate baselines")
    gradients = config.controller.optimizer is Optimizer.actor_critic
    if target is Stage.controller and gradients and config.sweep.metric is None:
        raise ConfigError(
            "sweep.target=controller: controller.optimizer=actor_critic plays no selection seeds;"
            " give sweep.metric=validation/return, which is predicted by the learned model"
        )
    for key, values in space.items():
        section = key.partition(".")[0]
        if section == "actor_critic" and not (target is Stage.controller and gradients):
            raise ConfigError(
                f"sweep.space: {key}: has no effect on stage={target.name}; leave it out, or give"
                " sweep.target=controller controller.optimizer=actor_critic"
            )
        if target is not Stage.baseline and section in SECTIONS[SECTIONS.index(target.name) + 1 :]:
            raise ConfigError(
                f"sweep.space: {key}: has no effect on stage={target.name}; leave it out, or give"
                f" sweep.target={section}"
            )
        for value in values.ends:
            changed = partial(replace, with_values(config, {key: value}), stage=target)
            _check_changed(f"sweep.space: {key}={value}", changed)


def run_folder(config: Config, key: str, name: str) -> Path:
    """The folder of a run; raises `ConfigError` for a name that leads out of that of all runs.

    Args:
        config: with the folder of all runs.
        key: that gives the name.
        name: of the run.
    """
    if not config.data:
        raise ConfigError("data=: give the folder of all runs")
    data, path = Path(config.data), Path(name)
    if not path.parts or path.is_absolute() or ".." in path.parts:
        raise ConfigError(f"{key}={name}: give the name of a folder below {data}")
    return data / path


def _check_number(key: str, value: Any, limit: Limit) -> None:
    numbers = value if isinstance(value, list) else [value]
    for number in numbers:
        if number is not None and number not in limit:
            # A number of a thousand digits makes no readable line.
            long = isinstance(number, int) and abs(number) > 10**20
            shown = f"1e{math.log10(abs(number)):.0f}" if long else number
            raise ConfigError(f"{key}={shown}: choose {limit}")


def _unknown_keys(tree: Any, prefix: str = "") -> Iterator[str]:
    """What Hydra's ``+key=`` has added to the schema."""
    known = {part.name for part in fields(tree)}
    for name, value in vars(tree).items():
        if name not in known:
            yield f"{prefix}{name}"
        elif is_dataclass(value):
            yield from _unknown_keys(value, f"{prefix}{name}.")


def _check_format(config: Config) -> None:
    """What the stages export and import cannot write or read."""
    for stage, does, formats in (
        (Stage.export, "writes", EXPORTS),
        (IMPORT, "reads", IMPORTS),
    ):
        if config.stage is stage and config.format not in formats:
            raise ConfigError(
                f"format={config.format.name}: stage={stage.name} {does}"
                f" {', '.join(known.name for known in formats)}; choose one of them"
            )


def _check_cluster(config: WorkersConfig) -> None:
    if config.processes == 0:
        raise ConfigError(
            "workers.processes=0: workers.backend=ray needs workers; choose 1 or more, null for one"
            " for each core of the cluster, or workers=local"
        )
    if config.device is not Device.cpu:
        raise ConfigError(
            f"workers.device={config.device.name}: workers=ray computes on CPUs; choose cpu, or"
            " workers=local"
        )


def _check_search(config: ControllerConfig) -> None:
    first, final = config.first_episodes, config.final_sigma
    if first is not None and first > config.episodes:
        raise ConfigError(
            f"controller.first_episodes={first}: choose 2 to controller.episodes={config.episodes},"
            " or null for as many in every generation"
        )
    if config.exploitation_patience is not None and config.world is not WorldKind.dream:
        raise ConfigError(
            f"controller.exploitation_patience={config.exploitation_patience}: there is no learned"
            " model to exploit; give controller.world=dream, or null"
        )
    if final is not None and config.total_steps is None:
        raise ConfigError("controller.final_sigma: needs controller.total_steps, to fall over it")
    if final is not None and final > config.sigma:
        raise ConfigError(
            f"controller.final_sigma={final}: choose at most controller.sigma={config.sigma}"
        )
    if config.world is WorldKind.real:
        for key, value, none in (
            ("pessimism", config.pessimism, 0),
            ("starts", config.starts.name, "first"),
            ("sampled_termination", config.sampled_termination, False),
            ("final_temperature", config.final_temperature, None),
        ):
            if value != none:
                instead = "null" if none is None else str(none).lower()
                raise ConfigError(
                    f"controller.{key}={value}: needs controller.world=dream; give that, or"
                    f" {instead}"
                )
    searching = config.optimizer is Optimizer.cma_es  # gradients begin at recorded moments
    if config.failure_starts and searching and config.starts is StartChoice.first:
        raise ConfigError(
            f"controller.failure_starts={config.failure_starts}: needs"
            " controller.starts=recorded; give that, or 0"
        )
    episodes = config.population * config.episodes
    if episodes > GENERATION:
        raise ConfigError(
            f"controller.population={config.population}: with controller.episodes="
            f"{config.episodes} a generation has {episodes:,} episodes; choose at most"
            f" {GENERATION:,}"
        )


def _check_gradients(config: Config) -> None:
    """What a controller that is trained by gradients does not take."""
    controller = config.controller
    if controller.optimizer is not Optimizer.actor_critic:
        return
    why = "controller.optimizer=actor_critic"
    if controller.world is not WorldKind.dream:
        raise ConfigError(f"{why}: trains in the learned model; give controller.world=dream")
    if config.actor_critic.discount == 1:
        raise ConfigError("actor_critic.discount=1: choose a number below 1")
    if config.trainer.grouped:
        raise ConfigError(f"{why}: trains in one process; give trainer.devices=1")
    for key, value, none in (
        ("starts", controller.starts.name, "first"),
        ("sampled_termination", controller.sampled_termination, False),
        ("exploitation_patience", controller.exploitation_patience, None),
        ("final_temperature", controller.final_temperature, None),
    ):
        if value != none:
            instead = "null" if none is None else str(none).lower()
            raise ConfigError(
                f"controller.{key}={value}: needs controller.optimizer=cma_es; give"
                f" that, or {instead}"
            )


def _check_memory(config: Config) -> None:
    """Numbers that are each within their limits, but together need too much memory."""
    num_envs = min(config.env.num_envs, config.rollouts.episodes)
    frames = num_envs * config.rollouts.max_steps * (1 + (config.rollouts.branches or 0))
    most = SHARD_FRAMES * 64**2 // config.env.size**2
    if frames > most:
        raise ConfigError(
            f"env.num_envs={config.env.num_envs}: with rollouts.max_steps="
            f"{config.rollouts.max_steps} a shard may have {frames:,} frames of"
            f" env.size={config.env.size}; choose at most {most:,}"
        )
    controller = config.controller
    features = config.vae.latent_size
    if controller.features is not Features.z:
        features += config.rnn.hidden_size * (1 + (controller.features is Features.zch))
    inputs = min(features, controller.pca_components or features)
    least = inputs * max(controller.hidden_units, len(config.env.squash or ()), 1)
    if not controller.diagonal and least > COVARIANCE:
        raise ConfigError(
            f"controller.diagonal=false: a controller of {least:,} parameters or more has too large"
            f" a covariance matrix (at most {COVARIANCE:,}); choose controller.diagonal=true or"
            " fewer controller.pca_components"
        )


def _check_split(config: Config) -> None:
    """Where a command collects the episodes that it trains on."""
    if config.rollouts.episodes < 2 and not config.bootstrap:
        raise ConfigError(
            f"rollouts.episodes={config.rollouts.episodes}: one episode cannot be split into"
            " training and validation; choose 2 or more"
        )


def _check_latents(config: Config) -> None:
    """The latents of a controller that this command trains in the model that it trains before."""
    predicted, given = config.rnn.latent, config.controller.latent
    if config.controller.world is WorldKind.dream and predicted is not given:
        raise ConfigError(
            f"controller.latent={given.name}: must equal rnn.latent={predicted.name} when"
            f" controller.world=dream; give controller.latent={predicted.name}"
        )


def _check_members(config: Config) -> None:
    """The members whose rewards a search of this command lowers by their deviation."""
    pessimism, rnn = config.controller.pessimism, config.rnn
    if pessimism and (rnn.members == 1 or rnn.reward_weight == 0):
        raise ConfigError(
            f"controller.pessimism={pessimism}: needs rewards of several members; give"
            " rnn.members=2 or more with rnn.reward_weight above 0, or controller.pessimism=0"
        )
