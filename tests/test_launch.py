"""Which processes train one model: what the keys, torchrun and srun say, and where they differ."""

import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from command import ALONE, composed, error_line, main_port, run

from worldmodels.errors import ConfigError
from worldmodels.files.atomic import read_json
from worldmodels.system.cores import available_cores
from worldmodels.system.launchers import Started, started
from worldmodels.training import compiling, launch

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "RANK": "3",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "WORLD_SIZE": "4",
}
SRUN = {
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
}


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in TORCHRUN | SRUN:
        monkeypatch.delenv(name, raising=False)


def given(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(("by", "variables"), [("torchrun", TORCHRUN), ("srun", SRUN)])
def test_ranks_are_those_of_the_program_that_started_them(
    monkeypatch: pytest.MonkeyPatch, by: str, variables: dict[str, str]
) -> None:
    given(monkeypatch, variables)
    assert started() == Started(by, rank=3, local_rank=1, local=2, total=4)


def test_one_task_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert started() is None
    given(monkeypatch, SRUN | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_NUM_NODES": "1"})
    assert started() is None
    given(monkeypatch, {"SLURM_NTASKS": "8"})  # of the job, whose batch script this may be
    assert started() is None


def check(*words: str) -> None:
    config = composed(*words)
    launch.check(config.trainer, config.device.name)


def test_other_processes_than_were_started_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"^trainer.nodes=2: .*torchrun or srun"):
        check("device=cpu", "trainer.nodes=2")
    given(monkeypatch, TORCHRUN)
    check("device=cpu", "trainer.devices=2", "trainer.nodes=2")
    for words in ((), ("trainer.devices=4",), ("trainer.devices=2",)):
        with pytest.raises(ConfigError, match=r"give trainer.devices=2 trainer.nodes=2"):
            check("device=cpu", *words)


def test_tasks_of_srun_may_be_runs_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, SRUN)
    check("device=cpu")
    with pytest.raises(ConfigError, match=r"^trainer.devices=4: srun has started 2"):
        check("device=cpu", "trainer.devices=4")


def test_more_processes_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"^trainer.devices=4: torch sees no GPU.*device=cpu"):
        check("trainer.devices=4")
    check("device=cpu", "trainer.devices=4")
    with pytest.raises(ConfigError, match=r"^trainer.devices=2: device=mps is one GPU"):
        check("device=mps", "trainer.devices=2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    with pytest.raises(ConfigError, match=r"^trainer.devices=4: torch sees 3 GPUs.*at most 3"):
        check("trainer.devices=4")


def test_processes_share_the_cores_of_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOKY_MAX_CPU_COUNT", "1")
    assert launch.threads(composed("trainer.devices=4").trainer) == 1
    monkeypatch.delenv("LOKY_MAX_CPU_COUNT")
    assert launch.threads(composed().trainer) == available_cores()
    # Slurm gives a task its share of the cores already.
    given(monkeypatch, SRUN | {"SLURM_CPUS_ON_NODE": str(2 * available_cores())})
    shared = composed("trainer.devices=2", "trainer.nodes=2").trainer
    assert launch.threads(shared) == available_cores()


def test_without_a_compiler_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ConfigError, match=r"^trainer.compile=true: .*no-such-compiler.*; install"):
        compiling.check(torch.device("cpu"))
    monkeypatch.setattr(compiling, "find_spec", lambda module: None)
    with pytest.raises(ConfigError, match=r"^trainer.compile=true: .*triton is not installed"):
        compiling.check(torch.device("cuda"))


# Two processes on the CPU, also in system/test_several_processes.py.

TWO = ("preset=smoke", "run=two", "device=cpu", "trainer.devices=2", "rnn.baselines=false", ALONE)


def upstream(smoke: Path, data: Path, *stages: str) -> Path:
    """The finished stages of the run ``smoke`` as those of the run ``two``."""
    for stage in stages:
        shutil.copytree(smoke / "smoke" / stage, data / "two" / stage)
    return data


def loss(run: Path, stage: str) -> float:
    """The validation loss of a finished stage."""
    record = read_json(run / stage / "manifest.json")
    assert record["state"] == "complete"
    return float(record["summary"]["loss"])


@pytest.mark.system
def test_a_process_that_this_program_starts_trains_as_one_does(smoke: Path, tmp_path: Path) -> None:
    done = run(upstream(smoke, tmp_path, "rollouts"), "stage=vae", *TWO)
    assert (done.returncode, done.stderr) == (0, "")
    # Up to the order of sums, which in bfloat16 matters more.
    assert loss(tmp_path / "two", "vae") == pytest.approx(loss(smoke / "smoke", "vae"), rel=0.01)


def by_torchrun(data: Path, *words: str) -> list["subprocess.CompletedProcess[str]"]:
    """A command in two processes that find each other as torchrun tells them."""
    shared = {"TORCHELASTIC_RUN_ID": "none", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "2"}
    with main_port() as port, ThreadPoolExecutor(2) as both:
        shared["MASTER_PORT"] = port
        ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in (0, 1)]
        return [*both.map(lambda rank: run(data, *words, variables=shared | rank), ranks)]


def test_of_the_processes_of_torchrun_the_first_writes_and_prints(
    smoke: Path, tmp_path: Path
) -> None:
    data = upstream(smoke, tmp_path, "rollouts", "vae")
    first, other = by_torchrun(data, "stage=rnn", *TWO)
    assert (first.returncode, first.stderr) == (0, "")
    assert "rnn: took " in first.stdout
    assert (other.returncode, other.stdout, other.stderr) == (0, "", "")
    assert loss(data / "two", "rnn") == pytest.approx(loss(smoke / "smoke", "rnn"), rel=0.01)


def test_an_error_of_the_first_process_ends_the_others_with_its_code(tmp_path: Path) -> None:
    first, other = by_torchrun(tmp_path, "stage=vae", *TWO)
    assert "stage=rollouts" in error_line(first)
    assert (other.returncode, other.stdout, other.stderr) == (1, "", "")
