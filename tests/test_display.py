import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from command import error_line, run
from waiting import HANG_SECONDS, wait_for

from worldmodels.data.episodes import EpisodeSet
from worldmodels.envs.display import DisplayMode, virtual_display
from worldmodels.errors import DisplayError

ROOT = Path(__file__).parents[1]


@pytest.fixture
def xvfb() -> None:
    """An X server without a screen is installed."""
    if shutil.which("Xvfb") is None:
        pytest.skip("Xvfb is not installed: apt-get install xvfb")


@pytest.fixture(autouse=True)
def _without_display(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    names = ("DISPLAY", "SDL_VIDEODRIVER", "WORLDMODELS_DISPLAY")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    yield
    assert not os.environ.keys() & set(names), "the environment was not put back"


def servers() -> list[psutil.Process]:
    """The X servers that this process has started and that run."""
    return [
        child
        for child in psutil.Process().children()
        if child.name() == "Xvfb" and child.status() != psutil.STATUS_ZOMBIE
    ]


def opens_a_window() -> bool:
    """Whether a real X client, in a child process, can draw on the display there is."""
    script = "import pygame; pygame.display.init(); pygame.display.set_mode((8, 8))"
    environment = {**os.environ, "SDL_VIDEODRIVER": "x11"}
    return subprocess.run([sys.executable, "-c", script], env=environment).returncode == 0


@pytest.mark.system
@pytest.mark.usefixtures("xvfb")
@pytest.mark.parametrize(("mode", "needed"), [("xvfb", False), ("auto", True)])
def test_a_server_runs_within_the_block(mode: DisplayMode, needed: bool) -> None:
    with virtual_display(mode, needed):
        display = os.environ["DISPLAY"]
        assert len(servers()) == 1
        assert opens_a_window()
        assert opens_a_window(), "the server left with its first client"
    wait_for(lambda: not servers())
    assert not Path(f"/tmp/.X{display.removeprefix(':')}-lock").exists()


@pytest.mark.system
@pytest.mark.usefixtures("xvfb")
def test_the_server_ends_when_the_block_raises() -> None:
    with pytest.raises(KeyError), virtual_display("xvfb", True):
        raise KeyError
    wait_for(lambda: not servers())


@pytest.mark.system
@pytest.mark.usefixtures("xvfb")
def test_patience_with_the_start_is_not_that_with_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worldmodels.envs.display._SHUTDOWN_S", 0.0)
    with virtual_display("xvfb", True):
        assert opens_a_window()
    wait_for(lambda: not servers())


@pytest.mark.system
@pytest.mark.usefixtures("xvfb")
def test_one_server_for_nested_blocks_and_children() -> None:
    script = """
import os, psutil
from worldmodels.envs.display import virtual_display
with virtual_display("xvfb", True):
    assert not psutil.Process().children()
    print(os.environ["DISPLAY"])
"""
    with virtual_display("xvfb", True):
        display = os.environ["DISPLAY"]
        with virtual_display("xvfb", True), virtual_display("none", True):
            assert os.environ["DISPLAY"] == display
            assert "SDL_VIDEODRIVER" not in os.environ
        assert len(servers()) == 1
        assert opens_a_window(), "the inner block took the display away"
        in_child = subprocess.check_output([sys.executable, "-c", script], cwd=ROOT, text=True)
        assert in_child.strip() == display


@pytest.mark.system
@pytest.mark.usefixtures("xvfb")
def test_the_server_outlives_signals_to_the_process_group() -> None:
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with virtual_display("xvfb", True):
        (server,) = servers()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            server.send_signal(number)
        time.sleep(0.1)
        assert opens_a_window()
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == blocked
    wait_for(lambda: not servers())


@pytest.mark.system
@pytest.mark.usefixtures("xvfb")
def test_the_server_ends_when_its_owner_is_killed() -> None:
    script = """
import os, psutil, time
from worldmodels.envs.display import virtual_display
with virtual_display("xvfb", True):
    print(psutil.Process().children()[0].pid, flush=True)
    time.sleep(1000)
"""
    owner = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE)
    assert owner.stdout is not None
    server = psutil.Process(int(owner.stdout.readline()))
    assert server.name() == "Xvfb"
    owner.kill()
    owner.communicate()
    _, alive = psutil.wait_procs([server], timeout=HANG_SECONDS)
    assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]


WINDOW = (
    *("stage=rollouts", "preset=smoke", "env.name=window", "run=window", "env.squash=null"),
    *("env.id=window_env:Window-v0", "env.crop_rows=null", "rollouts.policy=uniform"),
    *("env.max_steps=12", "rollouts.max_steps=12", "workers.processes=1"),
)


@pytest.mark.system
@pytest.mark.usefixtures("xvfb")
def test_an_environment_that_needs_a_display_gets_one(tmp_path: Path) -> None:
    done = run(tmp_path, *WINDOW, "env.needs_display=true")
    assert done.returncode == 0, done.stdout + done.stderr
    frames = EpisodeSet.open([tmp_path / "window/rollouts"]).episode(0).frames
    assert frames[:, 0, 0, 0].tolist() == [20 * step for step in range(13)]


def test_an_environment_that_lacks_a_display_is_told_of_the_key(tmp_path: Path) -> None:
    line = error_line(run(tmp_path, *WINDOW))
    assert "env.id=window_env:Window-v0: it cannot be made (error: " in line
    assert "set env.needs_display=true" in line


@pytest.mark.parametrize(("display", "needed"), [(None, False), (":7", True), (":7", False)])
def test_auto_starts_nothing_that_is_not_missing(
    monkeypatch: pytest.MonkeyPatch, display: str | None, needed: bool
) -> None:
    with monkeypatch.context() as patch:
        if display is not None:
            patch.setenv("DISPLAY", display)
        with virtual_display("auto", needed):
            assert os.environ.get("DISPLAY") == display
            assert not servers()


def test_forward_uses_the_display_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("DISPLAY", "localhost:10.0")
        with virtual_display("forward", True):
            assert os.environ["DISPLAY"] == "localhost:10.0"
            assert not servers()


def test_forward_without_a_display_says_what_to_do() -> None:
    with pytest.raises(DisplayError, match="ssh -X"), virtual_display("forward", True):
        pytest.fail("entered the block")


def test_none_draws_without_a_display() -> None:
    script = """
import pygame
pygame.display.init()
pygame.display.set_mode((8, 8))
print(pygame.display.get_driver())
"""
    with virtual_display("none", True):
        assert not servers()
        driver = subprocess.check_output([sys.executable, "-c", script], text=True).split()[-1]
    assert driver == "dummy"


def test_a_missing_server_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tmp_path))
        with (
            pytest.raises(DisplayError, match=r"apt-get install xvfb.*display=none") as error,
            virtual_display("xvfb", True),
        ):
            pytest.fail("entered the block")
    assert "\n" not in str(error.value)


def test_a_server_that_does_not_start_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "Xvfb"
    broken.write_text("#!/bin/sh\necho '-displayfd' >&2\necho 'no\nscreens' >&2\nexit 1\n")
    broken.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        with (
            pytest.raises(DisplayError, match=r"does not start.*display=none") as error,
            virtual_display("auto", True),
        ):
            pytest.fail("entered the block")
    assert "\n" not in str(error.value)
