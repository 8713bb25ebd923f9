"""slurm/: linted, and run for real against stand-ins for Slurm's commands."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from shell import ROOT, Commands, lint
from waiting import HANG_SECONDS, wait_for

CHAIN = ("rollouts", "vae", "rnn", "controller", "evaluate", "report")
STAGES = ("bootstrap", *CHAIN, "iterate")
SIMULATING = ("bootstrap", "rollouts", "controller", "evaluate", "iterate")
TRAINING = ("vae", "rnn", "iterate")


def test_scripts_pass_shellcheck() -> None:
    scripts = [*ROOT.glob("slurm/*.sh"), *ROOT.glob("slurm/*.sbatch")]
    assert len(scripts) == len(("stage.sh", "submit.sh", "ray-node.sh", "ray.sbatch", *STAGES))
    lint("shellcheck", "--external-sources", *(f"slurm/{path.name}" for path in scripts))


# slurm/stage.sh and the batch scripts


@pytest.fixture
def slurm(commands: Commands) -> Commands:
    """Inside a batch job: srun starts the task, scancel --signal reaches the task alone."""
    commands.env |= {"SLURM_JOB_ID": "42", "SLURM_CPUS_PER_TASK": "16"}
    commands.add("python", 'echo "$LOKY_MAX_CPU_COUNT cores"; exit "${PROGRAM:-0}"')
    commands.add(
        "srun",
        """while [[ $1 == --* ]]; do shift; done
(echo "$BASHPID" > "$FOLDER/task"; exec "$@") & task=$!
trap 'kill -KILL "$task"; exit 137' TERM
wait "$task" """,
    )
    commands.add("scancel", 'kill -TERM "$(cat "$FOLDER/task")"')
    commands.add(
        "squeue",
        """[[ $* == *--steps* ]] || { echo "${STATE:-RUNNING}"; exit; }
printf '%s\\n' '42.batch batch' '42.0 ray-node.sh' '42.1 rnn' """,
    )
    commands.add("scontrol", 'exit "${REFUSED:-0}"')
    return commands


@pytest.mark.parametrize("name", STAGES)
def test_batch_script_runs_its_stage_with_the_overrides(slurm: Commands, name: str) -> None:
    done = slurm.run("bash", f"slurm/{name}.sbatch", "run=mine", "vae.latent_size=64")
    assert done.returncode == 0, done.stderr
    [call] = slurm.calls("python")
    # No workers.processes: a stage with a GPU has none, others one for each core of the job.
    assert call == f"-m worldmodels stage={name} run=mine vae.latent_size=64"
    assert "16 cores" in done.stdout
    [step] = slurm.calls("srun")
    assert step.startswith(f"--ntasks=1 --job-name={name} --cpus-per-task=16 python ")
    assert slurm.calls("scontrol") == []


@pytest.mark.parametrize("name", STAGES)
def test_batch_script_asks_for_what_its_stage_uses(name: str) -> None:
    text = (ROOT / f"slurm/{name}.sbatch").read_text()
    asked = dict(re.findall(r"^#SBATCH --([a-z-]+)=?(.*)$", text, re.MULTILINE))
    assert asked["requeue"] == ""
    assert asked["open-mode"] == "append"
    assert asked["signal"] == "B:TERM@120"
    assert ("gres" in asked) == (name in TRAINING)
    assert (int(asked["cpus-per-task"]) >= 16) == (name in SIMULATING)
    # Slurm fails a job without a word when the folder of its log is missing.
    assert Path(asked["output"]).parent == Path("data")
    assert (ROOT / "data").is_dir()


def test_a_job_may_use_fewer_cores_than_it_has(slurm: Commands) -> None:
    slurm.env["LOKY_MAX_CPU_COUNT"] = "4"
    done = slurm.run("bash", "slurm/controller.sbatch", "run=mine")
    assert "4 cores" in done.stdout


def test_stopped_stage_is_requeued(slurm: Commands) -> None:
    slurm.env["PROGRAM"] = "75"
    done = slurm.run("bash", "slurm/vae.sbatch", "run=mine")
    assert done.returncode == 75
    assert slurm.calls("scontrol") == ["requeue 42"]
    assert "requeued" in done.stdout


@pytest.mark.parametrize("code", [1, 2, 137])
def test_failed_stage_fails_the_job(slurm: Commands, code: int) -> None:
    slurm.env["PROGRAM"] = str(code)
    done = slurm.run("bash", "slurm/vae.sbatch", "run=mine")
    assert done.returncode == code
    assert slurm.calls("scontrol") == []


@pytest.mark.parametrize("state", ["COMPLETING", "CANCELLED", "PENDING"])
def test_cancelled_job_stays_cancelled(slurm: Commands, state: str) -> None:
    slurm.env |= {"PROGRAM": "75", "STATE": state}
    done = slurm.run("bash", "slurm/vae.sbatch", "run=mine")
    assert done.returncode == 75
    assert slurm.calls("scontrol") == []
    assert state in done.stdout


def test_refused_requeue_is_said_and_fails_the_job(slurm: Commands) -> None:
    slurm.env |= {"PROGRAM": "75", "REFUSED": "1"}
    done = slurm.run("bash", "slurm/vae.sbatch", "run=mine")
    assert done.returncode == 75
    assert "refused to requeue job 42" in done.stderr


def test_restarted_job_does_not_delete_its_progress(slurm: Commands) -> None:
    slurm.env["SLURM_RESTART_COUNT"] = "1"
    slurm.run("bash", "slurm/vae.sbatch", "run=mine", "overwrite=true")
    [call] = slurm.calls("python")
    assert call.endswith("overwrite=true overwrite=false")


def test_sigterm_is_forwarded_and_the_stage_awaited(slurm: Commands) -> None:
    slurm.add(
        "python",
        """trap 'sleep 0.5; touch "$FOLDER/saved"; exit 75' TERM
