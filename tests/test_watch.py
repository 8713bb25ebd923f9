"""stage=watch: the page's events and requests, recorded episodes, influences, refusals."""

import io
import json
import shutil
import signal
import socket
import urllib.error
import urllib.request
from base64 import b64decode
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command import ALONE, error_line, run, running
from PIL import Image
from waiting import HANG_SECONDS
from watching import Page, View, address, post

from worldmodels import seeds
from worldmodels.agents.folder import read_agent
from worldmodels.data.episodes import EpisodeSet
from worldmodels.envs.engines import EnvSpec
from worldmodels.files.atomic import read_json
from worldmodels.models.controller import Controllers, ControllerSpec
from worldmodels.watching import session
from worldmodels.watching.game import Game
from worldmodels.watching.server import MOST_PAGES, PAGE, SHARED, Feed
from worldmodels.worlds.specs import RealWorldSpec

AGENT = Path(__file__).resolve().parent.parent / "pretrained" / "carracing"
WATCH = ("stage=watch", "watch.port=0", "device=cpu")
BRIEF = ("env.max_steps=12",)


def pixels(url: str) -> np.ndarray:
    kind, _, content = url.partition(",")
    assert kind == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(b64decode(content))))


def test_an_episode_is_that_of_an_evaluation_with_the_same_seed(tmp_path: Path) -> None:
    agent, seed = f"model={AGENT}", 7
    evaluate = ("stage=evaluate", "env.engine=gymnasium", "evaluate.video=false", ALONE)
    done = run(
        tmp_path,
        *evaluate,
        agent,
        *BRIEF,
        "evaluate.episodes=1",
        f"evaluate.first_seed={seed}",
        "run=a",
    )
    assert done.returncode == 0, done.stderr
    scores = read_json(tmp_path / "a/evaluate/scores.json")["agent"]
    words = (*WATCH, agent, *BRIEF, f"watch.first_seed={seed}", "watch.episodes=1", "run=b")
    with running(tmp_path, *words) as program:
        page = Page(address(program))
        last = page.view(lambda view: view["ended"])
        assert (last["seed"], last["step"], last["ended"]) == (seed, 12, "truncated")
        assert last["return"] == scores["returns"][0]
        assert last["expected"] is None
        assert page.next() is None, "the program goes on after its only episode"
        assert program.wait() == 0
        assert program.errors == ""
        assert f"watch: seed {seed}: return {last['return']:.2f}, truncated" in program.output
        assert "pygame" not in program.output
    assert not (tmp_path / "b").exists()


HOSTILE = "<script>alert(1)<"


