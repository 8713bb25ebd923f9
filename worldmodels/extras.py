"""Optional packages: which extra of this distribution has them, and which a configuration needs."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from worldmodels.config import Config, Engine, LoggerName, Stage
from worldmodels.errors import ConfigError, install

EXTRAS = {
    "ale_py": "atari",
    "envpool": "envpool",
    "tensorboard": "tensorboard",
    "vizdoom": "doom",
}
"""The extra that installs a module."""

_WITHOUT_ENV = (Stage.vae, Stage.rnn, Stage.inspect, Stage.report)
_JUDGING = (Stage.evaluate, Stage.all, Stage.iterate)
_LOGGING = (Stage.vae, Stage.rnn, Stage.controller, Stage.scout, Stage.all, Stage.iterate)


def check(config: Config) -> None:
    """Raise `ConfigError` if a module that a stage of this command will import is not installed.

    Called before the first stage, so that a chain does not end after hours at its last one.
    """
    for key, module in _needed(config):
        if find_spec(module) is None:
            extra = EXTRAS.get(module)
            mend = install(extra) if extra else "install the package that has it"
            raise ConfigError(f"{key}: the Python module {module} is not installed; {mend}")


def _needed(config: Config) -> Iterator[tuple[str, str]]:
    """The key that asks for a module beyond the hard dependencies, and the module."""
    env, stage = config.env, config.stage
    if stage not in _WITHOUT_ENV:
        module = env.id.partition(":")[0].partition(".")[0]
        if ":" in env.id and module:
            yield f"env={env.name} (env.id={env.id})", module
        if env.engine is Engine.envpool:
            yield "env.engine=envpool", "envpool"
    if stage in _JUDGING and config.evaluate.engine is Engine.envpool:
        yield "evaluate.engine=envpool", "envpool"
    if stage in _LOGGING and config.logger.name is LoggerName.tensorboard:
        yield "logger=tensorboard", "tensorboard"
