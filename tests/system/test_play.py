"""The page of stage=play in a real browser: the same dream as in Python, and its controls."""

from __future__ import annotations

import http.server
import json
import re
import shutil
import signal
import socket
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command import error_line, run, start
from matplotlib.image import imsave
from waiting import HANG_SECONDS, wait_for

from worldmodels.agents.folder import Agent, read_agent
from worldmodels.agents.model_files import load_first_latents
from worldmodels.data.latents import FirstLatents
from worldmodels.errors import ConfigError
from worldmodels.export import onnxruntime_web
from worldmodels.export.folder import write_onnx
from worldmodels.export.web import PageServer, write_page
from worldmodels.models.encoder import to_frames, to_input
from worldmodels.worlds.dream import (
    MIXTURE_STREAM,
    NORMAL_STREAM,
    START_STREAM,
    DreamWorld,
)
from worldmodels.worlds.members import SamplingRule
from worldmodels.worlds.noise import EpisodeNoise

pytestmark = [pytest.mark.system, pytest.mark.timeout(1800)]
PRETRAINED = Path(__file__).resolve().parents[2] / "pretrained"
both = pytest.mark.parametrize("exported", ["carracing", "takecover"], indirect=True)
STEPS = 100
CPU = torch.device("cpu")
HOSTILE = "<script>document.title=1</script>"


