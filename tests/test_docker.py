"""docker/: linted, and run.sh run for real against a stand-in for Docker."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from shell import ROOT, Commands, lint
from waiting import HANG_SECONDS, wait_for


def test_scripts_and_dockerfile_pass_their_linters() -> None:
    lint("shellcheck", "docker/run.sh", "docker/entrypoint.sh", "docker/vnc.sh")
    lint("hadolint", "docker/Dockerfile")


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
    copied = {name for name in copies if Path(name).parent.name not in copies}  # not twice
    assert sorted(copied) == sorted(line[1:] for line in ignore if line.startswith("!"))
    assert all((ROOT / name).exists() for name in copies)


def test_code_is_copied_after_the_last_installation() -> None:
    order = instructions()
    installs = [i for i, line in enumerate(order) if "pip install" in line]
    code = order.index("COPY worldmodels/ worldmodels/")
    assert len(installs) == 2
    assert max(installs) < code
    assert "torch" in order[installs[0]]
    assert not any(line.startswith("RUN") for line in order[code:])


def test_the_base_images_are_pinned_by_their_digests() -> None:
    bases = [line for line in instructions() if re.match("ARG (CUDA|CPU)_IMAGE=", line)]
    assert len(bases) == 2
    for base in bases:
        assert re.fullmatch(r"ARG \w+=[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}", base)
    stages = [line for line in instructions() if line.startswith("FROM")]
    assert stages == ["FROM ${CUDA_IMAGE} AS cuda", "FROM ${CPU_IMAGE} AS cpu", "FROM ${DEVICE}"]


def test_no_package_index_is_written_down() -> None:
    cloud = (path for path in (ROOT / "cloud").rglob("*") if path.is_file())
    pages = [
        *(ROOT / "docker").iterdir(),
        *cloud,
        *(ROOT / "docs").glob("*.md"),
        ROOT / "README.md",
    ]
    for page in [*pages, *(ROOT / "locks").glob("*.txt"), ROOT / "constraints.txt"]:
        found = re.findall(r"https?://\S*(?:/simple|/whl|pypi)\S*", page.read_text())
        assert not found, f"{page.name}: {found}"


def pip_calls(commands: Commands, number: int, **arguments: str) -> list[str]:
    """What installation `number` of the image asks of pip, with these build arguments."""
    commands.add("pip", "")
    commands.add("python3", "")
    defaults = [line[4:] for line in instructions() if re.match(r"ARG \w+=", line)]
    for default in defaults:
        name, _, value = default.partition("=")
        commands.env[name] = arguments.get(name, value.strip('"'))
    install = [line for line in instructions() if "pip install" in line][number]
    done = commands.run("sh", "-c", re.sub(r"^RUN --mount=\S+", "", install), cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return [" ".join(call.split()) for call in commands.calls("pip")]


HASHED = "install --no-deps --require-hashes"


def test_everything_in_the_image_has_a_known_hash(commands: Commands) -> None:
    assert pip_calls(commands, 0) == [f"{HASHED} --requirement locks/torch.txt"]


def test_the_extras_of_the_image_are_those_of_its_argument(commands: Commands) -> None:
    build, rest, check = pip_calls(commands, 1, EXTRAS="doom atari", DEVICE="cpu")
    assert build == f"{HASHED} --requirement locks/build.txt"
    files = " ".join(f"--requirement locks/{name}.txt" for name in ("base", "doom", "atari"))
    assert rest == f"{HASHED} --no-build-isolation --use-pep517 {files}"
    assert check == "check"


def test_the_image_has_the_extras_that_it_promises(commands: Commands) -> None:
    _, rest, _ = pip_calls(commands, 1)
    files = re.findall(r"--requirement (\S+)", rest)
    assert {"locks/base.txt", "locks/cuda.txt", "locks/doom.txt", "locks/envpool.txt"} <= {*files}
    assert all((ROOT / file).is_file() for file in files)


def test_an_image_for_the_cpu_has_no_cuda(commands: Commands) -> None:
    _, rest, _ = pip_calls(commands, 1, DEVICE="cpu")
    assert "locks/envpool.txt" in rest
    assert "cuda" not in rest


def test_torch_comes_from_another_index_only_where_one_is_given(commands: Commands) -> None:
    index = "https://packages.example/torch"
    (call,) = pip_calls(commands, 0, TORCH_INDEX=index)
    assert re.fullmatch(rf"install --index-url {index} torch==[\d.]+", call)


def test_another_cuda_takes_another_package(commands: Commands) -> None:
    *_, package, check = pip_calls(commands, 1, EXTRAS="doom", NUMBA_CUDA="numba-cuda[cu12]")
    assert (package, check) == ("install numba-cuda[cu12]", "check")


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


def test_compiled_kernels_are_kept_in_a_volume_for_the_next_container(docker: Commands) -> None:
    text = "\n".join(instructions())
    (folder,) = re.findall(r"\bNUMBA_CACHE_DIR=(\S+)", text)
    cache, name = folder.rsplit("/", 1)
    assert name == "numba"
    assert re.search(rf"chmod 1777 .*{cache}\b", text)  # a new volume is as open as the folder
    options, _, _ = docker_run(docker)
    assert has(options, "--volume", f"worldmodels-cache-{os.getuid()}:{cache}")
    compose = yaml.safe_load((ROOT / "docker/compose.yaml").read_text())
    assert f"cache:{cache}" in compose["services"]["server"]["volumes"]
    assert "cache" in compose["volumes"]
    job = yaml.safe_load((ROOT / "cloud/kubernetes/controller.yaml").read_text())
    pod = job["spec"]["template"]["spec"]
    for container in [*pod["initContainers"], *pod["containers"]]:
        assert cache in [mount["mountPath"] for mount in container["volumeMounts"]]
    assert {"name": "cache", "emptyDir": {}} in pod["volumes"]


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


def test_vnc_runs_on_the_network_of_this_machine_without_its_display(docker: Commands) -> None:
    docker.env |= {"DISPLAY": ":1", "WORLDMODELS_VNC_PORT": "5901"}
    options, program, _ = docker_run(docker, "--vnc", "stage=watch")
    assert has(options, "--network", "host")
    assert has(options, "--entrypoint", "/workspace/docker/vnc.sh")
    assert has(options, "--env", "WORLDMODELS_VNC_PORT")
    assert not has(options, "--env", "DISPLAY")
    assert not any("X11" in word or "vnc-password" in word for word in options)
    assert program == ["stage=watch"]


def test_a_password_for_vnc_is_a_file_that_the_container_reads(docker: Commands) -> None:
    password = Path(docker.env["FOLDER"]) / "password"
    docker.env["WORLDMODELS_VNC_PASSWORD_FILE"] = str(password)
    done = docker.run("docker/run.sh", "--vnc", "stage=watch", cwd=password.parent)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert f"WORLDMODELS_VNC_PASSWORD_FILE={password}: has no password" in done.stderr
    password.write_text("very-secret")
    options, _, _ = docker_run(docker, "--vnc", "stage=watch")
    assert has(options, "--volume", f"{password}:/tmp/vnc-password:ro")
    assert has(options, "--env", "WORLDMODELS_VNC_PASSWORD_FILE=/tmp/vnc-password")
    assert "very-secret" not in docker.calls_file.read_text()


def test_secrets_are_passed_by_name(docker: Commands) -> None:
    names = ("WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "WORLDMODELS_SHUTDOWN")
    docker.env |= dict.fromkeys(names, "very-secret")
    options, _, _ = docker_run(docker)
    assert all(has(options, "--env", name) for name in names)
    assert "very-secret" not in docker.calls_file.read_text()


def test_compose_passes_what_temporary_credentials_and_other_servers_need() -> None:
    compose = yaml.safe_load((ROOT / "docker/compose.yaml").read_text())
    passed = {*compose["services"]["server"]["environment"]}
    assert {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"} <= passed
    assert {"AWS_DEFAULT_REGION", "AWS_REGION", "AWS_ENDPOINT_URL"} <= passed
    assert not any("=" in name for name in passed)  # no secret in the file or the process list


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
        assert process.wait(timeout=HANG_SECONDS) == 75
    finally:
        process.kill()


# docker/vnc.sh


def test_a_missing_program_of_vnc_is_named(commands: Commands) -> None:
    (commands.bin / "bash").symlink_to(shutil.which("bash") or "")
    (commands.bin / "env").symlink_to(shutil.which("env") or "")
    commands.add("Xvfb", "")
    commands.env["PATH"] = str(commands.bin)
    done = commands.run(str(ROOT / "docker/vnc.sh"), "stage=watch")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "x11vnc is not installed: run apt-get install" in done.stderr


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("PORT", "80", "choose 1024 to 59535"),
        ("PORT", "five", "choose 1024 to 59535"),
        ("PASSWORD_FILE", "/nowhere", "has no password to read"),
    ],
)
def test_a_wrong_variable_of_vnc_is_named(
    commands: Commands, variable: str, value: str, said: str
) -> None:
    for program in ("Xvfb", "x11vnc", "xauth"):
        commands.add(program, "")
    commands.env[f"WORLDMODELS_VNC_{variable}"] = value
    done = commands.run("docker/vnc.sh", "stage=watch")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert f"WORLDMODELS_VNC_{variable}={value}: {said}" in done.stderr
