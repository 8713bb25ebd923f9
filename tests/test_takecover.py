"""Doom Take Cover: the game as environments, every stage on it, and what is refused."""

import json
import shutil
from contextlib import closing
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
from command import ALONE, error_line, run
from conftest import Once
from doom import ID, SPEC
from numpy.typing import NDArray

from worldmodels.agents.folder import read_agent
from worldmodels.agents.model_files import load_first_latents
from worldmodels.data.episodes import EpisodeSet
from worldmodels.data.latents import LatentSet
from worldmodels.envs.engines import EnvSpec, make_vector_env
from worldmodels.errors import install
from worldmodels.models.controller import ControllerSpec

pytestmark = pytest.mark.system
pytest.importorskip("vizdoom", reason=f"ViZDoom is not installed: {install('doom')}")

STAGES = ("rollouts", "vae", "rnn", "controller", "evaluate", "report")


@pytest.fixture(scope="session")
def takecover(once: Once) -> Path:
    """The run folder after ``stage=all preset=smoke env=takecover``; shared."""

    def make(data: Path) -> None:
        Path("_vizdoom.ini").unlink(missing_ok=True)  # another program's, which would hide ours
        words = ("stage=all", "preset=smoke", "env=takecover", ALONE)
        done = run(data, *words, variables={"GAMES_OF": str(data)})
        assert done.returncode == 0, done.stdout + done.stderr

    return once("takecover", make) / "takecover-smoke"


