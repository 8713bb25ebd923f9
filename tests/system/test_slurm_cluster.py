"""slurm/ and sweeps on a real Slurm: requeued, out of time, cancelled, on a drained node."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import ALONE, run
from slurm_cluster import Cluster, cluster, pending
from waiting import HANG_SECONDS, wait_for

from worldmodels.files.atomic import read_json
from worldmodels.runs.tracking import read_metrics

pytestmark = [pytest.mark.system, pytest.mark.timeout(1800)]
CHAIN = ("rollouts", "vae", "rnn", "controller", "evaluate", "report")
SMOKE = ("preset=smoke", "trainer.checkpoint_seconds=0", ALONE)


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    # Not below the folders of pytest: the name of a Unix socket is short.
    with tempfile.TemporaryDirectory(prefix="slurm-") as name, cluster(Path(name)) as started:
        yield started


def fingerprint(data: Path, run: str, stage: str) -> str:
    return str(json.loads((data / run / stage / "manifest.json").read_text())["fingerprint"])


def out_of_time(slurm: Cluster, job: str, warning: signal.Signals) -> None:
    """The time limit comes in the middle of a job; Slurm queues the job again.

    Args:
        slurm: that runs it.
        job: its number, or ``<array>_<task>``: the number of a task may be that of its array.
        warning: the signal that comes before the limit.
    """
    program = slurm.frozen(slurm.show(job)["JobId"])
    hours, minutes, _ = map(int, slurm.show(job)["RunTime"].split(":"))
    # One to two minutes from now, which is later than Slurm would warn. Not less: a limit that is
    # already over ends the job.
    slurm.run("scontrol", "update", f"JobId={job}", f"TimeLimit={60 * hours + minutes + 2}")
    wait_for(lambda: pending(program, warning))
    program.send_signal(signal.SIGCONT)
    slurm.wait(job, "PENDING")
    # Or it would be out of time again as soon as it runs.
    slurm.run("scontrol", "update", f"JobId={job}", "TimeLimit=240")


def test_a_chain_requeued_out_of_time_and_drained_makes_the_same_artifacts(
    slurm: Cluster, smoke: Path
) -> None:
    jobs = slurm.submit("smoke", *SMOKE, freeze="rollouts vae rnn")
    assert tuple(jobs) == CHAIN

    program = slurm.frozen(jobs["rollouts"])
    slurm.run("scontrol", "requeue", jobs["rollouts"])
    wait_for(lambda: not program.is_running())

    out_of_time(slurm, jobs["vae"], signal.SIGTERM)
    assert f"job {jobs['rollouts']} is COMPLETING, left to Slurm" in slurm.log(jobs["rollouts"])
    assert f"job {jobs['vae']} requeued" in slurm.log(jobs["vae"])

    program = slurm.frozen(jobs["rnn"])
    drained = slurm.show(jobs["rnn"])["NodeList"]
    slurm.run("scontrol", "update", f"NodeName={drained}", "State=DRAIN", "Reason=test")
    program.send_signal(signal.SIGCONT)
    slurm.wait(jobs["report"], "COMPLETED")
    slurm.run("scontrol", "update", f"NodeName={drained}", "State=RESUME")

    shown = {stage: slurm.show(job) for stage, job in jobs.items()}
    restarts = {stage: int(facts["Restarts"]) for stage, facts in shown.items()}
    assert restarts == dict.fromkeys(CHAIN, 0) | {"rollouts": 1, "vae": 1}
    assert shown["rnn"]["NodeList"] == drained
    assert all(shown[stage]["NodeList"] != drained for stage in ("controller", "evaluate"))
    for stage in CHAIN[:-1]:  # the report has the times of its run
        made, whole = (fingerprint(data, "smoke", stage) for data in (slurm.home / "data", smoke))
        assert made == whole, stage


def test_a_cancelled_job_keeps_its_progress_and_its_chain_leaves_the_queue(
    slurm: Cluster, smoke: Path
) -> None:
    jobs = slurm.submit("ended", *SMOKE, freeze="rollouts")
    program = slurm.frozen(jobs["rollouts"])
    slurm.run("scancel", jobs["rollouts"])
    wait_for(lambda: not slurm.run("squeue", "--noheader"))
    assert not program.is_running()
    for stage, job in jobs.items():
        assert slurm.show(job)["JobState"] == "CANCELLED", stage
    log = slurm.log(jobs["rollouts"])
    assert "progress is saved" in log
    assert "requeued" not in log

    folder = slurm.home / "data/ended/rollouts"
    assert read_json(folder / "manifest.json")["state"] == "running"
    [shard] = folder.glob("*.h5")
    inode = shard.stat().st_ino
    done = run(slurm.home / "data", "stage=rollouts", "run=ended", *SMOKE)
    assert done.returncode == 0, done.stderr
    assert shard.stat().st_ino == inode
    assert fingerprint(folder.parents[1], "ended", "rollouts") == fingerprint(
        smoke, "smoke", "rollouts"
    )


# Sweeps

SWEEP = ("python", "-m", "worldmodels", "--multirun", "hydra/launcher=submitit_slurm")


@pytest.mark.slow  # two minutes of a time limit, which is in minutes
def test_a_sweep_is_an_array_of_jobs_that_survive_their_time_limit(
    slurm: Cluster, smoke: Path
) -> None:
    pytest.importorskip("submitit", reason="pip install hydra-submitit-launcher")
    words = (*SMOKE, "stage=rollouts", "seed=1,2", "run=s${seed}", "hydra.launcher.name=seeds")
    with slurm.start(*SWEEP, *words, FREEZE="seeds") as command:
        listed = ("squeue", "--noheader", "--name=seeds", "--format=%F")
        wait_for(lambda: command.poll() is not None or slurm.run(*listed))
        [array] = set(slurm.run(*listed).split())
        slurm.wait(f"{array}_0", "RUNNING")
        out_of_time(slurm, f"{array}_0", signal.SIGUSR2)
        output, errors = command.communicate(timeout=HANG_SECONDS)
    assert command.returncode == 0, (output, errors, slurm.logs())
    assert "2 jobs named seeds" in output
    data = slurm.home / "data"
    assert fingerprint(data, "s1", "rollouts") == fingerprint(smoke, "smoke", "rollouts")
    assert fingerprint(data, "s2", "rollouts") != fingerprint(smoke, "smoke", "rollouts")
    for task, restarts in enumerate(("1", "0")):
        slurm.wait(f"{array}_{task}", "COMPLETED")
        assert slurm.show(f"{array}_{task}")["Restarts"] == restarts


OUT_OF_TIME = """
import os, signal, sys, time
from pathlib import Path
from worldmodels import sweeps
from worldmodels.config.schema import Config

