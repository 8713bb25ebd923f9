"""Training in two processes on the CPU: equal losses, one checkpoint for any number, one end."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from command import ALONE, environment, error_line, paused, run, start, started_anew
from waiting import HANG_SECONDS, wait_for

from worldmodels.runs.tracking import read_metrics

pytestmark = [pytest.mark.system, pytest.mark.timeout(1800)]

TWO = ("device=cpu", "trainer.devices=2")
BASE = ("preset=smoke", "trainer.log_every=1", "trainer.precision=float32", ALONE)
RNN = ("stage=rnn", "run=two", "rnn.baselines=false", "rnn.epochs=60", *BASE)
VAE = ("stage=vae", "run=two", "vae.batch_size=96", *BASE)
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


@pytest.fixture
def data(smoke: Path, tmp_path: Path) -> Path:
    """A data folder with the first stages of the run ``smoke`` as those of the run ``two``."""
    for stage in ("rollouts", "vae"):
        shutil.copytree(smoke / "smoke" / stage, tmp_path / "two" / stage)
    return tmp_path


@pytest.fixture(scope="module")
def alone(smoke: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stages ``vae`` and ``rnn`` in one process."""
    data = tmp_path_factory.mktemp("alone")
    shutil.copytree(smoke / "smoke" / "rollouts", data / "two" / "rollouts")
    for words in (VAE, RNN):
        done = run(data, *words)
        assert done.returncode == 0, done.stderr
    return data


def same_metrics(data: Path, other: Path, stage: str, tolerance: float) -> bool:
    """Whether losses and logs are equal up to `tolerance`, in every step and at every epoch's end.

    The number of active dimensions is no mean over images, and may differ.
    """
    found, wanted = (
        read_metrics(folder / "two" / stage / "metrics.csv") for folder in (data, other)
    )
    assert [row[:2] for row in found] == [row[:2] for row in wanted]
    for row, twin in zip(found, wanted, strict=True):
        if "active_dims" not in row[1]:
            assert row[2] == pytest.approx(twin[2], rel=tolerance, abs=1e-5), (row, twin)
    return True


def descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def ended(process: psutil.Process) -> bool:
    """Whether a process has ended, though nobody may have asked how."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def trainers(pid: int, word: str) -> Iterator[psutil.Process]:
    """The processes below another that have `word` on their command line."""
    for child in descendants(pid):
        try:
            if any(word in part for part in child.cmdline()):
                yield child
        except psutil.NoSuchProcess:
            continue


def test_two_processes_take_the_steps_of_one(alone: Path, tmp_path: Path) -> None:
    shutil.copytree(alone / "two" / "rollouts", tmp_path / "two" / "rollouts")
    done = run(tmp_path, *VAE, *TWO)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert same_metrics(tmp_path, alone, "vae", 1e-4)
    shutil.copytree(alone / "two" / "vae", tmp_path / "two" / "vae", dirs_exist_ok=True)
    done = run(tmp_path, *RNN, *TWO)
    assert done.returncode == 0, done.stderr
    assert len([line for line in done.stdout.splitlines() if line.startswith("rnn: took ")]) == 1
    assert same_metrics(tmp_path, alone, "rnn", 1e-4)
    manifest = json.loads((tmp_path / "two/rnn/manifest.json").read_text())
    assert manifest["state"] == "complete"


def stopped(data: Path, *words: str) -> None:
    """Train until there is a checkpoint, then send SIGTERM to one process of the training."""
    with paused(data, *words, "trainer.checkpoint_seconds=0", at_write=10) as running:
        assert (data / "two/rnn/checkpoint.safetensors").exists()
        pid = running.process.pid
        assert pid is not None
        others = list(trainers(pid, "follower"))
        os.kill(others[0].pid if others else pid, signal.SIGTERM)
        running.send(signal.SIGCONT)
        assert running.wait() == 75, running.output + running.errors
        assert running.errors.startswith("stopped by SIGTERM: progress is saved")
        assert len(running.errors.splitlines()) == 1
    wait_for(lambda: all(ended(other) for other in others))


@pytest.mark.parametrize(("before", "after"), [(TWO, ()), ((), TWO)])
def test_a_checkpoint_is_continued_by_another_number_of_processes(
    alone: Path, data: Path, before: tuple[str, ...], after: tuple[str, ...]
) -> None:
    shutil.rmtree(data / "two" / "vae")
    shutil.copytree(alone / "two" / "vae", data / "two" / "vae")
    stopped(data, *RNN, *before)
    done = run(data, *RNN, *after)
    assert done.returncode == 0, done.stderr
    assert same_metrics(data, alone, "rnn", 1e-4)


def test_no_process_is_left_by_one_that_is_killed(data: Path) -> None:
    path = data / "two/rnn/checkpoint.safetensors"
    process = start(data, *RNN, *TWO, "trainer.checkpoint_seconds=0", "rnn.epochs=10000")
    wait_for(lambda: path.exists() or process.poll() is not None)
    others = list(trainers(process.pid, "follower"))
    assert len(others) == 1
    others[0].kill()
    assert "another of the 2 processes" in error_line(finished(process))
    process = start(data, *RNN, *TWO, "trainer.checkpoint_seconds=0", "rnn.epochs=10000")
    changed = path.stat().st_mtime_ns
    wait_for(lambda: path.stat().st_mtime_ns != changed or process.poll() is not None)
    others = list(trainers(process.pid, "follower"))
    assert len(others) == 1
    process.kill()
    process.communicate()
    wait_for(lambda: ended(others[0]))


def finished(process: "subprocess.Popen[str]") -> "subprocess.CompletedProcess[str]":
    output, errors = process.communicate(timeout=HANG_SECONDS)
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def torchrun(data: Path, *words: str) -> "subprocess.Popen[str]":
    line = [*TORCHRUN, "-m", "worldmodels", *words, f"data={data}"]
    return subprocess.Popen(
        line,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment() | {"OMP_NUM_THREADS": "1"},
    )


def test_torchrun_starts_the_chain_and_rank_0_alone_runs_its_other_stages(
    alone: Path, tmp_path: Path
) -> None:
    chain = ("stage=all", "run=two", "vae.batch_size=96", "rnn.baselines=false", *BASE, *TWO)
    done = finished(torchrun(tmp_path, *chain, "evaluate.video=false", "evaluate.engine=native"))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for stage in ("rollouts", "vae", "rnn", "controller", "evaluate", "report"):
        said = [line for line in done.stdout.splitlines() if line.startswith(f"{stage}: took ")]
        assert len(said) == 1, (stage, done.stdout)
    assert same_metrics(tmp_path, alone, "vae", 1e-4)
    again = finished(torchrun(tmp_path, "stage=rnn", *chain[1:]))
    assert again.returncode == 0, again.stderr
    assert "rnn: done before" in again.stdout


def test_sigterm_to_torchrun_saves_and_leaves_nothing(data: Path) -> None:
    path = data / "two/rnn/checkpoint.safetensors"
    words = (*RNN, *TWO, "trainer.checkpoint_seconds=0", "rnn.epochs=10000")
    process = torchrun(data, *words)
    wait_for(lambda: path.exists() or process.poll() is not None)
    ranks = descendants(process.pid)
    assert len([*trainers(process.pid, "worldmodels")]) >= 2
    process.send_signal(signal.SIGTERM)
    done = finished(process)
    assert done.returncode != 0
    assert "stopped by SIGTERM: progress is saved" in done.stderr
    wait_for(lambda: all(ended(rank) for rank in ranks))


SITE = """
import sys
if "worldmodels.stages.follower" in sys.orig_argv:
    from worldmodels.data.episodes import EpisodeSet
    from worldmodels.errors import DataError
    def listed(files):
        raise DataError("shard-00007.h5: is damaged; copy it again")
    EpisodeSet.listed = listed
"""


def test_what_one_process_finds_wrong_ends_all_with_its_line(data: Path) -> None:
    (data / "site").mkdir()
    (data / "site" / "sitecustomize.py").write_text(SITE)
    path = os.pathsep.join([str(data / "site"), str(Path(__file__).resolve().parents[2])])
    shutil.rmtree(data / "two" / "vae")
    done = run(data, *VAE, *TWO, variables={"PYTHONPATH": path})
    assert "process 1 of 2: shard-00007.h5: is damaged; copy it again" in error_line(done)
    assert not (data / "two/vae/vae.safetensors").exists()


def test_too_many_processes_for_the_rows_of_a_batch_are_one_line(data: Path) -> None:
    done = started_anew(data, *RNN, *TWO, "rnn.batch_size=1")
    assert "trainer.devices: 2 processes cannot share batches of 1 rows" in error_line(done)
