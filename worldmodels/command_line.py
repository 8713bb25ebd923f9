"""The command: compose the configuration, run the stage, say in one line what went wrong."""

from __future__ import annotations

import logging
import os
import re
import sys
import traceback
from importlib import import_module
from pathlib import Path

import hydra
from hydra import initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Sweep
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from worldmodels import __version__, extensions, extras, interrupts, limits, shipped, streams
from worldmodels import config as schema
from worldmodels.errors import (
    DISTRIBUTION,
    EXIT_ERROR,
    EXIT_STOPPED,
    ConfigError,
    Stopped,
    WorldModelsError,
    system_error,
)
from worldmodels.untrusted import printable

MODULES = {schema.Stage.all: "chain"}


def run_stage(config: schema.Config) -> None:
    """Run one stage of one run."""
    interrupts.check()  # it may have been asked to stop while it was imported
    if config.stage is schema.Stage.doctor:
        # Without what the other stages load: it is to report what of that is missing.
        from worldmodels.stages import doctor

        doctor.run(config)
        return
    # Imported here, so that --help and a mistyped key answer at once.
    from worldmodels.artifacts import Run
    from worldmodels.envs.display import virtual_display
    from worldmodels.stages.context import Context

    data = Path(config.data)
    if not config.data:
        raise ConfigError("data=: give the folder of all runs")
    parts = Path(config.run).parts
    if not parts or Path(config.run).is_absolute() or ".." in parts:
        raise ConfigError(f"run={config.run}: give the name of a folder below {data}")
    extras.check(config)
    if config.model is not None:
        shipped.require_agent("model", config.model)
    base, published = None, None
    if config.base is not None:
        published = shipped.find_agent(config.base)
        if published is None:
            base = Run(data / config.base, name=config.base)
            if not base.root.is_dir():
                raise ConfigError(
                    f"base={config.base}: neither a run in {data} nor the folder of an agent;"
                    f" shipped agents are {', '.join(shipped.agents())}"
                )
    context = Context(config, Run(data / config.run, base, config.run), published)
    context.check()
    module = import_module(f"worldmodels.stages.{MODULES.get(config.stage, config.stage.name)}")
    interrupts.check()
    drawing = config.env.needs_display and config.stage not in extras.WITHOUT_ENV
    with virtual_display(config.display.value, drawing):
        module.run(context)


class _Escape(BaseException):
    """Carries an error past Hydra, which would print lines of its own about an Exception."""

    def __init__(self, error: Exception, debug: bool) -> None:
        super().__init__()
        self.error, self.debug = error, debug


def _run(composed: DictConfig) -> None:
    """Run the stage of a composed configuration."""
    try:
        config = OmegaConf.to_object(composed)
        assert isinstance(config, schema.Config)
        limits.check(config)
        run_stage(config)
    except Exception as error:
        raise _Escape(error, composed.debug) from error


def _compose_and_run() -> None:
    """Compose the configuration that the words of the command line describe, and run its stage.

    Options (``--help``, ``--config-dir``, ``--multirun``) and Hydra's own keys are for
    ``hydra.main``, which composes each configuration twice; plain words are composed once, in half
    the time.
    """
    words = sys.argv[1:]
    if any(word.startswith(("-", "hydra", "+hydra", "++hydra", "~hydra")) for word in words):
        hydra.main(version_base="1.3", config_path=str(shipped.CONF), config_name="config")(_run)()
        return
    with initialize_config_dir(str(shipped.CONF), version_base="1.3"):
        composed = hydra.compose("config", overrides=words)
    _run(composed)


def composition_error(error: HydraException | OmegaConfBaseException) -> str:
    """What is wrong with a configuration, by the name of its key or group."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options:
        group, _, option = error.missing_cfg_file.rpartition("/")
        return f"{group}={option}: choose one of {', '.join(error.options)}"
    absent = re.fullmatch(r"Additional config directory '(.*)' not found", str(error))
    if absent:
        return f"--config-dir {absent[1]}: no such folder; give one with groups like conf/"
    cause = error.__cause__ if isinstance(error, HydraException) else error
    if not isinstance(cause, OmegaConfBaseException) or not cause.full_key:
        return str(error)
    if isinstance(cause, ConfigAttributeError | ConfigKeyError):
        return schema.unknown(cause.full_key)
    return f"{cause.full_key}: {str(cause).splitlines()[0]}"


def _group_error(words: list[str]) -> ConfigError | None:
    """What is wrong with a word like ``vae=5``, which Hydra answers with an error of its own code:
    a group takes the name of one of its files."""
    for word in words:
        group, _, _ = word.partition("=")
        options = sorted({path.stem for path in shipped.group_files(group)})
        if "=" not in word or not options:
            continue
        choice = OverridesParser.create().parse_override(word).value()
        if not isinstance(choice, str | Sweep):
            return ConfigError(f"{word}: is no name of a group; choose one of {', '.join(options)}")
    return None


def explain(error: Exception) -> int:
    """Say on one line what ended the process; its exit code."""
    if isinstance(error, Stopped):
        streams.tell(f"stopped by {error}: progress is saved, the same command goes on")
        return EXIT_STOPPED
    line = str(error)
    if isinstance(error, BrokenPipeError) and error.filename is None:
        error.filename = streams.OUTPUT  # of pipes of its own the program catches it
    if isinstance(error, HydraException | OmegaConfBaseException):
        line = composition_error(error)
    elif isinstance(error, OSError) and error.errno and error.filename is not None:
        line = system_error(error, os.fsdecode(error.filename))
    elif not isinstance(error, WorldModelsError):
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(last.filename).name}:{last.lineno}"
        line = f"{type(error).__name__}: {line} ({place}; debug=true shows the traceback)"
    if isinstance(error, OSError) and error.filename == streams.OUTPUT:
        streams.close_output()  # or it is told of once more
    streams.tell(f"error: {printable(' '.join(line.split()))}")
    return EXIT_ERROR


def command() -> int:
    """What the words of the command line ask for; the exit code."""
    if "--version" in sys.argv[1:]:
        print(DISTRIBUTION, __version__)
        return 0
    here = str(Path.cwd())
    if here not in sys.path and not sys.flags.safe_path:
        # The command `worldmodels` finds an environment's module in the working directory, as
        # `python -m worldmodels` does.
        sys.path.append(here)
    # Hydra would print errors in several lines and exit; raised to here they become one.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    # Where it cannot write to the home folder it takes a temporary one, and says so in two lines.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    schema.register()
    extensions.register()
    try:
        _compose_and_run()
    except _Escape as escape:
        if escape.debug:
            traceback.print_exception(escape.error)
        return explain(escape.error)
    except (TypeError, ValueError) as error:
        return explain(_group_error(sys.argv[1:]) or error)
    except Exception as error:
        return explain(error)
    return 0
