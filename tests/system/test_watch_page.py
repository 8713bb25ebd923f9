"""stage=watch for people: its page in a real browser, its window on a display that VNC shows."""

from __future__ import annotations

import shutil
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from command import environment, error_line, run, running
from PIL import Image
from shell import ROOT
from waiting import HANG_SECONDS, wait_for
from watching import address

from worldmodels.data.shards import Shard

pytestmark = [pytest.mark.system, pytest.mark.timeout(1800)]
HOSTILE = "<script>document.title=1<"
PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}


class Opened:
    """A page in a browser.

    Args:
        page: of Playwright.
        where: the address that it opens.
    """

    def __init__(self, page: Any, where: str) -> None:
        self.page = page
        self.requests: list[str] = []
        self.problems: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("console", lambda message: self.problems.append(message.text))
        page.goto(where)
        page.wait_for_selector("body[data-ready]", timeout=HANG_SECONDS * 1000)

    def wait(self, condition: str) -> None:
        """Wait until an expression is true; the page's policy forbids Playwright's own function."""
        wait_for(lambda: self.page.evaluate(condition))

    def driver(self) -> str:
        return str(self.page.get_attribute("[aria-label='Who drives'] [aria-pressed=true]", "id"))


@contextmanager
def opened(browser: Any, data: Path, *words: str, **options: Any) -> Iterator[Opened]:
    """The page of a program; in the end it requested nothing elsewhere, and nothing failed."""
    with running(data, "stage=watch", "watch.port=0", *words) as program:
        where = address(program)
        with browser.new_context(**options) as context:
            page = Opened(context.new_page(), where)
            yield page
            program.send(signal.SIGINT)
            page.wait("document.querySelector('#problem').textContent === 'The program has ended.'")
        assert program.wait() == 0
        assert program.errors == ""
        local = [url for url in page.requests if url.startswith((where, "data:"))]
        assert local == page.requests
        assert page.problems == []


TIME = "Number(document.querySelector('#time').textContent)"
PICTURES = (
    """[...document.images].every(({ complete, naturalWidth }) => complete && naturalWidth)"""
)


@pytest.mark.parametrize("name", ["carracing", "takecover"])
def test_the_controller_drives_until_a_key_takes_over(
    browser: Any, tmp_path: Path, name: str
) -> None:
    with opened(browser, tmp_path, f"env={name}", f"model=pretrained/{name}") as found:
        page = found.page
        found.wait(f"{TIME} >= 5")
        assert found.driver() == "controller"
        found.wait(PICTURES)
        assert page.evaluate("document.images.length") == 4
        assert page.locator("#lists li").count() == 5 * page.locator("#actions meter").count()
        page.keyboard.down("ArrowLeft")
        found.wait("document.querySelector('#actions meter').value === -1")
        assert found.driver() == "you"
        page.keyboard.up("ArrowLeft")
        found.wait("document.querySelector('#actions meter').value === 0")
        page.keyboard.press("c")
        wait_for(lambda: found.driver() == "controller")
        page.keyboard.press(" ")
        found.wait("document.querySelector('#pause').textContent === 'Continue'")
        page.click("#restart")  # an episode that has ended takes no step
        found.wait(f"{TIME} === 0")
        page.keyboard.press("s")
        found.wait(f"{TIME} === 1")
        page.click("#restart")
        found.wait(f"{TIME} === 0")
        seed = int(page.inner_text("#seed"))
        page.click("#skip")
        found.wait(f"document.querySelector('#seed').textContent === '{seed + 1}'")


def test_a_finger_takes_over_on_a_phone(browser: Any, tmp_path: Path) -> None:
    with opened(browser, tmp_path, "model=pretrained/carracing", **PHONE) as found:
        page = found.page
        found.wait(f"{TIME} >= 1")
        page.tap("#pad button[data-key=ArrowUp]")
        wait_for(lambda: found.driver() == "you")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_hostile_names_are_text(browser: Any, tmp_path: Path) -> None:
    agent = shutil.copytree(ROOT / "pretrained/carracing", tmp_path / HOSTILE)
    with opened(browser, tmp_path, f"model='{agent}'", f"run='{HOSTILE}'") as found:
        assert found.page.inner_text("#agent") == str(agent)
        assert f"run {HOSTILE}" in found.page.inner_text("#environment")
        assert found.page.title() == "Watch the environment"


def test_a_person_records_on_the_page(browser: Any, tmp_path: Path) -> None:
    with opened(browser, tmp_path, "watch.record=true", "env.max_steps=20", "run=people") as found:
        page = found.page
        assert page.inner_text("#state") == "Press a key to begin."
        assert not page.is_visible("#controller")
        assert not page.is_visible("#insight")
        page.keyboard.press("ArrowUp")
        found.wait("document.querySelector('#recorded').textContent === 'Recorded episodes: 1'")
    assert (tmp_path / "people/rollouts/shard-00000.h5").exists()


# VNC