@pytest.fixture(scope="session")
def runtime() -> Path:
    """The files of ONNX Runtime Web."""
    try:
        return onnxruntime_web.fetch()
    except ConfigError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def exported(request: Any, runtime: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a shipped agent."""
    name = getattr(request, "param", "carracing")
    folder = tmp_path_factory.mktemp(name)
    write_onnx(folder, PRETRAINED / name, f"pretrained/{name}", 1.0)
    write_page(folder)
    return folder


class Opened:
    """A page in a browser, and what it requested.

    Args:
        page: of Playwright.
        agent: the agent that it shows, in Python.
        first: the first latents of that agent.
    """

    def __init__(self, page: Any, agent: Agent, first: FirstLatents) -> None:
        self.page, self.agent, self.first = page, agent, first
        self.requests: list[str] = []
        self.problems: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("console", self._note)

    def _note(self, message: Any) -> None:
        if message.type == "error":
            self.problems.append(message.text)

    def open(self, address: str) -> None:
        self.page.goto(address)
        self.page.wait_for_selector("body[data-ready]", timeout=HANG_SECONDS * 1000)

    def text(self, selector: str) -> str:
        return str(self.page.inner_text(selector))

    def wait(self, condition: str) -> None:
        """Wait until an expression is true; the page's policy forbids Playwright's own function."""
        wait_for(lambda: self.page.evaluate(condition))

    def press(self, *buttons: str) -> None:
        """Click; after each click, wait until the view, which is paused, rests."""
        for button in buttons:
            self.page.click(button)
            self.wait("document.querySelector('#play').ariaBusy === 'false'")

    def pixels(self, canvas: str) -> np.ndarray:
        """The picture on a canvas, uint8 (H, W, 3)."""
        script = """(canvas) => {
            const { width, height } = canvas;
            return [...canvas.getContext("2d").getImageData(0, 0, width, height).data];
        }"""
        data = np.array(self.page.eval_on_selector(canvas, script), np.uint8)
        return data.reshape(self.agent.encoder.frame_size, -1, 4)[..., :3]

    def begin(self, start: int, seed: int) -> np.ndarray:
        """The latent (Z,) at which a dream begins."""
        noise = EpisodeNoise([seed], START_STREAM, CPU).normal(1, self.first.mean.shape[1])[0]
        spread = np.exp(0.5 * self.first.logvar[start]) * self.agent.config.features.sampled
        begun: np.ndarray = (self.first.mean[start] + spread * noise.numpy()).astype(np.float32)
        return begun

    def frame(self, latent: np.ndarray) -> np.ndarray:
        """The picture that Python decodes of a latent (Z,)."""
        with torch.inference_mode():
            images = self.agent.encoder.decode(torch.from_numpy(latent)[None])
        return to_frames(images)[0].numpy()


def served(folder: Path) -> tuple[PageServer, threading.Thread]:
    server = PageServer(folder, 0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    return server, thread


@pytest.fixture
def opened(request: Any, browser: Any, exported: Path) -> Iterator[Opened]:
    """The page of an agent; in the end nothing was requested elsewhere, and nothing failed."""
    server, thread = served(exported)
    options = getattr(request, "param", {})
    source = PRETRAINED / Path(json.loads((exported / "export.json").read_text())["name"]).name
    with browser.new_context(**options) as context:
        first = load_first_latents(source / "rnn.safetensors")
        page = Opened(context.new_page(), read_agent(source), first)
        page.open(server.address)
        yield page
        assert [url for url in page.requests if not url.startswith(server.address)] == []
        assert page.problems == []
    server.shutdown()
    server.server_close()
    thread.join()


DREAM = """async ({ start, seed, actions, temperature }) => {
    const { Agent } = await import("./agent.js");
    const { Dream } = await import("./dream.js");
    const dream = new Dream(await Agent.load());
    dream.temperature = temperature;
    dream.agent.description.frame_skip = 4;
    dream.begin(start, seed);
    const found = { latents: [[...dream.now.latent]], rewards: [], terminated: [], uniform: [],
        normal: [], chosen: [] };
    for (const action of actions) {
        found.uniform.push([...dream.uniform.uniform(dream.time, dream.agent.size)]);
        found.normal.push([...dream.normal.normal(dream.time, dream.agent.size)]);
        found.chosen.push([...await dream.act()]);
        await dream.step(action);
        found.latents.push([...dream.now.latent]);
        found.rewards.push(dream.reward);
        found.terminated.push(dream.ended);
    }
    return found;
}"""
ENDED = """async (termination) => {
    const { Dream } = await import("./dream.js");
    const dream = new Dream(await (await import("./agent.js")).Agent.load());
    return Object.assign(dream, { termination }).ended;
}"""


@both
def test_a_dream_is_the_same_as_in_python(opened: Opened) -> None:
    agent, first, seed, start = opened.agent, opened.first, 7, 3
    bounds = agent.config.actions.bounds
    generator = np.random.default_rng(0)
    # Held for ten steps, as a person does.
    actions = generator.uniform(bounds.low, bounds.high, (STEPS // 10, len(bounds.low)))
    actions = actions.repeat(10, axis=0).astype(np.float32)
    temperature = 1.15
    values = {"start": start, "seed": seed, "actions": actions.tolist()}
    found = opened.page.evaluate(DREAM, {**values, "temperature": temperature})

    latent = opened.begin(start, seed)
    rule = SamplingRule(frame_skip=4)
    world = DreamWorld(agent.dynamics, first, temperature, agent.config.features, rule=rule)
    world.begin(torch.from_numpy(latent)[None], [seed])
    latents, rewards, terminated = [latent], [], []
    for action in actions:
        step = world.step(torch.from_numpy(action)[None])
        latents.append(world.latents[0].numpy())
        rewards.append(step.reward[0])
        terminated.append(bool(step.terminated[0]))
    for stream, name in ((MIXTURE_STREAM, "uniform"), (NORMAL_STREAM, "normal")):
        draw = getattr(EpisodeNoise([seed], stream, CPU), name)
        expected = np.stack([draw(step, len(latent))[0].numpy() for step in range(STEPS)])
        np.testing.assert_allclose(found[name], expected, atol=1e-6)
    np.testing.assert_allclose(found["latents"], latents, atol=1e-3)
    np.testing.assert_allclose(found["rewards"], rewards, atol=1e-3)
    assert found["terminated"] == terminated
    odds = 1 / agent.dynamics.termination_pos_weight  # that end an episode
    for share in (0.99, 1.01):
        assert opened.page.evaluate(ENDED, share * odds / (1 + odds)) == (share > 1)
    assert np.std(found["chosen"], axis=0).min() > 0, "the controller does not react"


@both
def test_the_controller_drives_until_a_key_takes_over(opened: Opened) -> None:
    page = opened.page
    assert page.get_attribute("#controller", "aria-pressed") == "true"
    opened.wait("Number(document.querySelector('#time').textContent) >= 5")
    meter = "document.querySelector('#actions meter').value"
    page.keyboard.down("ArrowLeft")
    opened.wait(f"{meter} === -1")
    assert page.get_attribute("#you", "aria-pressed") == "true"
    page.keyboard.up("ArrowLeft")
    opened.wait(f"{meter} === 0")
    page.click("#controller")
    opened.wait(f"{meter} !== 0")
    opened.press("#pause")
    assert opened.text("#pause") == "Continue"
    for button, time in (("#restart", "0"), ("#step", "1"), ("#step", "2")):
        opened.press(button)
        assert opened.text("#time") == time


@both
def test_an_episode_starts_again_from_any_recorded_start(opened: Opened) -> None:
    page = opened.page
    opened.wait("Number(document.querySelector('#time').textContent) >= 1")
    opened.press("#pause")
    page.fill("#seed", "11")
    page.fill("#start", "7")
    page.keyboard.press("Enter")
    opened.wait("document.querySelector('#time').textContent === '0'")
    shown, wanted = opened.pixels("#frame"), opened.frame(opened.begin(6, 11))
    np.testing.assert_allclose(shown.astype(int), wanted.astype(int), atol=1)
    page.fill("#start", "999999")
    page.keyboard.press("Enter")
    last = len(opened.first.mean)
    opened.wait(f"document.querySelector('#start').value === '{last}'")
    page.click("#next")
    opened.wait("document.querySelector('#start').value === '1'")


def test_the_temperature_slider_changes_what_is_sampled(opened: Opened) -> None:
    page = opened.page
    opened.press("#pause")
    frames = []
    for key, temperature in (("Home", "0.05"), ("End", "3.00")):
        page.focus("#temperature")
        page.keyboard.press(key)
        assert opened.text("#temperature-value") == temperature
        opened.press("#restart", "#step")
        frames.append(opened.pixels("#frame"))
    assert (frames[0] != frames[1]).any()


@pytest.mark.parametrize(
    "opened",
    [{"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}],
    indirect=True,
)
def test_a_finger_takes_over_on_a_phone(opened: Opened) -> None:
    page = opened.page
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    opened.wait("Number(document.querySelector('#time').textContent) >= 1")
    page.tap("#pad button[data-key=ArrowRight]")
    assert page.get_attribute("#you", "aria-pressed") == "true"
    page.tap("#tab-latents")
    assert page.is_visible("#sliders")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_a_slider_changes_the_picture_that_is_decoded(opened: Opened) -> None:
    page = opened.page
    page.click("#tab-latents")
    page.click("#zeros")
    latent = np.zeros(opened.agent.encoder.latent_size, np.float32)
    opened.wait("document.querySelector('#sliders output').textContent === '0.00'")
    zeros = opened.pixels("#decoded")
    np.testing.assert_allclose(zeros.astype(int), opened.frame(latent).astype(int), atol=1)
    page.focus("#sliders input")
    page.keyboard.press("End")
    opened.wait("document.querySelector('#sliders output').textContent === '4.00'")
    latent[0] = 4
    wanted = opened.frame(latent).astype(int)
    np.testing.assert_allclose(opened.pixels("#decoded").astype(int), wanted, atol=1)


def test_a_picture_of_ones_own_is_reconstructed(opened: Opened, tmp_path: Path) -> None:
    page, encoder = opened.page, opened.agent.encoder
    picture = opened.frame(opened.first.mean[1])  # of the encoder's size: nothing is reduced
    imsave(tmp_path / "picture.png", picture)
    page.click("#tab-latents")
    page.set_input_files("#file", tmp_path / "picture.png")
    opened.wait("document.querySelector('#reconstruction').width === 64")
    assert (opened.pixels("#original") == picture).all()
    with torch.inference_mode():
        mean = encoder.encode(to_input(torch.from_numpy(picture)[None])).mean[0].numpy()
    wanted = opened.frame(mean).astype(int)
    np.testing.assert_allclose(opened.pixels("#reconstruction").astype(int), wanted, atol=1)
    (tmp_path / "text.png").write_text("no picture")
    page.set_input_files("#file", tmp_path / "text.png")
    page.wait_for_selector("#picture-problem:not([hidden])")
    assert "text.png" in opened.text("#picture-problem")


DROP = """async (address) => {
    const blob = await (await fetch("icon.svg")).blob();
    const dropped = new DataTransfer();
    dropped.items.add(new File([blob], "<b>name</b>", { type: "text/plain" }));
    document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: dropped, bubbles: true }));
    await fetch(address).catch(() => {});
    return fetch(address).then(() => "answered", (error) => error.message);
}"""


def test_a_picture_can_be_dropped_and_the_policy_forbids_other_hosts(
    opened: Opened, tmp_path: Path
) -> None:
    asked = []

    class Elsewhere(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)

    with http.server.HTTPServer(("127.0.0.1", 0), Elsewhere) as elsewhere:
        thread = threading.Thread(target=elsewhere.serve_forever, daemon=True)
        thread.start()
        address = f"http://127.0.0.1:{elsewhere.server_port}/"
        assert opened.page.evaluate(DROP, address) == "Failed to fetch"
        elsewhere.shutdown()
        thread.join()
    opened.page.wait_for_selector("#picture-problem:not([hidden])")
    assert "<b>name</b>" in opened.text("#picture-problem")
    assert not asked
    assert all("Content Security Policy" in problem for problem in opened.problems)
    opened.problems.clear()
    opened.requests[:] = [url for url in opened.requests if url != address]


# The stage


def test_play_serves_the_page_until_ctrl_c(runtime: Path, browser: Any, tmp_path: Path) -> None:
    agent = tmp_path / "agent"
    shutil.copytree(PRETRAINED / "carracing", agent)
    record = json.loads((agent / "agent.json").read_text())
    (agent / "agent.json").write_text(json.dumps({**record, "env_id": f"{HOSTILE}-v3"}))
    words = ("stage=play", f"model={agent}", f"run='{HOSTILE.replace('/', '')}'", "play.port=0")
    with start(tmp_path, *words) as process:
        assert process.stdout is not None
        lines = (re.search(r"http://[\d.:]+/", line) for line in process.stdout)
        address = next((found[0] for found in lines if found), None)
        assert address is not None, process.communicate()[1]
        with browser.new_context() as context:
            page = context.new_page()
            page.goto(address)
            page.wait_for_selector("body[data-ready]", timeout=HANG_SECONDS * 1000)
            assert page.inner_text("#environment") == f"{HOSTILE}-v3"
            assert page.title() == "Play in the learned model"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=HANG_SECONDS)
    assert (process.returncode, errors) == (0, "")


def test_a_port_in_use_is_one_line(runtime: Path, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run(tmp_path, "stage=play", "model=pretrained/carracing", f"play.port={port}")
    line = error_line(done)
    assert f"play.port={port}" in line
    assert "in use" in line


def test_the_export_is_a_folder_for_any_static_host(runtime: Path, tmp_path: Path) -> None:
    done = run(tmp_path, "stage=export", "format=web", "model=pretrained/takecover", "run=doom")
    assert done.returncode == 0, done.stderr
    server, thread = served(tmp_path / "doom" / "export" / "web")
    with urllib.request.urlopen(f"{server.address}ort-wasm-simd-threaded.wasm") as answer:
        assert answer.headers["Content-Type"] == "application/wasm"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
    server.shutdown()
    server.server_close()
    thread.join()
