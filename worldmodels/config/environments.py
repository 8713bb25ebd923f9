"""From an environment's name and configuration keys to the environment that an engine makes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import Lock
from typing import Any, cast

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.utils import JobRuntime
from hydra.errors import MissingConfigException
from hydra.version import VersionBase
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from worldmodels import extensions
from worldmodels.config import limits, schema, shipped
from worldmodels.config.choices import Engine
from worldmodels.config.keys import episode_steps
from worldmodels.config.schema import Config
from worldmodels.config.sections import EnvConfig
from worldmodels.envs.engines import EnvSpec, resolve_engine
from worldmodels.envs.observation import ObservationSpec
from worldmodels.errors import ConfigError

_COMPOSING = Lock()
"""Held while Hydra composes: its state is one for all threads of a process."""


def env_spec(env: EnvConfig, engine: Engine | None = None) -> EnvSpec:
    """The environment of a configuration.

    Args:
        env: its keys.
        engine: in place of the configured one.

    Raises:
        ConfigError: the engine cannot be had.
    """
    spec = EnvSpec(
        id=env.id,
        engine=(engine or env.engine).name,
        max_steps=episode_steps(env.max_steps, env.frame_skip),
        crop_rows=env.crop_rows,
        size=env.size,
        action_bins=None if env.action_bins is None else tuple(env.action_bins),
        frame_skip=env.frame_skip or 1,
        sticky_actions=env.sticky_actions,
        television=env.television,
        kwargs=dict(env.kwargs),
    )
    return replace(spec, engine=resolve_engine(spec))


def default_observation(env_id: str) -> ObservationSpec:
    """How frames of an environment are made where neither preset nor override says it.

    It is read from the environment's file: in a sweep Hydra composes nothing else meanwhile.
    """
    group, found = shipped.group_of(env_id), vars(EnvConfig())
    for path in shipped.group_files("env"):
        if path.stem == group:
            content = cast(dict[str, Any], OmegaConf.to_container(OmegaConf.load(path)))
            found = found | content.get("env", content)
    return ObservationSpec(found["crop_rows"], found["size"])


def find_env(name: str, **settings: Any) -> EnvConfig:
    """The configuration of an environment.

    Args:
        name: of a group of ``conf/env/``, as ``env=`` takes it; or the id of a Gymnasium
            environment, as ``env.id=`` takes it, with ``module:`` before it where a module
            registers it.
        settings: values of keys ``env.*`` in place of the configured ones.

    May be called in several threads, and in a program that uses Hydra for itself.

    Raises:
        ConfigError: a key does not exist, or its value is of another type or beyond its limits.
    """
    with _own_hydra():
        composed = _compose(name)
    try:
        config = OmegaConf.to_object(OmegaConf.merge(composed, {"env": settings}))
    except (ConfigAttributeError, ConfigKeyError) as error:
        raise ConfigError(schema.unknown(str(error.full_key))) from error
    except OmegaConfBaseException as error:
        raise ConfigError(f"{error.full_key}: {str(error).splitlines()[0]}") from error
    assert isinstance(config, Config)
    limits.check(config)
    return config.env


@contextmanager
def _own_hydra() -> Iterator[None]:
    """Hydra with ``conf/``; afterwards its state is what it was, as a program's own Hydra set it.

    The program may be a sweep of Hydra, whose later jobs read the version base, the job's name and
    the stored configurations.
    """
    with _COMPOSING:
        running, store, versions = (
            GlobalHydra.instance(),
            ConfigStore.instance(),
            VersionBase.instance(),
        )
        outer, stored, base = running.hydra, store.repo, versions.getbase()
        running.clear()
        store.repo = dict(stored)
        try:
            schema.register()
            extensions.register()
            job_name = JobRuntime.instance().get("name")
            with initialize_config_dir(str(shipped.CONF), job_name, version_base="1.3"):
                yield
        finally:
            GlobalHydra.instance().hydra, store.repo = outer, stored
            versions.version_base = base


def _compose(name: str) -> DictConfig:
    """The configuration with ``env=name`` or, where there is no such group, ``env.id=name``."""
    if name.isidentifier():
        try:
            return compose("config", overrides=[f"env={name}"])
        except MissingConfigException:
            pass
    composed = compose("config")
    composed.env.id = name
    return composed
