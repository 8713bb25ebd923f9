"""The command: compose the configuration, run the stage, say in one line what went wrong."""

from __future__ import annotations

import os
import sys
import traceback
from importlib import import_module
from pathlib import Path

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from worldmodels import config as schema
from worldmodels import interrupts
from worldmodels.errors import EXIT_ERROR, EXIT_STOPPED, ConfigError, Stopped, WorldModelsError

MODULES = {schema.Stage.all: "chain"}
CONF = Path(__file__).resolve().parent.parent / "conf"


def run_stage(config: schema.Config) -> None:
    """Run one stage of one run."""
    # Imported here, so that --help and a mistyped key answer at once.
    from worldmodels.artifacts import Run
    from worldmodels.envs.display import virtual_display
    from worldmodels.stages.context import Context

    data = Path(config.data)
    if not config.run or Path(config.run).is_absolute() or ".." in Path(config.run).parts:
        raise ConfigError(f"run={config.run}: give the name of a folder below {data}")
    base, published = None, None
    if config.base is not None:
        if (Path(config.base) / "agent.json").exists():
            published = Path(config.base)
        else:
            base = Run(data / config.base)
    context = Context(config, Run(data / config.run, base), published)
    module = import_module(f"worldmodels.stages.{MODULES.get(config.stage, config.stage.name)}")
    with virtual_display(config.display.value, config.env.needs_display):
        module.run(context)


class _Escape(BaseException):
    """Carries an error past Hydra, which would print lines of its own about an Exception."""

    def __init__(self, error: Exception, debug: bool) -> None:
        super().__init__()
        self.error, self.debug = error, debug


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
def compose(composed: DictConfig) -> None:
    """What Hydra calls with the composed configuration, once for each job of a sweep."""
    try:
        config = OmegaConf.to_object(composed)
        assert isinstance(config, schema.Config)
        run_stage(config)
    except Exception as error:
        raise _Escape(error, composed.debug) from error


def explain(error: BaseException) -> int:
    """Say on one line what ended the process; its exit code."""
    if isinstance(error, Stopped):
        print(f"stopped by {error}: progress is saved, the same command goes on", file=sys.stderr)
        return EXIT_STOPPED
    if isinstance(error, KeyboardInterrupt):
        print("interrupted at once: goes on from the last checkpoint", file=sys.stderr)
        return EXIT_STOPPED
    line = " ".join(str(error).split())
    if not isinstance(error, WorldModelsError | HydraException | OmegaConfBaseException):
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(last.filename).name}:{last.lineno}"
        line = f"{type(error).__name__}: {line} ({place}; debug=true shows the traceback)"
    print(f"error: {line}", file=sys.stderr)
    return EXIT_ERROR


def main() -> int:
    """The process: its exit codes are in `worldmodels.errors`."""
    # Hydra would print errors in several lines and exit; raised to here they become one.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    schema.register()
    interrupts.install()
    try:
        compose()
    except _Escape as escape:
        if escape.debug:
            traceback.print_exception(escape.error)
        return explain(escape.error)
    except (Exception, KeyboardInterrupt) as error:
        return explain(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
