"""docker/ and slurm/: linted, and run for real against stand-ins for Docker's and Slurm's commands.

The stand-ins are executables on PATH that write down how they were called. They behave as the real
ones were seen to behave where it matters: srun answers SIGTERM by killing its task, scancel
signals the task alone.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
STAGES = ("rollouts", "vae", "rnn", "controller", "evaluate", "report")
SCRIPTS = sorted(
    str(path.relative_to(ROOT))
    for pattern in ("docker/*.sh", "slurm/*.sh", "slurm/*.sbatch")
    for path in ROOT.glob(pattern)
)
RECORD = 'printf "%s\\n" "$(basename "$0") $*" >> "$CALLS"\n'


def linter(name: str) -> str:
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if not found:
        pytest.skip(f"{name} is not installed (pip install -e .[dev])")
    return found


class Commands:
    """Stand-ins in a folder that comes first on PATH, and the calls they received."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.calls_file = folder / "calls"
        self.calls_file.touch()
        self.env = {
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "HOME": str(folder),
            "CALLS": str(self.calls_file),
            "FOLDER": str(folder),
        }

    def add(self, name: str, body: str) -> None:
        path = self.bin / name
        path.write_text(f"#!/usr/bin/env bash\n{RECORD}{body}\n")
        path.chmod(0o755)

    def calls(self, name: str) -> list[str]:
        """The arguments of each call of `name`."""
        lines = self.calls_file.read_text().splitlines()
        return [line.removeprefix(f"{name} ") for line in lines if line.startswith(f"{name} ")]

    def run(self, *command: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=cwd,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )


@pytest.fixture
def commands(tmp_path: Path) -> Commands:
    return Commands(tmp_path)


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "waited 20 s in vain"
        time.sleep(0.02)


# Linters