def manifest(folder: Path, stage: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((folder / stage / "manifest.json").read_text())
    return record


def played(spec: EnvSpec, seeds: list[int], actions: NDArray[Any]) -> list[NDArray[Any]]:
    """Frames, rewards, terminated, truncated over time of the actions (T, N, 1)."""
    with closing(make_vector_env(spec, len(seeds))) as env:
        env.reset(seed=seeds)  # type: ignore[arg-type]  # Gymnasium's hint has no list
        rows = [env.step(action)[:4] for action in actions.astype(np.float32)]
    return [np.stack(column) for column in zip(*rows, strict=True)]


def hold(action: float, seeds: list[int], steps: int) -> list[NDArray[Any]]:
    """What environments return that do one thing; see `played`."""
    return played(SPEC, seeds, np.full((steps, len(seeds), 1), action))


def test_an_episode_is_the_seeds_and_no_envs() -> None:
    one, two = hold(0.0, [5, 6], 250), hold(0.0, [6, 5], 250)
    for a, b in zip(one, two, strict=True):
        np.testing.assert_array_equal(a, b[:, ::-1])


def test_standing_still_is_worth_a_point_a_step_and_ends_in_death() -> None:
    frames, rewards, terminated, truncated = hold(0.0, [1, 2, 3], 700)
    assert frames.shape == (700, 3, 64, 64, 3)
    assert terminated[-1].all()
    assert not truncated.any()
    for index in range(3):
        lifetime = int(terminated[:, index].argmax()) + 1
        assert 50 < lifetime < 700
        assert (rewards[:lifetime, index] == 1).all()
        assert (rewards[lifetime:, index] == 0).all()
        assert frames[lifetime - 1, index].any(), "ViZDoom's last observation is blank"


def test_a_frame_skip_gives_the_frames_and_rewards_of_its_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """ViZDoom takes the four steps in one, and draws the last only: that is three times as fast.
    An episode that dies ends with the frame that the agent saw."""
    seeds, actions = [1, 2, 3], np.random.default_rng(0).uniform(-1, 1, (175, 3, 1))
    one, four = (replace(SPEC, frame_skip=skip, max_steps=2100 // skip) for skip in (1, 4))
    frames, rewards, ends, _ = played(one, seeds, np.repeat(actions, 4, axis=0))
    game = import_module("vizdoom.gymnasium_wrapper.base_gymnasium_env").VizdoomEnv
    calls, step = [], game.step

    def counted(self: Any, action: Any) -> Any:
        calls.append(action)
        return step(self, action)

    monkeypatch.setattr(game, "step", counted)
    skipped, sums, ended, truncated = played(four, seeds, actions)
    assert ends[-1].all()
    assert not truncated.any()
    np.testing.assert_array_equal(ended, ends[3::4])
    np.testing.assert_array_equal(sums, rewards.reshape(175, 4, 3).sum(axis=1))
    np.testing.assert_array_equal(skipped[~ended], frames[3::4][~ended])
    lifetimes = ended.argmax(axis=0)
    assert len(calls) == (lifetimes + 1).sum()
    for index, last in enumerate(lifetimes.tolist()):
        np.testing.assert_array_equal(skipped[last, index], skipped[last - 1, index])


def test_a_time_limit_counts_actions_of_several_steps() -> None:
    *_, terminated, truncated = played(
        replace(SPEC, frame_skip=4, max_steps=5), [1], np.zeros((6, 1, 1))
    )
    assert truncated[:, 0].tolist() == [False] * 4 + [True] * 2
    assert not terminated.any()


@pytest.mark.parametrize(("action_bins", "button"), [(-1.0, 2), (0.0, 0), (1.0, 1)])
def test_the_action_bins_does_what_the_games_own_action_does(
    action_bins: float, button: int
) -> None:
    frames, *_ = hold(action_bins, [4], 30)
    with closing(gymnasium.make(ID, max_episode_steps=2100, doom_config_path="/dev/null")) as env:
        env.reset(seed=4)
        pictures = [env.step(button)[0]["screen"] for _ in range(30)]
    columns = np.stack(pictures)[:, :200].mean(axis=(1, 3))  # (steps, 320): crop, and average
    ours = frames[:, 0].mean(axis=(1, 3))  # (steps, 64)
    np.testing.assert_allclose(
        ours, columns.reshape(30, 64, 5).mean(axis=2), atol=2
    )  # 8 apart from any other button


def test_every_stage_leaves_its_artifact(takecover: Path) -> None:
    for stage in STAGES:
        assert manifest(takecover, stage)["state"] == "complete"
    assert manifest(takecover, "controller")["summary"]["world"] == "dream"
    scores = json.loads((takecover / "evaluate/scores.json").read_text())
    assert scores["agent"]["returns"] == [float(int(r)) for r in scores["agent"]["returns"]]
    page = (takecover / "report/index.html").read_text()
    assert "is not finished" not in page
    assert "1092 ± 556" in page
    assert "cross-entropy of the termination" in page
    assert "squared error of the reward" not in page, "this model does not predict rewards"


def test_nothing_of_the_game_is_left(takecover: Path) -> None:
    assert not Path("_vizdoom.ini").exists()
    environments = [process.info["environ"] or {} for process in psutil.process_iter(["environ"])]
    assert not [e for e in environments if e.get("GAMES_OF") == str(takecover.parent)]


def test_deaths_are_where_they_happened_and_dreams_begin_where_episodes_did(
    takecover: Path,
) -> None:
    episodes = EpisodeSet.open([takecover / "rollouts"])
    latents = LatentSet(takecover / "rnn/latents.h5")
    first = load_first_latents(takecover / "rnn/rnn.safetensors").mean
    deaths = 0
    for number in range(episodes.num_episodes):
        episode, encoded = episodes.episode(number), latents.episode(number)
        steps = len(episode.actions)
        assert len(episode.frames) == steps + 1
        assert not episode.terminated[:-1].any()
        assert episode.truncated[-1] == (steps == 160 and not episode.terminated[-1])
        np.testing.assert_array_equal(encoded.terminated, episode.terminated)
        np.testing.assert_array_equal(first[number], encoded.mean[0])
        deaths += int(episode.terminated[-1])
    assert 0 < deaths < episodes.num_episodes


def test_the_controller_sees_latent_cell_and_hidden_and_has_no_bias(takecover: Path) -> None:
    agent = read_agent(takecover / "controller/agent")
    assert agent.dynamics.sizes["is_first"]
    assert agent.parameters.shape == (64 + sum(agent.dynamics.state_features.values()),)
    assert ControllerSpec(("tanh",), 0, bias=False).size(64 + 2 * 512) == 1088


def test_run_again_does_nothing(takecover: Path, tmp_path: Path) -> None:
    folder = tmp_path / takecover.name
    shutil.copytree(takecover, folder)
    done = run(tmp_path, "stage=all", "preset=smoke", "env=takecover", ALONE)
    assert done.returncode == 0
    for stage in STAGES[:-1]:
        assert manifest(folder, stage) == manifest(takecover, stage)


@pytest.mark.parametrize("stage", ["rollouts", "controller"])
def test_the_number_of_workers_changes_nothing(takecover: Path, tmp_path: Path, stage: str) -> None:
    for earlier in STAGES[: STAGES.index(stage)]:
        shutil.copytree(takecover / earlier, tmp_path / "takecover-smoke" / earlier)
    done = run(tmp_path, f"stage={stage}", "preset=smoke", "env=takecover", "workers.processes=2")
    assert done.returncode == 0, done.stderr
    again = manifest(tmp_path / "takecover-smoke", stage)
    assert again["fingerprint"] == manifest(takecover, stage)["fingerprint"]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["+env.kwargs.scenario_config_file=nowhere.cfg"], "nowhere.cfg"),
        (["env.id=vizdoom.gymnasium_wrapper:VizdoomTakeOver-v1"], "VizdoomTakeOver"),
        (["env.id=vizdoom.gymnasium_wrapper:VizdoomTakeCover-MultiBinary-v1"], "env.action_bins"),
        (["env.engine=native"], "native simulates CarRacing-v3"),
    ],
)
def test_what_cannot_be_played_is_refused_in_one_line(
    tmp_path: Path, overrides: list[str], said: str
) -> None:
    words = ("stage=rollouts", "preset=smoke", "env=takecover", ALONE)
    line = error_line(run(tmp_path, *words, *overrides))
    assert said in line


def test_a_scenario_without_its_map_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "lost.cfg").write_text(
        "doom_scenario_path = lost.wad\navailable_buttons = { MOVE_LEFT MOVE_RIGHT }\n"
    )
    lost = f"+env.kwargs.scenario_config_file={tmp_path / 'lost.cfg'}"
    words = ("stage=rollouts", "preset=smoke", "env=takecover", ALONE)
    line = error_line(run(tmp_path, *words, lost))
    assert "lost.wad" in line
