"""Which stage a configuration names, and what surrounds it: checks, the run's copy, a display.

Stages are imported when they are run: ``--help`` and a mistyped key are answered at once, and
``stage=doctor`` reports which of their imports are missing.
"""

from __future__ import annotations

import contextlib
import sys
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from pathlib import Path

from worldmodels import extras
from worldmodels.config import shipped
from worldmodels.config.choices import IMPORT, TRAINING, Stage
from worldmodels.config.limits import run_folder
from worldmodels.config.schema import Config
from worldmodels.errors import EXIT_ERROR, EXIT_STOPPED, ConfigError, Stopped, TrainingError
from worldmodels.system import interrupts, streams
from worldmodels.system.launchers import Started, started

MODULES = {Stage.all: "chain", IMPORT: "importing"}
"""The modules of this package whose names are not those of their stages."""


def run(config: Config) -> None:
    """Run one stage of one run, in rank 0 where torchrun or srun has started several processes.

    The other ranks train when rank 0 does, and end with its exit code.
    """
    found = started()
    if found is not None and (found.by == "torchrun" or config.trainer.grouped):
        _run_in_rank(config, found)
    else:
        run_alone(config)  # perhaps beside other tasks of srun that are runs of their own


def run_alone(config: Config) -> None:
    """Run one stage of one run in this process."""
    interrupts.check()  # a signal may have arrived during the imports
    if config.stage is Stage.doctor:
        from worldmodels.stages import doctor

        doctor.run(config)
        return
    from worldmodels.agents.hub import find_agent, require_agent
    from worldmodels.envs.display import virtual_display
    from worldmodels.runs.artifacts import Run
    from worldmodels.runs.bases import base_run
    from worldmodels.stages.context import Context

    root = run_folder(config, "run", config.run)
    extras.check(config)
    if config.model is not None:
        require_agent("model", config.model)
    base, published = None, None
    if config.base is not None:
        published = find_agent("base", config.base)
        if published is None:
            base = base_run(Path(config.data), config.base)
            if not base.root.is_dir():
                raise ConfigError(
                    f"base={config.base}: neither a run in {config.data} nor the folder of an"
                    f" agent; shipped agents are {', '.join(shipped.agents())}"
                )
    with _mirror(config, root):
        context = Context(config, Run(root, base, config.run), published)
        config.env.frame_skip = context.frame_skip()
        observation = context.observation()
        config.env.crop_rows, config.env.size = observation.crop_rows, observation.size
        context.check()
        module = import_module(f"worldmodels.stages.{MODULES.get(config.stage, config.stage.name)}")
        interrupts.check()
        drawing = config.env.needs_display and config.stage not in extras.WITHOUT_ENV
        with virtual_display(config.display.value, drawing):
            module.run(context)


def _mirror(config: Config, root: Path) -> AbstractContextManager[object]:
    """Fetches the run of ``resume=`` and copies it to ``store=``, where they are given."""
    if config.store is None and config.resume is None:
        return nullcontext()
    from worldmodels.store.mirror import Mirror

    return Mirror(config, root)


def _run_in_rank(config: Config, found: Started) -> None:
    """Run a stage in rank 0; in the other ranks, its trainings."""
    if found.local_rank > 0:
        streams.silence()
    from worldmodels.system.devices import choose_device
    from worldmodels.training import launch

    launch.check(config.trainer, config.device.name)
    if config.stage not in TRAINING:
        if found.rank == 0:
            run_alone(config)
        return
    if found.rank > 0:
        from worldmodels.stages import follower

        sys.exit(follower.follow(config))
    with launch.connected(choose_device(config.device.name)) as ranks:
        code = EXIT_ERROR
        try:
            run_alone(config)
            code = 0
        except Stopped:
            code = EXIT_STOPPED
            raise
        finally:
            if not ranks.ended:
                with contextlib.suppress(TrainingError):  # of ranks that a signal has ended
                    ranks.call({"code": code})