def test_shell_scripts_pass_shellcheck() -> None:
    assert len(SCRIPTS) == 3 + len(STAGES)
    done = subprocess.run(
        [linter("shellcheck"), "--external-sources", *SCRIPTS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_dockerfile_passes_hadolint() -> None:
    done = subprocess.run(
        [linter("hadolint"), "docker/Dockerfile"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


# The image


def instructions() -> list[str]:
    """The Dockerfile's instructions, continued lines joined as Docker joins them."""
    lines = (ROOT / "docker/Dockerfile").read_text().splitlines(keepends=True)
    text = "".join(line for line in lines if not line.startswith("#"))
    return text.replace("\\\n", "").splitlines()


def test_build_context_is_exactly_what_the_image_copies() -> None:
    copies = [line.split()[1].rstrip("/") for line in instructions() if line.startswith("COPY")]
    ignore = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in ignore
    assert sorted(copies) == sorted(line[1:] for line in ignore if line.startswith("!"))
    assert all((ROOT / name).exists() for name in copies)


def test_code_is_copied_after_the_last_installation() -> None:
    order = instructions()
    installs = [i for i, line in enumerate(order) if "pip install" in line]
    code = order.index("COPY worldmodels/ worldmodels/")
    assert len(installs) == 2
    assert max(installs) < code
    assert order[installs[0]].endswith(" torch")
    assert not any(line.startswith("RUN") for line in order[code:])


def test_image_installs_the_requirements_of_pyproject(tmp_path: Path) -> None:
    install = next(line for line in instructions() if "--requirement" in line)
    found = re.search(r'python -c ".*?"', install)
    assert found is not None
    done = subprocess.run(
        [sys.executable, *shlex.split(found[0])[1:]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    names = {re.split(r"[\[<>=~!]", line)[0] for line in done.stdout.split()}
    assert {"torch", "gymnasium", "hydra-core", "envpool", "tensorboard"} <= names
    assert "pytest" not in names


# docker/run.sh


@pytest.fixture
def docker(commands: Commands, tmp_path: Path) -> Commands:
    """A checkout of docker/ alone, and a Docker that has the image and a GPU."""
    shutil.copytree(ROOT / "docker", tmp_path / "docker")
    commands.add(
        "docker",
        """case $1 in
    info) echo "${INFO?}" ;;
    image) exit "${NO_IMAGE:-0}" ;;
    run) exit "${PROGRAM:-0}" ;;
esac""",
    )
    commands.env["INFO"] = '{"nvidia":{},"runc":{}} ["name=seccomp"]'
    return commands


def docker_run(docker: Commands, *arguments: str) -> tuple[list[str], list[str], str]:
    """Options of `docker run`, what follows the image, and what was said on stderr."""
    done = docker.run("docker/run.sh", *arguments, cwd=Path(docker.env["FOLDER"]))
    assert done.returncode == 0, done.stderr
    words = docker.calls("docker")[-1].split()
    assert words[0] == "run"
    image = words.index("worldmodels")
    return words[1:image], words[image + 1 :], done.stderr


def has(options: list[str], *wanted: str) -> bool:
    return f" {' '.join(wanted)} " in f" {' '.join(options)} "


def test_gpu_is_used_where_docker_has_it(docker: Commands) -> None:
    options, program, said = docker_run(docker, "stage=all", "preset=quick")
    assert has(options, "--gpus", "all")
    assert program == ["stage=all", "preset=quick"]
    assert said == ""


def test_without_nvidia_runtime_it_says_so_and_runs_on_the_cpu(docker: Commands) -> None:
    docker.env["INFO"] = '{"runc":{}} ["name=seccomp"]'
    options, program, said = docker_run(docker, "stage=vae")
    assert "--gpus" not in options
    assert program == ["stage=vae"]
    assert said.count("\n") == 1
    assert "no NVIDIA runtime" in said


@pytest.mark.parametrize(("devices", "gpu"), [("1", True), ("", False)])
def test_cuda_visible_devices_chooses_the_gpu(docker: Commands, devices: str, gpu: bool) -> None:
    docker.env["CUDA_VISIBLE_DEVICES"] = devices
    options, _, said = docker_run(docker)
    assert has(options, "--gpus", "all") == gpu
    assert has(options, "--env", "CUDA_VISIBLE_DEVICES") == gpu
    assert said == ""


def test_results_belong_to_the_user(docker: Commands) -> None:
    options, _, _ = docker_run(docker)
    data = Path(docker.env["FOLDER"]) / "data"
    assert data.is_dir()
    assert has(options, "--volume", f"{data}:/workspace/data")
    assert has(options, "--user", f"{os.getuid()}:{os.getgid()}")
    assert has(options, "--init")
    assert has(options, "--stop-timeout", "120")


def test_results_belong_to_the_user_of_a_rootless_daemon(docker: Commands) -> None:
    docker.env["INFO"] = '{"runc":{}} ["name=seccomp","name=rootless"]'
    options, _, _ = docker_run(docker)
    assert has(options, "--user", "0:0")


def test_headless_forwards_nothing(docker: Commands) -> None:
    options, _, _ = docker_run(docker)
    assert not any("X11" in word or "XAUTHORITY" in word for word in options)
    assert not has(options, "--env", "DISPLAY")


def test_local_display_is_forwarded_with_its_cookie(docker: Commands) -> None:
    cookie = Path(docker.env["FOLDER"]) / "cookie"
    cookie.touch()
    docker.env |= {"DISPLAY": ":1", "XAUTHORITY": str(cookie)}
    options, _, _ = docker_run(docker)
    assert has(options, "--env", "DISPLAY")
    assert has(options, "--volume", "/tmp/.X11-unix:/tmp/.X11-unix:ro")
    assert has(options, "--volume", f"{cookie}:/tmp/.Xauthority:ro")
    assert has(options, "--env", "XAUTHORITY=/tmp/.Xauthority")
    assert has(options, "--hostname", os.uname().nodename)
    assert "--network" not in options


def test_ssh_display_is_reached_over_the_host_network(docker: Commands) -> None:
    docker.env["DISPLAY"] = "localhost:10.0"
    options, _, _ = docker_run(docker)
    assert has(options, "--network", "host")
    assert not any("X11-unix" in word for word in options)


@pytest.mark.parametrize("display", ["display=xvfb", "display=none"])
def test_display_is_not_forwarded_against_the_users_wish(docker: Commands, display: str) -> None:
    docker.env["DISPLAY"] = ":1"
    options, program, _ = docker_run(docker, display)
    assert not has(options, "--env", "DISPLAY")
    assert not any("X11" in word for word in options)
    assert program == [display]


def test_secrets_are_passed_by_name(docker: Commands) -> None:
    docker.env["WANDB_API_KEY"] = "very-secret"
    options, _, _ = docker_run(docker)
    assert has(options, "--env", "WANDB_API_KEY")
    assert "very-secret" not in docker.calls_file.read_text()


def test_build_alone_builds_and_runs_nothing(docker: Commands) -> None:
    done = docker.run("docker/run.sh", "--build", cwd=Path(docker.env["FOLDER"]))
    assert done.returncode == 0, done.stderr
    calls = docker.calls("docker")
    [build] = [call for call in calls if call.startswith("build ")]
    folder = docker.env["FOLDER"]
    assert build.startswith(f"build --file {folder}/docker/Dockerfile --tag worldmodels ")
    assert build.endswith(f" {folder}")
    assert not any(call.startswith("run ") for call in calls)


def test_build_with_a_command_runs_it_afterwards(docker: Commands) -> None:
    _, program, _ = docker_run(docker, "--build", "stage=report")
    assert program == ["stage=report"]
    kinds = [call.split()[0] for call in docker.calls("docker")]
    assert kinds.index("build") < kinds.index("run")


def test_missing_image_is_never_pulled(docker: Commands) -> None:
    docker.env["NO_IMAGE"] = "1"
    done = docker.run("docker/run.sh", "stage=all", cwd=Path(docker.env["FOLDER"]))
    assert done.returncode == 1
    assert "docker/run.sh --build" in done.stderr
    assert not any(call.startswith("run ") for call in docker.calls("docker"))


def test_unreachable_daemon_is_named(docker: Commands) -> None:
    docker.add("docker", "exit 1")
    done = docker.run("docker/run.sh", "stage=all", cwd=Path(docker.env["FOLDER"]))
    assert done.returncode == 1
    assert "cannot talk to the Docker daemon" in done.stderr


def test_exit_code_is_the_programs(docker: Commands) -> None:
    docker.env["PROGRAM"] = "75"
    done = docker.run("docker/run.sh", "stage=all", cwd=Path(docker.env["FOLDER"]))
    assert done.returncode == 75


def test_sigterm_reaches_the_docker_client(docker: Commands) -> None:
    docker.add(
        "docker",
        """case $1 in
    info) echo "$INFO" ;;
    run) trap 'exit 75' TERM; touch "$FOLDER/started"; while true; do sleep 0.05; done ;;
esac""",
    )
    folder = Path(docker.env["FOLDER"])
    process = subprocess.Popen([folder / "docker/run.sh"], env=docker.env)
    try:
        wait_for((folder / "started").exists)
        process.terminate()
        assert process.wait(timeout=20) == 75
    finally:
        process.kill()


# slurm/stage.sh and the batch scripts


@pytest.fixture
def slurm(commands: Commands) -> Commands:
    """Inside a batch job: srun starts the task, scancel --signal reaches the task alone."""
    commands.env |= {"SLURM_JOB_ID": "42", "SLURM_CPUS_PER_TASK": "16"}
    commands.add("python", 'exit "${PROGRAM:-0}"')
    commands.add(
        "srun",
        """while [[ $1 == --* ]]; do shift; done
"$@" & task=$!
echo "$task" > "$FOLDER/task"
trap 'kill -KILL "$task"; exit 137' TERM
wait "$task" """,
    )
    commands.add("scancel", 'kill -TERM "$(cat "$FOLDER/task")"')
    commands.add("squeue", 'echo "${STATE:-RUNNING}"')
    commands.add("scontrol", 'exit "${REFUSED:-0}"')
    return commands


@pytest.mark.parametrize("name", STAGES)
def test_batch_script_runs_its_stage_with_the_overrides(slurm: Commands, name: str) -> None:
    done = slurm.run("bash", f"slurm/{name}.sbatch", "run=mine", "vae.latent_size=64")
    assert done.returncode == 0, done.stderr
    [call] = slurm.calls("python")
    simulates = name in ("rollouts", "controller", "evaluate")
    workers = "workers.processes=16 " if simulates else ""
    assert call == f"-m worldmodels stage={name} {workers}run=mine vae.latent_size=64"
    [step] = slurm.calls("srun")
    assert step.startswith("--ntasks=1 --cpus-per-task=16 python ")
    assert slurm.calls("scontrol") == []


@pytest.mark.parametrize("name", STAGES)
def test_batch_script_asks_for_what_its_stage_uses(name: str) -> None:
    text = (ROOT / f"slurm/{name}.sbatch").read_text()
    asked = dict(re.findall(r"^#SBATCH --([a-z-]+)=?(.*)$", text, re.MULTILINE))
    assert asked["requeue"] == ""
    assert asked["open-mode"] == "append"
    assert asked["signal"] == "B:TERM@120"
    assert ("gres" in asked) == (name in ("vae", "rnn"))
    assert (int(asked["cpus-per-task"]) >= 16) == (name in ("rollouts", "controller", "evaluate"))
    # Slurm fails a job without a word when the folder of its log is missing.
    assert Path(asked["output"]).parent == Path("data")
    assert (ROOT / "data").is_dir()


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
    slurm.run("bash", "slurm/vae.sbatch", "run=mine", "fresh=true")
    [call] = slurm.calls("python")
    assert call.endswith("fresh=true fresh=false")


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
        assert shell.wait(timeout=20) == 75
    finally:
        shell.kill()
    assert (folder / "saved").exists()
    assert slurm.calls("scancel") == ["--signal=TERM 42"]
    assert slurm.calls("scontrol") == ["requeue 42"]


def test_stage_killed_by_sigterm_during_its_imports_is_requeued(slurm: Commands) -> None:
    slurm.add("python", 'touch "$FOLDER/started"; exec sleep 20')
    folder = Path(slurm.env["FOLDER"])
    shell = subprocess.Popen(["bash", "slurm/rnn.sbatch", "run=mine"], cwd=ROOT, env=slurm.env)
    try:
        wait_for((folder / "started").exists)
        shell.send_signal(signal.SIGTERM)
        assert shell.wait(timeout=15) == 128 + signal.SIGTERM
    finally:
        shell.kill()
    assert slurm.calls("scontrol") == ["requeue 42"]


# slurm/submit.sh


@pytest.fixture
def login_node(commands: Commands) -> Commands:
    """Where jobs are submitted: sbatch numbers them from 101 on."""
    commands.add("python", 'exit "${PROGRAM:-0}"')
    commands.add(
        "sbatch",
        """number=$((100 + $(grep -c '^sbatch ' "$CALLS")))
[[ $number != "${REFUSE_NUMBER:-}" ]] || exit 1
echo "$number${CLUSTER:-}" """,
    )
    commands.add("scancel", "")
    return commands


@pytest.mark.parametrize("cluster", ["", ";north"])
def test_submit_chains_the_stages(login_node: Commands, cluster: str, tmp_path: Path) -> None:
    login_node.env["CLUSTER"] = cluster
    done = login_node.run(str(ROOT / "slurm/submit.sh"), "mine", "preset=paper", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    calls = login_node.calls("sbatch")
    assert len(calls) == len(STAGES)
    for number, (name, call) in enumerate(zip(STAGES, calls, strict=True), start=101):
        after = f" --dependency=afterok:{number - 1} --kill-on-invalid-dep=yes"
        assert call == (
            f"--parsable --job-name=mine-{name}{after if number > 101 else ''}"
            f" slurm/{name}.sbatch run=mine preset=paper"
        )
    assert [line.split() for line in done.stdout.splitlines()] == [
        [str(number), name] for number, name in enumerate(STAGES, start=101)
    ]


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


def test_submit_refuses_a_mistyped_key_before_it_queues(login_node: Commands) -> None:
    (login_node.bin / "python").unlink()
    (login_node.bin / "python").symlink_to(sys.executable)
    login_node.env["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    done = login_node.run("slurm/submit.sh", "mine", "vae.latnt_size=64")
    assert done.returncode == 1
    assert "vae.latnt_size" in done.stderr
    assert login_node.calls("sbatch") == []