@pytest.fixture
def port() -> int:
    """A free one of those that docker/vnc.sh takes, where everything is installed for it."""
    for program in ("Xvfb", "x11vnc", "xauth", "vncsnapshot"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    free = (number for number in range(5990, 59535) if not listens(number))
    return next(number for number in free if not Path(f"/tmp/.X{number}-lock").exists())


@contextmanager
def virtual(
    port: int, data: Path, *words: str, **variables: str
) -> Iterator[subprocess.Popen[str]]:
    """docker/vnc.sh with its server; both have ended when the program has."""
    env = environment() | {"WORLDMODELS_VNC_PORT": str(port), "HOME": str(data)} | variables
    env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
    line = [str(ROOT / "docker/vnc.sh"), "stage=watch", *words, f"data={data}"]
    with subprocess.Popen(
        line, text=True, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as program:
        try:
            assert program.stderr is not None
            assert program.stderr.readline() == f"vnc.sh: VNC server on 127.0.0.1:{port}\n"
            yield program
        finally:
            program.kill()
    wait_for(lambda: not listens(port))
    wait_for(lambda: not Path(f"/tmp/.X{port}-lock").exists())


def listens(port: int) -> bool:
    with closing(socket.socket()) as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def screenshot(port: int, path: Path) -> np.ndarray:
    """What a client sees: uint8 (height, width, 3)."""
    display = f"127.0.0.1:{port - 5900}"
    line = ["vncsnapshot", "-quiet", "-allowblank", "-quality", "100", display, str(path)]
    subprocess.run(line, check=True, capture_output=True, timeout=HANG_SECONDS)
    return np.asarray(Image.open(path).convert("RGB"))


def handshake(port: int) -> tuple[socket.socket, int]:
    """A connection of the RFB protocol, version 3.3, and its security type."""
    client = socket.create_connection(("127.0.0.1", port), HANG_SECONDS)
    assert client.recv(12, socket.MSG_WAITALL).startswith(b"RFB 003.")
    client.sendall(b"RFB 003.003\n")
    (security,) = struct.unpack("!I", client.recv(4, socket.MSG_WAITALL))
    return client, security


def press(client: socket.socket, keysym: int) -> None:
    """Press a key of the display, and release it."""
    for down in (1, 0):
        client.sendall(struct.pack("!BBxxI", 4, down, keysym))


def test_a_client_sees_the_window_and_drives(port: int, tmp_path: Path) -> None:
    words = ("model=pretrained/carracing", "watch.record=true", "watch.episodes=1", "run=people")
    with virtual(port, tmp_path, *words, "env.max_steps=12") as program:
        shot = tmp_path / "shot.jpg"
        wait_for(lambda: screenshot(port, shot).std() > 20)
        image = screenshot(port, shot).astype(int)
        assert image.shape == (720, 820, 3)
        # The environment's picture, and the panels below it, show grass.
        for row, column in ((150, 150), (550, 120), (550, 400), (550, 680)):
            red, green, blue = image[row - 60 : row + 60, column - 60 : column + 60].mean((0, 1))
            assert green > max(red, blue) + 20
        client, security = handshake(port)
        assert security == 1  # none
        with client:
            client.sendall(b"\x01")  # beside other clients
            size = struct.unpack("!HH16xI", client.recv(24, socket.MSG_WAITALL))
            assert size[:2] == (820, 720)
            press(client, 0xFF51)  # the left arrow
            output, errors = program.communicate(timeout=HANG_SECONDS)
    assert (program.returncode, errors) == (0, "")
    assert "truncated after 12 steps, 12 of them driven by you" in output
    assert "pygame" not in output
    shard = Shard(tmp_path / "people/rollouts/shard-00000.h5")
    with shard:
        assert shard.read_episode(0).actions[0].tolist() == [-1, 0, 0]


def test_the_server_wants_the_password_and_ends_with_the_program(port: int, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("secret\n")
    variables = {"WORLDMODELS_VNC_PASSWORD_FILE": str(password)}
    with virtual(port, tmp_path, "model=pretrained/carracing", **variables) as program:
        client, security = handshake(port)
        client.close()
        assert security == 2  # VNC authentication
        served = [one.laddr for one in psutil.net_connections("inet") if one.laddr]
        assert {address.ip for address in served if address.port == port} == {"127.0.0.1"}
        taken = subprocess.run(
            [str(ROOT / "docker/vnc.sh"), "stage=watch"],
            env=environment() | {"WORLDMODELS_VNC_PORT": str(port)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (taken.returncode, taken.stderr.count("\n")) == (1, 1)
        assert f"WORLDMODELS_VNC_PORT={port}: in use" in taken.stderr
        program.send_signal(signal.SIGKILL)
        program.wait()


def test_a_display_that_refuses_a_window_is_one_line(tmp_path: Path) -> None:
    words = ("stage=watch", "model=pretrained/carracing", "display=forward")
    done = run(tmp_path, *words, variables={"DISPLAY": ":59999"})
    assert "display=forward: :59999 refuses a window" in error_line(done)
