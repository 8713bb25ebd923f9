"""The command line: compose the configuration, run the stage, print an error on one line."""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
import traceback
from pathlib import Path

import hydra
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Sweep
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from worldmodels import extensions
from worldmodels.config import limits, rounds, schema, shipped, usage
from worldmodels.config.parts import jobs
from worldmodels.config.renames import EXPERIMENT, RENAMED_GROUPS, renamed
from worldmodels.errors import (
    DISTRIBUTION,
    EXIT_ERROR,
    EXIT_STOPPED,
    EXIT_UNCOPIED,
    ConfigError,
    Stopped,
    StoreError,
    WorldModelsError,
    system_error,
)
from worldmodels.files.untrusted import printable
from worldmodels.stages import dispatch
from worldmodels.system import interrupts, streams
from worldmodels.system.launchers import started
from worldmodels.version import __version__


class _Escape(BaseException):
    """Carries an error past Hydra, which would print lines of its own about an Exception."""

    def __init__(self, error: Exception, debug: bool) -> None:
        super().__init__()
        self.error, self.debug = error, debug


def _checked(composed: DictConfig) -> schema.Config:
    config = OmegaConf.to_object(composed)
    assert isinstance(config, schema.Config)
    limits.check(config)
    return config


def _run(composed: DictConfig) -> None:
    """Run the stage of a composed configuration."""
    if "SUBMITIT_EXECUTOR" in os.environ and not interrupts.installed():
        _run_as_job(composed)
        return
    try:
        dispatch.run(_checked(composed))
    except Exception as error:
        raise _Escape(error, composed.debug) from error


def _run_as_job(composed: DictConfig) -> None:
    """Run the stage of a composed configuration in a job that a sweep has submitted."""
    from worldmodels import sweeps

    try:
        config = _checked(composed)
        sweeps.begin_job(config)
        dispatch.run_alone(config)
    except Stopped as stop:
        explain(stop)
        sweeps.stop_job()
    except Exception as error:
        if composed.debug:
            traceback.print_exception(error)
        explain(error)
        raise sweeps.fail_job(_line(error)) from None


def _compose_and_run() -> None:
    """Compose the configuration that the words of the command line describe, and run its stage.

    Hydra's options (``--multirun``, ``--cfg``, ...) and its own keys are for ``hydra.main``, which
    composes each configuration twice; other words are composed once, in half the time.

    Raises:
        ConfigError: ``--config-dir`` names no folder, or one with a group of an older version; or a
            word chooses an experiment.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("--jobs", action="store_true")
    parser.add_argument("-cd", "--config-dir", type=Path)
    parser.add_argument("overrides", nargs="*")
    words = sys.argv[1:]
    try:
        options, others = parser.parse_known_intermixed_args(words)
    except argparse.ArgumentError as error:
        raise ConfigError(f"{error}; --help lists the options") from None
    folders = [shipped.CONF, *extensions.config_folders()]
    overrides = list(options.overrides)
    _check_groups(overrides)
    sections = [word for word in overrides if options.help and schema.is_section(word)]
    overrides = [word for word in overrides if word not in sections]
    if options.config_dir is not None:
        _check_config_dir(options.config_dir)
        folders.append(options.config_dir)
    own = any(word.lstrip("+~").startswith("hydra") for word in overrides)
    if not (options.help or options.jobs) and (others or own):
        _hand_to_hydra(words, overrides, options.config_dir)
        return
    with initialize_config_dir(str(shipped.CONF), version_base="1.3"):
        composed = hydra.compose("config", overrides=[*overrides, *_search(options.config_dir)])
    if options.help:
        print(usage.help_text(composed, folders, sections))
        return
    if options.jobs:
        print(*(stage.name for stage in jobs(_checked(composed))), sep="\n")
        return
    _run(composed)


def _search(config_dir: Path | None) -> list[str]:
    """The override that adds the groups of a folder."""
    if config_dir is None:
        return []
    path = str(config_dir.resolve()).replace("'", r"\'")
    return [f"hydra.searchpath=['file://{path}']"]


def _hand_to_hydra(words: list[str], overrides: list[str], config_dir: Path | None) -> None:
    # Hydra's parser needs the overrides side by side, after the options.
    last = {word for word in overrides if word.startswith("~") or "=" in word}
    sys.argv[1:] = sorted(words, key=last.__contains__)
    main = hydra.main(version_base="1.3", config_path=str(shipped.CONF), config_name="config")(_run)
    if not any(word.startswith("hydra/launcher=submitit") for word in overrides):
        main()
        return
    from worldmodels import sweeps

    sweeps.require(words)
    swept = [word for word in overrides if not word.startswith("hydra")]
    with initialize_config_dir(str(shipped.CONF), version_base="1.3"):
        parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
        jobs = sweeps.check(
            parser.parse_overrides(swept),
            lambda job: _checked(hydra.compose("config", overrides=[*job, *_search(config_dir)])),
        )
    options = sweeps.options(overrides)
    sys.argv += [f"++hydra.launcher.{key}={value}" for key, value in options.items()]
    with sweeps.submitted(options["name"], jobs):
        main()


def _check_groups(overrides: list[str]) -> None:
    """Raise `ConfigError` for a word that would replace the values of ``conf/experiment/``, or of
    the group's old name."""
    for word in overrides:
        group = re.match(r"[+~]*(\w+)(?:@[^=]*)?(?:=|$)", word)
        if group is not None and EXPERIMENT in (group[1], RENAMED_GROUPS.get(group[1])):
            raise ConfigError(f"{word.lstrip('+')}: is chosen by env and preset; give those")