touch "$FOLDER/started"
while true; do sleep 0.05; done""",
    )
    folder = Path(slurm.env["FOLDER"])
    shell = subprocess.Popen(["bash", "slurm/rnn.sbatch", "run=mine"], cwd=ROOT, env=slurm.env)
    try:
        wait_for((folder / "started").exists)
        shell.send_signal(signal.SIGTERM)
        assert shell.wait(timeout=HANG_SECONDS) == 75
    finally:
        shell.kill()
    assert (folder / "saved").exists()
    assert slurm.calls("scancel") == ["--quiet --signal=TERM 42.1"]
    assert slurm.calls("scontrol") == ["requeue 42"]


def test_stage_killed_by_sigterm_during_its_imports_is_requeued(slurm: Commands) -> None:
    slurm.add("python", 'touch "$FOLDER/started"; exec sleep 1000')
    folder = Path(slurm.env["FOLDER"])
    shell = subprocess.Popen(["bash", "slurm/rnn.sbatch", "run=mine"], cwd=ROOT, env=slurm.env)
    try:
        wait_for((folder / "started").exists)
        shell.send_signal(signal.SIGTERM)
        assert shell.wait(timeout=HANG_SECONDS) == 128 + signal.SIGTERM
    finally:
        shell.kill()
    assert slurm.calls("scontrol") == ["requeue 42"]


# slurm/submit.sh


@pytest.fixture
def login_node(commands: Commands) -> Commands:
    """Where jobs are submitted: sbatch numbers them from 101 on."""
    commands.add("python", 'printf "%s\\n" $STAGES')
    commands.add(
        "sbatch",
        """number=$((100 + $(grep -c '^sbatch ' "$CALLS")))
