"""Environments that repeat actions: sticky actions and frame skips."""

import json
from contextlib import closing
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
from command import ALONE, BRIEFLY, error_line, run
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import worldmodels
from worldmodels import trackers
from worldmodels.data.episodes import EpisodeSet
from worldmodels.envs.action_spec import BoxActions, actions_of
from worldmodels.envs.carracing.simulator import CpuSimulator
from worldmodels.envs.engines import EnvSpec, make_vector_env
from worldmodels.errors import WorldModelsError
from worldmodels.reporting.learning import against_steps, read_search

SEEDS, STEPS = [3, 2**30, 17], 40
ROOT = Path(__file__).resolve().parent.parent


def given() -> np.ndarray:
    """Actions (STEPS, N, 3) that turn the car."""
    low, high = np.array([-1, 0, 0]), np.array([1, 1, 0.3])
    return np.random.default_rng(0).uniform(low, high, (STEPS, len(SEEDS), 3)).astype(np.float32)


def played(spec: EnvSpec, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Frames (steps, N, ...) after the actions (steps, N, ...), and rewards (steps, N)."""
    frames, rewards = [], []
    with closing(make_vector_env(spec, actions.shape[1])) as env:
        env.reset(seed=SEEDS[: actions.shape[1]])  # type: ignore[arg-type]  # gymnasium's stub
        for action in actions:
            frame, reward, *_ = env.step(action)
            frames.append(np.array(frame))
            rewards.append(np.array(reward))
    return np.stack(frames), np.stack(rewards)


def executed(actions: np.ndarray, probability: float, skip: int) -> np.ndarray:
    """The actions of each step of the simulator, from the definition."""
    taken = np.repeat(actions, skip, axis=0)
    for index, seed in enumerate(SEEDS):
        drawn = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(2,)))
        for step, uniform in enumerate(drawn.random(len(taken))):
            if step and uniform < probability:
                taken[step, index] = taken[step - 1, index]
    return taken


@pytest.mark.parametrize(("probability", "skip"), [(0.25, 1), (1.0, 1), (0.0, 3), (0.5, 2)])
@pytest.mark.parametrize("engine", ["native", "gymnasium"])
def test_an_episode_is_that_of_the_actions_that_are_repeated(
    engine: str, probability: float, skip: int
) -> None:
    steps = STEPS if engine == "native" else 10
    actions = given()[:steps]
    repeating = EnvSpec(engine=engine, frame_skip=skip, sticky_actions=probability)
    frames, rewards = played(repeating, actions)
    taken = executed(actions, probability, skip)
    assert probability in (0, 1) or (taken != np.repeat(actions, skip, axis=0)).any()
    wanted, each = played(EnvSpec(engine=engine), taken)
    np.testing.assert_array_equal(frames, wanted[skip - 1 :: skip])
    np.testing.assert_allclose(rewards, each.reshape(steps, skip, -1).sum(axis=1), atol=1e-12)
    alone, _ = played(repeating, actions[:, :1])  # whatever runs beside it
    np.testing.assert_array_equal(alone[:, 0], frames[:, 0])


def test_an_episode_ends_after_its_steps_and_may_end_within_one() -> None:
    with closing(make_vector_env(EnvSpec(max_steps=5, frame_skip=3), 1)) as env:
        env.reset(seed=[1])  # type: ignore[arg-type]  # gymnasium's stub
        ends = [bool(env.step(np.array([[0, 0.1, 0]], np.float32))[3][0]) for _ in range(5)]
        assert ends == [False] * 4 + [True]
        assert isinstance(actions_of(env), BoxActions)
        assert env.metadata["render_fps"] == pytest.approx(50 / 3)
    # A step that leaves the playfield earns -100 once.
    lost = EnvSpec(frame_skip=4)
    actions = np.tile(np.array([0, 0.7, 0], np.float32), (120, 1, 1))
    _, rewards = played(lost, actions)
    assert rewards.min() < -99
    assert (rewards < -50).sum() == 1
    assert not rewards[np.flatnonzero(rewards < -50)[0] + 1 :].any()


def test_only_the_last_step_of_an_action_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    draw = CpuSimulator.draw

    def counted(self: CpuSimulator, mask: np.ndarray) -> None:
        drawn.append(int(mask.sum()))
        draw(self, mask)

    with closing(make_vector_env(EnvSpec(frame_skip=4), 3)) as env:
        monkeypatch.setattr(CpuSimulator, "draw", counted)
        env.reset(seed=SEEDS)  # type: ignore[arg-type]  # gymnasium's stub
        for action in given()[:5]:
            env.step(action)
    assert drawn == [3] * 6


def test_some_environments_begin_anew_alone() -> None:
    actions = given()
    spec = EnvSpec(sticky_actions=0.5)
    wanted, _ = played(spec, actions)
    with closing(make_vector_env(spec, 3)) as env:
        env.reset(seed=SEEDS)  # type: ignore[arg-type]  # gymnasium's stub
        for action in actions[:7]:
            env.step(action)
        mask: dict[str, Any] = {"reset_mask": np.array([False, True, False])}
        env.reset(seed=SEEDS, options=mask)  # type: ignore[arg-type]  # gymnasium's stub
        for step in range(12):
            mixed = np.stack([actions[7 + step, 0], actions[step, 1], actions[7 + step, 2]])
            frames = env.step(mixed)[0]
            np.testing.assert_array_equal(frames[1], wanted[step, 1])
            np.testing.assert_array_equal(frames[[0, 2]], wanted[7 + step, [0, 2]])
        with pytest.raises(WorldModelsError, match="2 seeds for 3 environments"):
            env.reset(seed=[1, 2])  # type: ignore[arg-type]  # gymnasium's stub


@pytest.mark.system
def test_a_run_and_an_evaluation_repeat_actions(tmp_path: Path) -> None:
    words = ("stage=rollouts", "preset=smoke", "env.frame_skip=2", "rollouts.episodes=2")
    done = run(tmp_path, *words, "env.sticky_actions=0.25", "rollouts.max_steps=12")
    assert done.returncode == 0, done.stdout + done.stderr
    assert EpisodeSet.open([tmp_path / "smoke/rollouts"]).lengths.tolist() == [12, 12]
    plain, twice = (
        worldmodels.evaluate(
            "pretrained/carracing", 1, engine="native", frame_skip=skip, max_steps=60 * skip
        )
        for skip in (1, 2)
    )
    assert plain.lengths == twice.lengths == 60
    assert twice.mean > plain.mean + 5  # twice as far


def test_an_agent_plays_with_the_frame_skip_that_it_was_trained_with(tmp_path: Path) -> None:
    agent = tmp_path / "agent"
    copytree(ROOT / "pretrained/carracing", agent)
    description = json.loads((agent / "agent.json").read_text())
    (agent / "agent.json").write_text(json.dumps({**description, "frame_skip": 4}))
    found = worldmodels.evaluate(agent, 1, engine="native", max_steps=61)
    assert found.lengths == 16  # ceil(61 / 4)
    as_before = worldmodels.evaluate(agent, 1, engine="native", max_steps=61, frame_skip=1)
    assert as_before.lengths == 61
    words = (f"model={agent}", "env.max_steps=61", ALONE, *BRIEFLY, "evaluate.episodes=1")
    for run_name, extra, skip, steps in (
        ("own", (), 4, 16),
        ("other", ("env.frame_skip=2",), 2, 31),
    ):
        done = run(tmp_path, "stage=evaluate", f"run={run_name}", *words, *extra)
        assert done.returncode == 0, done.stdout + done.stderr
        config = json.loads((tmp_path / run_name / "evaluate/manifest.json").read_text())["config"]
        assert (config["env.frame_skip"], config["env.max_steps"]) == (skip, steps)
    said = error_line(run(tmp_path, "stage=controller", "run=c", f"base={agent}", ALONE))
    assert "trained with env.frame_skip=4, env has 1; give env.frame_skip=4" in said
    (agent / "agent.json").write_text(json.dumps({**description, "frame_skip": 0}))
    with pytest.raises(WorldModelsError, match="frame_skip is 0: it has to be 1 to 100"):
        worldmodels.load_agent(agent)


@pytest.mark.system
def test_a_model_without_rewards_counts_the_steps_of_the_simulator(tmp_path: Path) -> None:
    words = ("stage=all", "preset=smoke", "controller.world=dream", "rnn.reward_weight=0")
    done = run(
        tmp_path,
        *words,
        "env.frame_skip=2",
        "rollouts.max_steps=15",
        *BRIEFLY,
        ALONE,
        "evaluate.episodes=16",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    manifest, scores = (
        json.loads((tmp_path / "smoke" / path).read_text())
        for path in ("controller/manifest.json", "evaluate/scores.json")
    )
    limit = manifest["config"]["controller.max_steps"]
    assert manifest["summary"]["recorded_best"] == 2 * limit  # no recorded episode terminates
    log = (tmp_path / "smoke/evaluate/dreams.jsonl").read_text().splitlines()
    lengths = [length for line in log for length in json.loads(line)["lengths"]]
    returns = scores["agent in the dream"]["returns"]
    assert len(returns) == 16
    assert max(returns) > 1
    for length, found in zip(lengths, returns, strict=True):
        assert found in (2 * length, 2 * (length - 1))  # a step that terminates is worth nothing
    other = ("env.frame_skip=1", *BRIEFLY, ALONE, "evaluate.episodes=16")
    done = run(tmp_path, "stage=evaluate", "preset=smoke", *other, "overwrite=true")
    assert done.returncode == 0, done.stdout + done.stderr
    scores = json.loads((tmp_path / "smoke/evaluate/scores.json").read_text())
    assert scores["agent in the dream"]["returns"] == returns  # as it was trained
    with closing(worldmodels.make_dream(tmp_path / "smoke/controller/agent", 3)) as env:
        env.reset(seed=1)
        _, reward, terminated, *_ = env.step(env.action_space.sample())
        np.testing.assert_array_equal(reward, 2.0 * ~terminated)


def test_trackers_and_the_report_count_the_same_steps_of_a_search(tmp_path: Path) -> None:
    agent = tmp_path / "agent"
    copytree(ROOT / "pretrained/carracing", agent)
    description = json.loads((agent / "agent.json").read_text())
    (agent / "agent.json").write_text(json.dumps({**description, "frame_skip": 2}))
    words = ("stage=controller", "preset=smoke", f"base={agent}", ALONE)
    short = ("controller.episodes=1", "controller.max_steps=6", "controller.eval_episodes=1")
    for world, times in (("real", 2), ("dream", 1)):
        run_name = (f"run={world}", f"controller.world={world}", "env.frame_skip=2")
        done = run(tmp_path, *words, *short, *run_name, "logger=tensorboard")
        assert done.returncode == 0, done.stdout + done.stderr
        folder = tmp_path / world / "controller"
        tracked = EventAccumulator(str(folder))
        tracked.Reload()
        steps = [event.value for event in tracked.Scalars(trackers.ENV_STEPS)]
        taken = json.loads((folder / "manifest.json").read_text())["summary"]["steps"]
        assert steps[-1] == times * taken
        shown = against_steps(read_search(folder), "selection/mean")
        curve = [(event.step, event.value) for event in tracked.Scalars("env_steps/selection/mean")]
        np.testing.assert_allclose(curve, shown, rtol=1e-6)