def _check_config_dir(folder: Path) -> None:
    if not folder.is_dir():
        raise ConfigError(f"--config-dir {folder}: no such folder; give one with groups like conf/")
    for group in sorted(path.name for path in folder.iterdir()):
        # Hydra ignores a group that nothing selects, such as one of conf/experiment/.
        present = renamed(group) or RENAMED_GROUPS.get(group)
        if present is not None:
            raise ConfigError(f"{folder / group}: renamed; use {folder / present}")


def composition_error(error: HydraException | OmegaConfBaseException) -> str:
    """What is wrong with a configuration, by the name of its key, group or file."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options:
        group, _, option = error.missing_cfg_file.rpartition("/")
        return f"{group}={option}: choose one of {', '.join(error.options)}"
    if str(error).startswith("Error merging override iterate.schedule="):
        return f"iterate.schedule: {rounds.FORM}"  # OmegaConf's key is a number, or none
    cause: BaseException | None = error
    if isinstance(error, HydraException):
        cause = error.__cause__ or error.__context__
    if not isinstance(cause, OmegaConfBaseException) or not cause.full_key:
        return str(error)
    file = re.match(r"In '(.+?)': ", str(error))
    return f"{file[1]}.yaml: {schema.key_error(cause)}" if file else schema.key_error(cause)


def _renamed_word(words: list[str]) -> ConfigError | None:
    """The present name of an old key among words that do not compose, also of ``~key``, of which
    Hydra's error names no key, and of a key in an old section, of which it names the section."""
    for word in words:
        key = re.match(r"~([\w./]+)|\+*([\w./]+)=", word)
        old = (key[1] or key[2]).replace("/", ".") if key else ""
        present = renamed(old)
        if present is not None:
            return ConfigError(f"{old}: renamed; use {present}")
    return None


def _group_error(words: list[str], error: Exception) -> ConfigError | None:
    """What is wrong with a word like ``env=[1]``, ``~env`` or ``env=a,b``, which Hydra answers with
    an error of its own code: a group takes the name of one of its files. A word with ``~`` or ``+``
    is to blame where `error` names its group: the defaults of some groups can be left out."""
    swept = not {"--multirun", "-m", "hydra.mode=MULTIRUN"}.isdisjoint(words)
    for word in words:
        group, assigned, _ = word.lstrip("+~").partition("=")
        options = sorted({path.stem for path in shipped.group_files(group)})
        if not options:
            continue
        if word.startswith(("+", "~")):
            wrong = group in str(error)
        else:
            wrong = bool(assigned) and not _chooses(word, swept)
        if wrong:
            return ConfigError(
                f"{word}: give {group}=<name>, and choose one of {', '.join(options)}; several"
                " with --multirun"
            )
    return None


def _chooses(word: str, swept: bool) -> bool:
    """Whether the value of a word is a name, or several where they are `swept`; True also where it
    cannot be parsed, which is an error of its own."""
    try:
        choice = OverridesParser.create().parse_override(word).value()
    except HydraException:
        return True
    return isinstance(choice, str) or (swept and isinstance(choice, Sweep))


def explain(error: Exception) -> int:
    """Print the error that ended the process, on one line; returns its exit code."""
    if isinstance(error, Stopped):
        streams.print_error(f"stopped by {error}: progress is saved, the same command continues")
        return EXIT_STOPPED
    if isinstance(error, BrokenPipeError) and error.filename is None:
        error.filename = streams.OUTPUT  # the program catches errors of its own pipes itself
    if isinstance(error, OSError) and error.filename == streams.OUTPUT:
        streams.close_output()  # otherwise the interpreter reports it again at its exit
    streams.print_error(f"error: {_line(error)}")
    return EXIT_UNCOPIED if isinstance(error, StoreError) else EXIT_ERROR


def _line(error: Exception) -> str:
    """What went wrong, on one line."""
    line = str(error)
    if isinstance(error, HydraException | OmegaConfBaseException):
        line = composition_error(error)
    elif isinstance(error, OSError) and error.errno and error.filename is not None:
        line = system_error(error, os.fsdecode(error.filename))
    elif not isinstance(error, WorldModelsError):
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(last.filename).name}:{last.lineno}"
        line = f"{type(error).__name__}: {line} ({place}; debug=true shows the traceback)"
    return printable(" ".join(line.split()))


def _show_traceback(error: Exception) -> None:
    """Print the traceback of an error in the words of a command with ``debug=true``, of which
    there may be no configuration."""
    if any(word.lstrip("+").lower() == "debug=true" for word in sys.argv[1:]):
        traceback.print_exception(error)


def command() -> int:
    """Run what the words of the command line request; returns the exit code."""
    if not sys.argv[1:]:
        print(usage.SHORT, end="")
        return 0
    if "--version" in sys.argv[1:]:
        print(DISTRIBUTION, __version__)
        return 0
    here = str(Path.cwd())
    if here not in sys.path and not sys.flags.safe_path:
        # The command `worldmodels` finds an environment's module in the working directory, as
        # `python -m worldmodels` does.
        sys.path.append(here)
    found = started()
    if found is not None and found.by == "torchrun" and found.local_rank > 0:
        streams.silence()  # for what every rank finds wrong with the words
    # Hydra would print errors in several lines and exit; raised to here they become one.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    # It warns in two lines where it cannot write to the home folder and uses a temporary one.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    schema.register()
    extensions.register()
    try:
        _compose_and_run()
    except _Escape as escape:
        if escape.debug:
            traceback.print_exception(escape.error)
        return explain(escape.error)
    except (TypeError, ValueError, HydraException, OmegaConfBaseException) as error:
        _show_traceback(error)
        words = sys.argv[1:]
        return explain(_renamed_word(words) or _group_error(words, error) or error)
    except Exception as error:
        _show_traceback(error)
        return explain(_renamed_word(sys.argv[1:]) or error)
    return 0