[[ $number != "${REFUSE_NUMBER:-}" ]] || exit 1
echo "$number${CLUSTER:-}" """,
    )
    commands.add("scancel", "")
    commands.env["STAGES"] = " ".join(CHAIN)
    return commands


def ours(login_node: Commands) -> None:
    """Take the program itself in place of its stand-in."""
    (login_node.bin / "python").unlink()
    (login_node.bin / "python").symlink_to(sys.executable)
    login_node.env["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)


@pytest.mark.parametrize("cluster", ["", ";north"])
@pytest.mark.parametrize("stages", [CHAIN, ("bootstrap", *CHAIN)])
def test_submit_chains_the_stages(
    login_node: Commands, cluster: str, stages: tuple[str, ...], tmp_path: Path
) -> None:
    login_node.env["CLUSTER"] = cluster
    login_node.env["STAGES"] = " ".join(stages)
    done = login_node.run(str(ROOT / "slurm/submit.sh"), "mine", "preset=paper", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    calls = login_node.calls("sbatch")
    assert len(calls) == len(stages)
    for number, (name, call) in enumerate(zip(stages, calls, strict=True), start=101):
        after = f" --dependency=afterok:{number - 1} --kill-on-invalid-dep=yes"
        assert call == (
            f"--parsable --job-name=mine-{name}{after if number > 101 else ''}"
            f" slurm/{name}.sbatch run=mine preset=paper"
        )
    assert [line.split() for line in done.stdout.splitlines()] == [
        [str(number), name] for number, name in enumerate(stages, start=101)
    ]


def test_a_run_below_another_has_its_logs_where_there_is_a_folder(login_node: Commands) -> None:
    done = login_node.run("slurm/submit.sh", "quick/tau", "preset=paper")
    assert done.returncode == 0, done.stderr
    call = login_node.calls("sbatch")[0]
    assert "--job-name=quick-tau-rollouts" in call
    assert "run=quick/tau" in call


@pytest.mark.parametrize(
    ("words", "stages"),
    [
        (("preset=quick",), CHAIN),
        (("preset=laptop", "base=quick"), ("bootstrap", *CHAIN)),
        (("preset=laptop", "base=pretrained/carracing"), CHAIN),
        (("preset=laptop", "base=hf://owner/agent@main"), CHAIN),
    ],
)
def test_submit_begins_with_a_bootstrap_run_where_no_agent_replaces_it(
    login_node: Commands, words: tuple[str, ...], stages: tuple[str, ...]
) -> None:
    ours(login_node)
    done = login_node.run("slurm/submit.sh", "mine", *words)
    assert done.returncode == 0, done.stderr
    assert [line.split()[1] for line in done.stdout.splitlines()] == [*stages]


def test_rounds_whose_settings_change_are_one_job(login_node: Commands) -> None:
    ours(login_node)
    done = login_node.run("slurm/submit.sh", "mine", "preset=dream-rounds")
    assert done.returncode == 0, done.stderr
    [call] = login_node.calls("sbatch")
    assert call == (
        "--parsable --job-name=mine-iterate slurm/iterate.sbatch run=mine preset=dream-rounds"
    )


def test_submit_withdraws_the_chain_when_a_stage_is_refused(login_node: Commands) -> None:
    login_node.env["REFUSE_NUMBER"] = "103"
    done = login_node.run("slurm/submit.sh", "mine")
    assert done.returncode != 0
    assert login_node.calls("scancel") == ["101 102"]
    assert "sbatch refused" in done.stderr


@pytest.mark.parametrize("arguments", [(), ("preset=paper",), ("--help",)])
def test_submit_without_a_run_shows_its_usage(
    login_node: Commands, arguments: tuple[str, ...]
) -> None:
    done = login_node.run("slurm/submit.sh", *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: slurm/submit.sh RUN")
    assert login_node.calls("sbatch") == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("vae.latnt_size=64",), "vae.latnt_size: no such key"),
        (("vae.latent_size=0",), "vae.latent_size=0: choose"),
        (
            ("preset=paper", "controller.final_sigma=0.5"),
            "final_sigma: needs controller.total_steps",
        ),
        (
            ("preset=paper", "controller.world=dream", "controller.latent=mean"),
            "must equal rnn.latent=sampled",
        ),
    ],
)
def test_submit_refuses_what_no_stage_could_use_before_it_queues(
    login_node: Commands, words: tuple[str, ...], said: str
) -> None:
    ours(login_node)
    done = login_node.run("slurm/submit.sh", "mine", *words)
    assert done.returncode == 1
    assert said in done.stderr
    assert login_node.calls("sbatch") == []
