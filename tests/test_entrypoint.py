"""docker/entrypoint.sh, run for real against a stand-in for Python."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from shell import ROOT, Commands
from waiting import HANG_SECONDS, wait_for

SCRIPT = str(ROOT / "docker/entrypoint.sh")
STOPPABLE = """trap 'exit 75' TERM
touch "$FOLDER/started"
while true; do sleep 0.05; done"""


@pytest.fixture
def commands(commands: Commands) -> Commands:
    commands.add("python", 'exit "${PROGRAM:-0}"')
    commands.add("power-off", "")
    return commands


@pytest.fixture
def started(commands: Commands) -> Iterator[subprocess.Popen[str]]:
    """The script with a program that ends when it is told to, and that has begun."""
    commands.add("python", STOPPABLE)
    commands.env |= {"WORLDMODELS_SHUTDOWN": "power-off", "WORLDMODELS_RESTARTS": "5"}
    process = subprocess.Popen(
        [SCRIPT, "stage=all"],
        env=commands.env,
        stderr=subprocess.PIPE,
        text=True,
        # Tests that run in the background ignore SIGINT, and bash keeps what it inherits.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        wait_for((Path(commands.env["FOLDER"]) / "started").exists)
        yield process
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
        process.kill()
        process.communicate()


def test_it_runs_the_program_and_nothing_else(commands: Commands) -> None:
    done = commands.run(SCRIPT, "stage=all", "env.kwargs={a: b c}", cwd=Path("/"))
    assert (done.returncode, done.stderr) == (0, "")
    assert commands.calls("python") == ["-m worldmodels stage=all env.kwargs={a: b c}"]


@pytest.mark.parametrize("code", [0, 1, 75])
def test_the_exit_code_is_the_programs(commands: Commands, code: int) -> None:
    commands.env |= {"PROGRAM": str(code), "WORLDMODELS_SHUTDOWN_DELAY": "0"}
    assert commands.run(SCRIPT).returncode == code
    commands.env["WORLDMODELS_SHUTDOWN"] = "power-off"
    assert commands.run(SCRIPT).returncode == code
    assert commands.calls("power-off") == [""]


def test_the_machine_is_shut_down_after_the_program(commands: Commands) -> None:
    commands.env["WORLDMODELS_SHUTDOWN"] = "power-off now && power-off --really"
    assert commands.run(SCRIPT, "stage=all").returncode == 0
    calls = commands.calls_file.read_text().splitlines()
    assert calls == ["python -m worldmodels stage=all", "power-off now", "power-off --really"]


def test_a_failure_leaves_time_to_look_before_the_machine_is_shut_down(commands: Commands) -> None:
    commands.add("sleep", "")
    commands.env |= {"PROGRAM": "1", "WORLDMODELS_SHUTDOWN": "power-off"}
    done = commands.run(SCRIPT)
    assert "ended with 1: power-off in 3600 seconds" in done.stderr
    calls = [line.split()[0] for line in commands.calls_file.read_text().splitlines()]
    assert calls == ["python", "sleep", "power-off"]


def test_a_machine_that_has_what_the_store_lacks_keeps_running(commands: Commands) -> None:
    commands.env |= {"PROGRAM": "74", "WORLDMODELS_SHUTDOWN": "power-off"}
    done = commands.run(SCRIPT)
    assert done.returncode == 74
    assert "this machine keeps running" in done.stderr
    assert commands.calls("power-off") == []


def test_a_shutdown_that_fails_is_said_and_the_code_stays_the_programs(commands: Commands) -> None:
    commands.env["WORLDMODELS_SHUTDOWN"] = "false"
    done = commands.run(SCRIPT)
    assert done.returncode == 0
    assert "this machine keeps running" in done.stderr


def test_it_runs_again_after_75_as_often_as_asked(commands: Commands) -> None:
    commands.env |= {"PROGRAM": "75", "WORLDMODELS_RESTARTS": "2"}
    done = commands.run(SCRIPT, "stage=vae", "overwrite=true")
    assert done.returncode == 75
    left = [line.partition("left: ")[2] for line in done.stderr.splitlines()]
    assert left == ["1)", "0)"]
    first, *again = commands.calls("python")
    assert first.endswith("overwrite=true")
    assert len(again) == 2
    assert all(call.endswith("overwrite=false") for call in again)


@pytest.mark.parametrize("number", ["08", "0"])
def test_the_number_of_restarts_is_decimal(commands: Commands, number: str) -> None:
    commands.env |= {"PROGRAM": "75", "WORLDMODELS_RESTARTS": number}
    assert commands.run(SCRIPT).returncode == 75
    assert len(commands.calls("python")) == 1 + int(number)


def test_other_codes_are_not_run_again(commands: Commands) -> None:
    commands.env |= {"PROGRAM": "1", "WORLDMODELS_RESTARTS": "2"}
    assert commands.run(SCRIPT).returncode == 1
    assert len(commands.calls("python")) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_told_to_stop_it_stops_the_program_and_leaves_the_machine(
    commands: Commands, started: subprocess.Popen[str], number: signal.Signals
) -> None:
    started.send_signal(number)
    assert started.wait(timeout=HANG_SECONDS) == 75
    assert len(commands.calls("python")) == 1
    assert commands.calls("power-off") == []


def test_a_program_stopped_while_it_imports_can_be_run_again(commands: Commands) -> None:
    commands.add("python", 'kill -TERM "$PPID"; exec sleep 60')
    commands.env["WORLDMODELS_RESTARTS"] = "1"
    assert commands.run(SCRIPT).returncode == 75


@pytest.mark.parametrize("value", ["often", "-1", "1 2", "1e3", "9" * 20])
@pytest.mark.parametrize("name", ["WORLDMODELS_RESTARTS", "WORLDMODELS_SHUTDOWN_DELAY"])
def test_a_number_that_is_none_is_refused_by_name(
    commands: Commands, name: str, value: str
) -> None:
    commands.env[name] = value
    done = commands.run(SCRIPT)
    assert done.returncode == 2
    assert f"{name}={value}: " in done.stderr
    assert commands.calls("python") == []
