"""Sweeps as jobs of Slurm: what is checked before, and how a job answers. On a real Slurm:
``system/test_slurm_cluster.py``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command import composed, error_line, run
from hydra.core.override_parser.overrides_parser import OverridesParser
from shell import Commands

from worldmodels import sweeps
from worldmodels.config.schema import Config
from worldmodels.errors import Stopped

pytest.importorskip("submitit", reason="pip install hydra-submitit-launcher")
LAUNCHER = "hydra/launcher=submitit_slurm"


def config(words: list[str]) -> Config:
    return composed("preset=smoke", *words)


@pytest.fixture
def submits(commands: Commands) -> dict[str, str]:
    """The variables of a process that finds the commands of Slurm."""
    for name in ("sbatch", "srun"):
        commands.add(name, "exit 1")
    return {"PATH": str(commands.bin)}


# Before anything is queued


def test_every_job_has_a_run_of_its_own() -> None:
    parse = OverridesParser.create().parse_overrides
    words = ["seed=1,2,3", "vae.kl_tolerance=0,1", "run=${seed}-${vae.kl_tolerance}"]
    assert sweeps.check(parse(words), config) == 6
    assert sweeps.check(parse(["seed=5", "run=one"]), config) == 1


def test_jobs_that_share_a_run_are_one_line(tmp_path: Path, submits: dict[str, str]) -> None:
    words = ("--multirun", LAUNCHER, "preset=smoke", "seed=1,2,3")
    line = error_line(run(tmp_path, *words, variables=submits))
    assert line == (
        "error: run=smoke: the jobs seed=1 and seed=2 would both write to it; name a run for each,"
        " such as run='smoke-${seed}'"
    )
    line = error_line(run(tmp_path, *words, "run=s${seed}", "vae.latent_size=0", variables=submits))
    assert "vae.latent_size=0" in line
    assert not any(tmp_path.glob("**/multirun"))


def test_a_launcher_without_a_sweep_or_without_slurm_is_one_line(
    tmp_path: Path, submits: dict[str, str]
) -> None:
    assert "add --multirun" in error_line(run(tmp_path, LAUNCHER, variables=submits))
    (tmp_path / "bin/srun").unlink()
    line = error_line(run(tmp_path, "--multirun", LAUNCHER, "seed=1,2", variables=submits))
    assert "there is no srun here" in line
    line = error_line(run(tmp_path, "--multirun", "hydra/launcher=submitit_local", "seed=1,2"))
    assert LAUNCHER in line


@pytest.mark.parametrize("added", ["", "+", "++"])
def test_the_launchers_defaults_give_way_to_the_command_line(added: str) -> None:
    assert sweeps.options(["seed=1,2"])["name"].startswith("sweep-")
    words = ["seed=1,2", f"{added}hydra.launcher.name=mine", f"{added}hydra.launcher.gres=gpu:1"]
    assert sweeps.options(words) == sweeps.DEFAULTS | {"name": "mine", "gres": "gpu:1"}


def test_a_signal_ends_the_wait_and_names_the_jobs(capfd: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Stopped, match="SIGTERM"), sweeps.submitted("mine", 3):
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()
    output, errors = capfd.readouterr()
    assert output == "3 jobs named mine: squeue --name=mine lists them\n"
    assert errors == "the jobs remain in the queue: scancel --name=mine ends them\n"
    assert signal.getsignal(signal.SIGTERM) is before


# In a job

JOB = """
import os, signal, sys
from worldmodels import sweeps
from worldmodels.config.schema import Config
from worldmodels.system import interrupts
config = Config(overwrite=True)
sweeps.begin_job(config)
print(config.overwrite, os.environ["LOKY_MAX_CPU_COUNT"])
os.kill(os.getpid(), signal.Signals[sys.argv[1]])
assert interrupts.requested()
sweeps.stop_job()
"""
OF_ARRAY = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}


@pytest.mark.parametrize(
    ("received", "refused", "task", "calls", "said"),
    [
        ("SIGTERM", "0", {}, [], ""),
        ("SIGUSR2", "0", {}, ["requeue 7"], "job 7 requeued\n"),
        ("SIGUSR2", "1", {}, ["requeue 7"], "Slurm refused to requeue job 7: submit the sweep"),
        # The number of this task of an array is that of the array.
        ("SIGUSR2", "0", OF_ARRAY, ["requeue 7_3"], "job 7_3 requeued\n"),
    ],
)
def test_a_job_out_of_time_is_requeued_and_a_cancelled_one_is_not(
    commands: Commands,
    received: str,
    refused: str,
    task: dict[str, str],
    calls: list[str],
    said: str,
) -> None:
    commands.add("scontrol", f"exit {refused}")
    slurm = {"SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "3", "SLURM_RESTART_COUNT": "1"}
    done = subprocess.run(
        [sys.executable, "-c", JOB, received],
        env=os.environ | commands.env | slurm | task | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 75, done.stderr
    assert done.stdout == "False 3\n"
    assert done.stderr.startswith(said)
    assert commands.calls("scontrol") == calls


def test_a_failed_job_ends_with_the_code_of_an_error() -> None:
    program = (
        "from worldmodels import sweeps\n"
        "try:\n    raise sweeps.fail_job('vae: missing')\n"
        "except sweeps.JobFailed as error:\n    print(error, flush=True)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "vae: missing\n")