sweeps.begin_job(Config())
if os.environ["SLURM_ARRAY_TASK_ID"] == "1" and "SLURM_RESTART_COUNT" not in os.environ:
    while not Path("both-run").exists():
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGUSR2)
    sweeps.stop_job()
time.sleep(1000)
"""


def test_a_task_of_an_array_that_is_out_of_time_is_requeued_alone(slurm: Cluster) -> None:
    (slurm.home / "job.py").write_text(OUT_OF_TIME)
    program = f"exec {sys.executable} job.py"
    job = slurm.run("sbatch", "--parsable", "--requeue", "--array=0-1", "--wrap", program).strip()
    slurm.wait(f"{job}_0", "RUNNING")
    slurm.wait(f"{job}_1", "RUNNING")
    assert slurm.show(f"{job}_1")["JobId"] == job, "its number is that of the array"
    (slurm.home / "both-run").touch()
    wait_for(lambda: slurm.show(f"{job}_1")["Restarts"] == "1")
    task = slurm.show(f"{job}_0")
    assert (task["JobState"], task["Restarts"]) == ("RUNNING", "0")
    slurm.run("scancel", job)
    wait_for(lambda: not slurm.run("squeue", "--noheader"))


def test_a_sweep_whose_job_fails_says_why_and_slurm_knows(slurm: Cluster) -> None:
    pytest.importorskip("submitit", reason="pip install hydra-submitit-launcher")
    words = ("preset=smoke", ALONE, "stage=vae", "run=none", "hydra.launcher.name=fails")
    with slurm.start(*SWEEP, *words) as command:
        output, errors = command.communicate(timeout=HANG_SECONDS)
    assert command.returncode == 1, (output, errors)
    line = errors.splitlines()[-1]
    assert line.startswith("error: ")
    assert "stage=rollouts" in line
    listed = ("squeue", "--noheader", "--name=fails", "--states=all", "--format=%i")
    [job] = slurm.run(*listed).split()
    slurm.wait(job, "FAILED")
    assert slurm.show(job)["ExitCode"] == "1:0"


# One training in several tasks


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        (("--nodes=1", "--ntasks-per-node=2"), ("trainer.devices=2",)),
        (("--nodes=2", "--ntasks-per-node=1"), ("trainer.devices=1", "trainer.nodes=2")),
    ],
    ids=["one node", "two nodes"],
)
def test_srun_trains_in_two_tasks_as_one_process_does(
    slurm: Cluster, smoke: Path, tmp_path: Path, options: tuple[str, ...], keys: tuple[str, ...]
) -> None:
    words = (*SMOKE, "stage=vae", "run=two", "device=cpu", "trainer.precision=float32")
    data = slurm.home / "data"
    for folder in (data, tmp_path):
        shutil.rmtree(folder / "two", ignore_errors=True)
        shutil.copytree(smoke / "smoke/rollouts", folder / "two/rollouts")
    alone = run(tmp_path, *words)
    assert alone.returncode == 0, alone.stderr

    # The names of the nodes resolve to nothing: both are this machine.
    here = {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
    command = ("srun", *options, "--kill-on-bad-exit=1", "python", "-m", "worldmodels")
    output = slurm.run(*command, *words, *keys, **here)
    assert len([line for line in output.splitlines() if line.startswith("vae: took ")]) == 1
    losses = [
        {
            (step, name): value
            for step, name, value, _ in read_metrics(folder / "two/vae/metrics.csv")
            if name.endswith("loss")
        }
        for folder in (data, tmp_path)
    ]
    assert losses[0]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


# A Ray cluster in a job


def test_a_stage_on_a_ray_cluster_goes_on_after_its_time_limit_and_leaves_nothing(
    slurm: Cluster, smoke: Path
) -> None:
    pytest.importorskip("worldmodels.workers.ray_pool", reason="pip install 'ray[client]'")
    words = [word for word in SMOKE if word != ALONE]
    options = ("--parsable", "--cpus-per-task=1", "--job-name=ray")
    submit = ("sbatch", *options, "slurm/ray.sbatch", "stage=rollouts", "run=ray", *words)
    # Ray lowers the priority of its workers, which on a busy machine then get no time.
    job = slurm.run(*submit, FREEZE="rollouts", RAY_worker_niceness="0").strip()
    out_of_time(slurm, job, signal.SIGTERM)
    slurm.wait(job, "COMPLETED")
    assert slurm.show(job)["NumNodes"] == "2"
    assert f"job {job} requeued" in slurm.log(job)
    made = fingerprint(slurm.home / "data", "ray", "rollouts")
    assert made == fingerprint(smoke, "smoke", "rollouts")
    wait_for(lambda: not list(slurm.processes(job)))
    assert not Path(f"/tmp/ray-{job}").exists()
