"""Sweeps whose runs are jobs of Slurm: ``--multirun hydra/launcher=submitit_slurm``.

hydra-submitit-launcher submits the jobs, as one array, and waits for them. This module checks a
sweep before anything is queued, and gives its jobs the signals and exit codes that the scripts in
``slurm/`` have: a job that is warned of its time limit saves, returns to the queue and continues.

submitit has a way of its own to requeue a job. It does so inside the signal's handler, in the
middle of whatever runs, and a limited number of times; it is not used.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.types import Override

from worldmodels.config.schema import Config
from worldmodels.errors import (
    EXIT_ERROR,
    EXIT_STOPPED,
    ConfigError,
    Stopped,
    WorldModelsError,
    install,
)
from worldmodels.system import interrupts, streams

LAUNCHER = "hydra/launcher=submitit_slurm"
_KEY = "hydra.launcher."
DEFAULTS = {
    "submitit_folder": "${hydra.sweep.dir}/slurm/%j",
    "stderr_to_stdout": "true",
    "timeout_min": "240",
    "cpus_per_task": "8",
    "mem_per_cpu": "2G",
    # Since Slurm 22.05 srun does not take the number of cores from the job.
    "setup": "['export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK']",
    "additional_parameters.requeue": "true",
}
"""Keys of ``hydra.launcher``, in place of submitit's defaults (an hour on one core)."""
_WARNING = signal.SIGUSR2
"""What submitit has Slurm send before the time limit."""


# Where the sweep is submitted


def require(words: Sequence[str]) -> None:
    """Raise `ConfigError` where a command line cannot submit a sweep.

    It lacks ``--multirun``, or there is no submitit here, or no Slurm.
    """
    if LAUNCHER not in words:
        raise ConfigError(f"hydra/launcher: the launcher of submitit that is known is {LAUNCHER}")
    if not {"-m", "--multirun", "hydra.mode=MULTIRUN"} & set(words):
        raise ConfigError(f"{LAUNCHER}: submits the runs of a sweep; add --multirun")
    if find_spec("submitit") is None:
        raise ConfigError(f"{LAUNCHER}: submitit is not installed; {install('slurm')}")
    for program in ("sbatch", "srun"):
        if shutil.which(program) is None:
            raise ConfigError(
                f"{LAUNCHER}: there is no {program} here; run the command on a machine that submits"
                " to Slurm"
            )


def check(overrides: Sequence[Override], compose: Callable[[list[str]], Config]) -> int:
    """Check every job of a sweep, and that no two of them write to one run.

    Args:
        overrides: of the command line.
        compose: the checked configuration of a job, by its overrides.

    Returns:
        The number of jobs.

    Raises:
        ConfigError: two jobs share a run.
    """
    swept = [one for one in overrides if one.is_sweep_override()]
    others = [str(one.input_line) for one in overrides if not one.is_sweep_override()]
    [jobs] = BasicSweeper.split_arguments(swept, None)
    taken: dict[Path, str] = {}
    for job in jobs:
        config = compose([*others, *job])
        folder = Path(config.data, config.run).resolve()
        if folder in taken:
            example = f"run='{config.run}-${{{swept[0].get_key_element()}}}'"
            raise ConfigError(
                f"run={config.run}: the jobs {taken[folder]} and {' '.join(job)} would both write"
                f" to it; name a run for each, such as {example}"
            )
        taken[folder] = " ".join(job)
    return len(jobs)


def options(overrides: Sequence[str]) -> dict[str, str]:
    """The keys of ``hydra.launcher`` that the command line gives or that have a default here.

    The name has the time, so that ``scancel --name`` ends the jobs of one sweep alone.
    """
    words = [word.lstrip("+") for word in overrides]  # +key= and ++key= as key=
    words = [word.removeprefix(_KEY) for word in words if word.startswith(_KEY)]
    given = dict(word.split("=", 1) for word in words if "=" in word)
    return {"name": f"sweep-{datetime.now():%m%d-%H%M%S}"} | DEFAULTS | given


@contextmanager
def submitted(name: str, jobs: int) -> Iterator[None]:
    """While the command waits for its jobs, a signal ends the wait and not the jobs.

    Raises:
        Stopped: SIGTERM or SIGINT was received.
    """
    # It warns at every look where there is no accounting, and in two streams.
    logging.getLogger("submitit").setLevel(logging.ERROR)
    count = "1 job" if jobs == 1 else f"{jobs} jobs"
    print(f"{count} named {name}: squeue --name={name} lists them", flush=True)
    before = {number: signal.signal(number, _give_up) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    except _GivenUp as signalled:
        streams.print_error(f"the jobs remain in the queue: scancel --name={name} ends them")
        raise Stopped(str(signalled)) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _GivenUp(BaseException):
    """Passes the handlers that submitit has for errors of Slurm's commands."""


def _give_up(number: int, frame: FrameType | None) -> None:
    raise _GivenUp(signal.Signals(number).name)


# In a job


class JobFailed(WorldModelsError):
    """Carries the line that a job failed with to the command that waits for it."""


def begin_job(config: Config) -> None:
    """Answer signals as every process of this program does, and the time limit's warning too."""
    interrupts.install(_WARNING)
    # By default there are as many workers as cores, and not every cluster binds a job to its cores.
    if cores := os.environ.get("SLURM_CPUS_PER_TASK"):
        os.environ.setdefault("LOKY_MAX_CPU_COUNT", cores)
    if os.environ.get("SLURM_RESTART_COUNT", "0") != "0":
        config.overwrite = False  # what it would delete now is this job's own progress


def stop_job() -> None:
    """End a job whose progress is saved: back into the queue if only its time was over.

    SIGTERM is from Slurm, which then cancels the job or runs it again itself.
    """
    job = os.environ["SLURM_JOB_ID"]
    # The bare number of a task is, for one of them, that of the whole array.
    if (array := os.environ.get("SLURM_ARRAY_JOB_ID")) is not None:
        job = f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    if interrupts.received() == _WARNING:
        done = subprocess.run(["scontrol", "requeue", job], check=False)
        if done.returncode == 0:
            streams.print_error(f"job {job} requeued")
        else:
            streams.print_error(
                f"Slurm refused to requeue job {job}: submit the sweep again to continue"
            )
    sys.exit(EXIT_STOPPED)


def fail_job(line: str) -> JobFailed:
    """The exception that ends a job with the exit code of an error.

    submitit delivers it to the command that waits, and would then end with code 0.
    """
    atexit.register(os._exit, EXIT_ERROR)
    return JobFailed(line)