def test_a_page_steers_the_episode(tmp_path: Path) -> None:
    agent = shutil.copytree(AGENT, tmp_path / HOSTILE)
    with running(tmp_path, *WATCH, f"model='{agent}'", f"run='{HOSTILE}'") as program:
        where = address(program)
        about = json.loads(urllib.request.urlopen(f"{where}about.json").read())
        assert (about["name"], about["run"]) == (str(agent), HOSTILE)
        assert (about["rate"], about["engine"]) == (50, "gymnasium")
        page = Page(where)
        page.ask(pause=True)
        page.ask(restart=True)
        view = page.view(lambda view: view["paused"] and view["step"] == 0)
        assert view["driver"] == "controller"
        assert pixels(view["picture"]).shape == (96, 96, 3)
        for name in ("frame", "reconstruction", "expected"):
            assert pixels(view[name]).shape == (64, 64, 3)
        assert 0 <= view["termination"] <= 1
        for action in view["influences"]:
            amounts = [abs(one["amount"]) for one in action]
            assert amounts == sorted(amounts, reverse=True)
            assert all(one["feature"][0] in "zh" for one in action)
        page.ask(step=True)
        assert page.view(lambda view: view["step"] > 0)["step"] == 1
        page.ask(keys=["ArrowLeft", "ArrowUp", "Escape"])
        taken = page.view(lambda view: view["driver"] == "you")
        assert taken["action"] == [-1, 1, 0]
        page.ask(keys=[])
        page.ask(step=True)  # in which the keys act, though they are released
        assert page.view(lambda view: view["action"] == [0, 0, 0])["step"] == 2
        page.ask(drive="controller")
        given = page.view(lambda view: view["driver"] == "controller")
        assert given["action"] != [0, 0, 0]
        page.ask(skip=True)
        assert page.view(lambda view: view["step"] == 0)["seed"] == given["seed"] + 1
        page.ask(step=True)
        first = page.view(lambda view: view["step"] == 1)
        page.ask(restart=True)
        page.ask(step=True)
        assert page.view(lambda view: view["step"] == 1) == first
        program.send(signal.SIGINT)
        while page.next() is not None:
            pass
        assert program.wait() == 0
        assert program.errors == ""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The address of a page that rests, without an agent."""
    data = tmp_path_factory.mktemp("served")
    with running(data, *GATE, gate(data)) as program:
        yield address(program)
        program.send(signal.SIGTERM)
        assert program.wait() == 0
        assert program.errors == ""


def status(request: Callable[[], object]) -> tuple[int, str]:
    with pytest.raises(urllib.error.HTTPError) as refused:
        request()
    return refused.value.code, refused.value.read().decode()


GATE = (
    *(*WATCH, "watch.record=true", "env.name=gate", "run=people"),
    *("env.id=gate_env:Gate-v0", "env.crop_rows=null", "env.squash=null"),
)


def gate(data: Path) -> str:
    (data / "open").touch()
    return f"env.kwargs.folder={data}"


def test_the_page_loads_nothing_from_elsewhere(served: str) -> None:
    names = [*SHARED, *(path.name for path in PAGE.iterdir())]
    assert len(set(names)) == len(names), "a file is there twice"
    for name in ("", *names):
        with urllib.request.urlopen(f"{served}{name}") as answer:
            text = answer.read().decode()
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.headers["Content-Security-Policy"] == "frame-ancestors 'none'"
        assert "//" not in text.replace("http://www.w3.org/2000/svg", "") or name.endswith("js")
    page = urllib.request.urlopen(served).read().decode()
    assert "default-src 'none'; script-src 'self'" in page
    assert "innerHTML" not in (PAGE / "watch.js").read_text()
    assert status(lambda: urllib.request.urlopen(f"{served}../watch/game.py"))[0] == 404


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "example.org"},
        {"Host": "127.0.0.1.example.org"},
        {"Origin": "http://example.org"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "image"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Dest": "empty"},
    ],
)
def test_other_sites_may_neither_look_nor_ask(served: str, headers: dict[str, str]) -> None:
    request = urllib.request.Request(f"{served}about.json", headers=headers)
    assert status(lambda: urllib.request.urlopen(request))[0] == 403
    assert status(lambda: post(f"{served}ask", b'{"pause": true}', headers))[0] == 403


def test_a_request_that_asks_for_nothing_is_refused(served: str) -> None:
    for content in (b"", b"[", b"{}", b'{"pause": 1}', b'{"keys": [1]}', b'{"drive": "me"}'):
        code, said = status(lambda content=content: post(f"{served}ask", content, {}))  # type: ignore[misc]
        assert (code, said.count("\n")) == (400, 0)
    assert status(lambda: post(f"{served}ask", b" " * 5000, {}))[0] == 400
    assert status(lambda: post(f"{served}ask", b"[" * 4000, {}))[0] == 400
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert status(lambda: post(f"{served}ask", b'{"pause": true}', form))[0] == 404
    assert status(lambda: post(f"{served}about.json", b"{}", {}))[0] == 404


def test_pages_that_do_not_read_or_are_closed_delay_nobody(served: str) -> None:
    port = int(served.rstrip("/").rpartition(":")[2])
    silent = []
    for _ in range(MOST_PAGES - 1):
        silent.append(socket.create_connection(("127.0.0.1", port), HANG_SECONDS))
        silent[-1].sendall(b"GET /events HTTP/1.0\r\nHost: localhost\r\n\r\n")
        assert silent[-1].recv(12) == b"HTTP/1.0 200"
    page = Page(served)
    code, said = status(lambda: urllib.request.urlopen(f"{served}events"))
    assert (code, said) == (503, f"{MOST_PAGES} pages are open; close one first")
    for connection in silent[::2]:
        connection.close()
    page.ask(restart=True)
    assert page.view()["waiting"]
    page.ask(keys=["ArrowLeft"])
    assert page.view(lambda view: view["step"] >= 3)["driver"] == "you"
    page.ask(restart=True)
    page.close()
    for connection in silent[1::2]:
        connection.close()


def drive(page: Page, seed: int | None = None) -> View:
    """Drive an episode to its end; its last view."""
    page.ask(drive="you")
    waiting = page.view(lambda view: view["waiting"] and view["seed"] != seed)
    assert waiting["step"] == 0
    page.ask(keys=["ArrowRight"])
    page.ask(keys=[])
    return page.view(lambda view: view["ended"])


def test_a_page_gets_the_last_view_though_the_program_has_ended_meanwhile() -> None:
    feed, blank = Feed(), np.zeros((8, 8, 3), np.uint8)
    status = ("terminated", session.Driver.you, False, False, None)
    feed.show(session.View(7, 12, 1.0, 5.0, *status, np.zeros(3), blank, None))
    feed.close()
    number, event = feed.next(0)
    assert json.loads(event.removeprefix(b"data: "))["ended"] == "terminated"
    assert feed.next(number) == (-1, b"event: end\ndata:\n\n")


@pytest.mark.system
def test_episodes_of_a_person_are_rollouts_that_stages_train_on(tmp_path: Path) -> None:
    words, rollouts = (*GATE, gate(tmp_path)), tmp_path / "people/rollouts"
    with running(tmp_path, *words) as program:
        page = Page(address(program))
        first = drive(page)
        assert first["recorded"] == 1
        page.ask(restart=True)
        assert page.view(lambda view: view["waiting"])["seed"] != first["seed"]
        program.send(signal.SIGKILL)  # an episode later than the recorded one
        program.wait()
    (rollouts / "shard-00001.h5").write_bytes(b"half")
    with running(tmp_path, *words, "watch.episodes=1") as program:
        second = drive(Page(address(program)))
        assert second["seed"] != first["seed"]
        assert program.wait() == 0
        assert "shard-00001.h5.damaged" in program.output
    record = read_json(rollouts / "manifest.json")
    assert (record["state"], record["summary"]["episodes"]) == ("complete", 2)
    assert record["config"]["rollouts.policy"] == "human"
    assert [*record["files"]] == ["shard-00000.h5", "shard-00001.h5"]
    episodes = EpisodeSet.open([rollouts])
    assert episodes.seeds.tolist() == [first["seed"], second["seed"]]
    assert min(episodes.seeds) >= seeds.Purpose.ROLLOUTS.value
    np.testing.assert_allclose(episodes.returns(), [first["return"], second["return"]], rtol=1e-5)
    attrs = episodes.shards[0].attrs
    assert (attrs["policy"], attrs["human_steps"], attrs["env"]) == (
        *("human", 12),
        "gate_env:Gate-v0",
    )
    assert episodes.episode(0).terminated[-1]
    before = (rollouts / "manifest.json").read_bytes()
    with running(tmp_path, *words, "overwrite=true") as program:
        Page(address(program)).view()
        program.send(signal.SIGINT)  # nothing was driven
        assert program.wait() == 0
    assert (rollouts / "manifest.json").read_bytes() == before
    chain = (*words[1:], "preset=quick", "env.frame_skip=1", ALONE)
    other = run(tmp_path, "stage=rollouts", *chain)
    assert "people/rollouts was made with env.num_envs=1, now 64: choose" in error_line(other)
    trained = run(tmp_path, "stage=vae", *chain, "vae.epochs=1")
    assert trained.returncode == 0, trained.stderr


def test_nothing_is_left_where_nothing_was_recorded(tmp_path: Path) -> None:
    with running(tmp_path, *GATE, gate(tmp_path)) as program:
        page = Page(address(program))
        assert page.view()["recorded"] == 0
        program.send(signal.SIGINT)
        assert program.wait() == 0
    assert not (tmp_path / "people/rollouts").exists()


def test_rewards_that_are_not_finite_are_shown_and_not_recorded(tmp_path: Path) -> None:
    words = (*GATE, gate(tmp_path), "env.id=gate_env:Boundless-v0", "watch.episodes=1")
    with running(tmp_path, *words) as program:
        last = drive(Page(address(program)))
        assert (last["reward"], last["return"], last["recorded"]) == (None, None, 0)
        assert program.wait() == 0
        assert "not finite: not recorded" in program.output
    assert not (tmp_path / "people/rollouts").exists()


# Influences


def test_influences_of_a_linear_controller_add_up_to_its_outputs() -> None:
    spec, features = ControllerSpec(("tanh", "tanh")), torch.randn(3, 5)
    controllers = Controllers(torch.randn(3, spec.size(5)), 5, spec)
    _, bias = controllers.layers[0]
    found = controllers.influences(features)
    assert found.shape == (3, 5, 2)
    torch.testing.assert_close(torch.tanh(found.sum(1) + bias), controllers.act(features))


def test_influences_of_a_hidden_layer_are_gradient_times_feature() -> None:
    spec = ControllerSpec(("tanh",), hidden_units=4)
    features = torch.randn(1, 5, requires_grad=True)
    controllers = Controllers(torch.randn(1, spec.size(5)), 5, spec)
    torch.atanh(controllers.act(features)).sum().backward()
    assert features.grad is not None
    expected = features.grad * features
    torch.testing.assert_close(
        controllers.influences(features)[..., 0], expected, rtol=1e-3, atol=1e-4
    )


@pytest.mark.parametrize(
    ("engine", "state"), [("gymnasium", ()), ("native", ("h",)), ("gymnasium", ("c", "h"))]
)
def test_a_game_follows_agents_of_other_features_and_layers(
    engine: str, state: tuple[str, ...]
) -> None:
    agent = read_agent(AGENT)
    features = replace(agent.config.features, state=state, updated=True, sampled=False)
    layers = replace(agent.config.controller, hidden_units=3)
    size = layers.size(features.size(agent.encoder.latent_size, agent.dynamics))
    parameters = np.random.default_rng(0).normal(size=size).astype(np.float32)
    config = replace(agent.config, features=features, controller=layers)
    spec = RealWorldSpec(
        EnvSpec(engine=engine, max_steps=3),
        encoder=AGENT / "vae.safetensors",
        dynamics=AGENT / "rnn.safetensors",
        features=features,
    )
    game = Game(spec, replace(agent, parameters=parameters, config=config))
    with closing(game):
        game.begin(3)
        while not game.ended:
            action = game.choose()
            insight = game.insight(action)
            assert insight is not None
            assert insight.expected is not None
            assert insight.expected.shape == insight.frame.shape == (64, 64, 3)
            names = {one.feature[0] for one in insight.influences[0]}
            assert names <= {"z", *state}
            assert game.picture.shape == ((96, 96, 3) if engine == "gymnasium" else (64, 64, 3))
            game.step(action)
        assert (game.time, game.truncated) == (3, True)
        last = game.insight(action)
        assert last is not None
        assert last.expected is None


# Refusals


def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        line = error_line(run(tmp_path, "stage=watch", f"model={AGENT}", f"watch.port={port}"))
    assert f"watch.port={port}: " in line
    assert "in use" in line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            (),
            "carracing/controller is missing: first run stage=controller with the same run, preset",
        ),
        (
            (f"model={AGENT}", "env.id=gate_env:Gate-v0"),
            "trained for CarRacing-v3, env is gate_env",
        ),
        ((f"base={AGENT}", "env.id=gate_env:Gate-v0"), "trained for CarRacing-v3"),
        ((f"model={AGENT}", "display=forward"), "display=forward: $DISPLAY is not set"),
        ((f"model={AGENT}", "env.id=CarRacing-v3", "env.action_bins=[0,1,2]"), "env.action_bins"),
    ],
)
def test_what_cannot_be_watched_is_one_line(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    assert said in error_line(run(tmp_path, *WATCH, *words))
    assert not list(tmp_path.iterdir())


def test_an_agent_without_its_models_is_one_line(tmp_path: Path) -> None:
    agent = shutil.copytree(AGENT, tmp_path / "agent")
    (agent / "rnn.safetensors").unlink()
    line = error_line(run(tmp_path, *WATCH, f"model={agent}"))
    assert f"{agent / 'rnn.safetensors'}" in line
