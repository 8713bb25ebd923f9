"""The Python interface: trained agents, environments and data without the command line."""

import dataclasses
import pickle
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import doom
import gymnasium
import hydra
import numpy as np
import pytest
from hydra.core.config_store import ConfigStore
from hydra.version import VersionBase

import worldmodels
from worldmodels import extensions
from worldmodels.agents.folder import load_config, save_config
from worldmodels.errors import ConfigError, DataError, WorldModelsError, install
from worldmodels.files.atomic import read_json

ROOT = Path(__file__).resolve().parent.parent
CARRACING, DREAMT, TAKECOVER = (
    ROOT / "pretrained" / name for name in ("carracing", "carracing-dream", "takecover")
)


@pytest.fixture
def sampling(tmp_path: Path) -> Path:
    """The CarRacing agent, drawing its latents."""
    folder = tmp_path / "sampling"
    shutil.copytree(CARRACING, folder)
    config = load_config(folder)
    features = dataclasses.replace(config.features, sampled=True)
    save_config(folder, dataclasses.replace(config, features=features))
    return folder


def pictures(*shape: int) -> Any:
    return np.random.default_rng(1).integers(256, size=shape, dtype=np.uint8)


def test_importing_the_package_loads_nothing_but_knows_its_names() -> None:
    program = (
        "import sys, worldmodels; assert set(worldmodels.__all__) <= set(dir(worldmodels));"
        "print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {"torch", "numpy", "gymnasium", "numba", "hydra"}
    for name in set(worldmodels.__all__) - {"__version__"}:
        assert getattr(worldmodels, name).__doc__
    with pytest.raises(AttributeError, match="no attribute 'load'"):
        worldmodels.load  # noqa: B018


@pytest.mark.system
def test_gymnasium_makes_the_simulator_by_the_name_of_its_module() -> None:
    program = (
        "import sys, gymnasium; assert not {'torch', 'numba'} & set(sys.modules);"
        "env = gymnasium.make('worldmodels.envs:worldmodels/CarRacing-v3');"
        "envs = gymnasium.make_vec('worldmodels.envs:worldmodels/CarRacing-v3', num_envs=2);"
        "print(env.reset(seed=7)[0].shape, envs.reset(seed=7)[0].shape, 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "(96, 96, 3) (2, 96, 96, 3) False\n"


@pytest.mark.parametrize("draws", [True, pytest.param(False, marks=pytest.mark.system)])
def test_the_policy_drives_gymnasiums_environment_as_the_pipeline_does(
    draws: bool, sampling: Path
) -> None:
    policy = worldmodels.load_agent(sampling if draws else CARRACING)
    with closing(gymnasium.make("CarRacing-v3")) as env:
        frame, _ = env.reset(seed=3)
        policy.reset(seed=3)
        driven = 0.0
        for _ in range(20):
            frame, reward, *_ = env.step(policy.act(frame))
            driven += float(reward)
    judged = worldmodels.evaluate(policy, episodes=1, first_seed=3, max_steps=20)
    assert judged.returns.tolist() == [driven]
    assert judged.lengths.tolist() == [20]


def test_an_agent_with_a_frame_skip_repeats_its_actions_in_an_environment_without() -> None:
    policy = worldmodels.load_agent(DREAMT)
    taken, driven = [], 0.0
    with closing(gymnasium.make("CarRacing-v3")) as env:
        frame, _ = env.reset(seed=3)
        policy.reset(seed=3)
        for _ in range(20):
            taken.append(np.asarray(policy.act(frame)).tolist())
            frame, reward, *_ = env.step(np.array(taken[-1], np.float32))
            driven += float(reward)
    assert all(taken[step] == taken[step - step % 4] for step in range(20))
    assert len({*map(tuple, taken)}) == 5
    judged = worldmodels.evaluate(policy, episodes=1, first_seed=3, max_steps=20)
    assert judged.returns.tolist() == [pytest.approx(driven, abs=1e-4)]


@pytest.mark.parametrize("agent", [CARRACING, DREAMT])
def test_another_policy_acts_on_the_features_of_the_learned_model(agent: Path) -> None:
    """Here the agent's own weights by NumPy, so that the actions are those of the agent."""
    policy, other = (worldmodels.load_agent(agent) for _ in range(2))
    spec, calls = policy.config.controller, []
    assert (spec.hidden_units, spec.bias) == (0, True)
    squash: dict[str, Any] = {
        "tanh": np.tanh,
        "half_tanh": lambda x: (np.tanh(x) + 1) / 2,
        "clipped_tanh": lambda x: np.maximum(np.tanh(x), 0),
    }

    def choose(features: np.ndarray) -> np.ndarray:
        calls.append((features.shape, features.dtype))
        weights = other.parameters.reshape(-1, 3)  # the last row is of the biases
        outputs = features @ weights[:-1] + weights[-1]
        columns = [squash[name](outputs[:, i]) for i, name in enumerate(spec.squash)]
        return np.stack(columns, axis=1)

    for frames in pictures(9, 2, 96, 96, 3):
        np.testing.assert_allclose(other.act(frames, choose), policy.act(frames), atol=1e-4)
    with closing(worldmodels.make_dream(agent, num_envs=2, max_steps=9)) as dream:
        expected = (dream.observation_space.shape, dream.observation_space.dtype)
    assert calls == [expected] * len(range(0, 9, policy.config.frame_skip))
    with pytest.raises(WorldModelsError, match=r"actions have shape \(2, 2\), not"):
        worldmodels.load_agent(agent).act(frames, lambda features: features[:, :2])


@pytest.mark.system
def test_the_policy_plays_take_cover_as_the_pipeline_does() -> None:
    pytest.importorskip("vizdoom", reason=f"ViZDoom is not installed: {install('doom')}")
    policy = worldmodels.load_agent(TAKECOVER)
    with closing(gymnasium.make(doom.ID, doom_config_path="/dev/null")) as env:
        observation, _ = env.reset(seed=5)
        policy.reset(seed=5)
        steps, terminated = 0, False
        while not terminated:
            observation, _, terminated, *_ = env.step(policy.act(observation["screen"]))
            steps += 1
    judged = worldmodels.evaluate(policy, episodes=1, first_seed=5)
    assert judged.returns.tolist() == [steps]
    assert judged.terminated.all()


@pytest.mark.parametrize("frame_skip", [1, 2])
def test_a_batch_is_acted_in_as_each_of_its_episodes_alone(frame_skip: int, sampling: Path) -> None:
    config = dataclasses.replace(load_config(sampling), frame_skip=frame_skip)
    save_config(sampling, config)
    batch = worldmodels.load_agent(sampling)
    alone = [worldmodels.load_agent(sampling) for _ in range(3)]
    frames = pictures(6, 3, 96, 96, 3)
    batch.reset(seed=20)
    for row, policy in enumerate(alone):
        policy.reset(seed=20 + row)
    for time, frame in enumerate(frames):
        if time == 3:
            batch.reset(np.array([False, True, False]), seed=40)
            alone[1].reset(seed=41)
        single = np.stack([policy.act(frame[row]) for row, policy in enumerate(alone)])
        # Matrix products round differently at another batch size, in bfloat16 by some 1e-3.
        np.testing.assert_allclose(batch.act(frame), single, atol=0.03)


def test_a_list_of_frames_is_acted_in_as_their_array() -> None:
    array, listed = (worldmodels.load_agent(CARRACING) for _ in range(2))
    for frames in pictures(2, 3, 96, 96, 3):
        np.testing.assert_array_equal(listed.act(list(frames)), array.act(frames))


def test_draws_are_those_of_the_seed_and_others_in_the_next_episode(sampling: Path) -> None:
    frame = pictures(96, 96, 3)

    def acts(seed: int) -> list[Any]:
        policy = worldmodels.load_agent(sampling, seed=seed)
        actions = []
        for _ in range(2):
            policy.reset()
            actions.append(np.asarray(policy.act(frame)).tolist())
        return actions

    first = acts(1)
    assert acts(1) == first
    assert first[0] != first[1]
    assert acts(2)[0] not in first


def test_actions_are_the_environments_own() -> None:
    policy = worldmodels.load_agent("pretrained/takecover")
    assert policy.act(pictures(240, 320, 3)) in (0, 1, 2)
    policy.reset()
    actions = policy.act(pictures(4, 240, 320, 3))
    assert isinstance(actions, np.ndarray)
    assert actions.shape == (4,)
    assert actions.dtype == np.int64


@pytest.mark.parametrize("agent", [CARRACING, TAKECOVER])
def test_an_agent_is_pickled_within_an_episode(agent: Path) -> None:
    policy = worldmodels.load_agent(agent)
    first, second = pictures(2, 240, 320, 3)
    policy.act(first)
    restored = pickle.loads(pickle.dumps(policy))
    np.testing.assert_array_equal(restored.act(second), policy.act(second))


@pytest.mark.parametrize(
    ("frames", "said"),
    [
        (pictures(96, 96, 3).astype(np.float32), "frames: are float32"),
        (pictures(96, 96), "not uint8"),
        (pictures(0, 96, 96, 3), "has no pixels"),
        ([pictures(96, 96, 3), pictures(90, 96, 3)], "are of several shapes"),
        (pictures(80, 96, 3), "have 80 rows, and the agent takes the upper 84"),
        (pictures(3, 96, 96, 3), "3 after 2 in the step before; call reset"),
    ],
)
def test_frames_that_do_not_fit_are_refused_in_one_line(frames: Any, said: str) -> None:
    policy = worldmodels.load_agent(CARRACING)
    policy.act(pictures(2, 96, 96, 3))
    with pytest.raises(WorldModelsError, match=re.escape(said)):
        policy.act(frames)
    with pytest.raises(WorldModelsError, match=r"mask: is bool \(3,\), not bool \(2,\)"):
        policy.reset(np.ones(3, bool))


def test_arguments_that_cannot_be_used_are_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"agent=pretrained/pong: no trained agent"):
        worldmodels.load_agent("pretrained/pong")
    with pytest.raises(ConfigError, match=r"env\.croprows.*env\.crop_rows"):
        worldmodels.make_env("carracing", croprows=3)
    with pytest.raises(ConfigError, match=r"^env\.id=carracng: "):
        worldmodels.make_env("carracng")
    with pytest.raises(ConfigError, match="engine=box2d: choose one of"):
        worldmodels.evaluate(CARRACING, engine="box2d")
    with pytest.raises(ConfigError, match="episodes=0"):
        worldmodels.evaluate(CARRACING, episodes=0)
    with pytest.raises(ConfigError, match=r"trained with crop_rows=84 size=64, not .* size=96"):
        worldmodels.evaluate(CARRACING, size=96)
    with pytest.raises(ConfigError, match="device=gpu: is not a device of PyTorch"):
        worldmodels.load_agent(CARRACING, device="gpu")
    for temperature in (0, float("inf"), float("nan")):
        with pytest.raises(ConfigError, match=f"temperature={temperature}: choose a finite"):
            worldmodels.make_dream(CARRACING, temperature=temperature)
    shutil.copytree(CARRACING, tmp_path / "run/controller/agent")
    with pytest.raises(ConfigError, match=r"run: is a run, not an agent; give .*run/controller$"):
        worldmodels.load_agent(tmp_path / "run")
    with pytest.raises(DataError, match="has no shard"):
        worldmodels.load_episodes(tmp_path)


@pytest.mark.parametrize(
    ("call", "key", "number"),
    [
        (worldmodels.load_agent, "seed", -1),
        (worldmodels.evaluate, "episodes", 2.5),
        (worldmodels.evaluate, "first_seed", 0.5),
        (worldmodels.evaluate, "processes", 1.5),
        (worldmodels.make_dream, "num_envs", 2.5),
        (worldmodels.make_dream, "max_steps", 2.5),
        (worldmodels.make_env, "num_envs", 1.5),
        (worldmodels.make_env, "processes", 0),
    ],
)
def test_numbers_that_cannot_be_used_are_refused_in_one_line(
    call: Any, key: str, number: Any
) -> None:
    arguments = () if call is worldmodels.make_env else (CARRACING,)
    with pytest.raises(ConfigError, match=f"^{key}={number}: choose a whole number of . or more$"):
        call(*arguments, **{key: number})


def test_the_learned_model_is_that_of_a_policy_or_of_its_folder() -> None:
    policy = worldmodels.load_agent(CARRACING)
    dreams = [worldmodels.make_dream(agent, 2) for agent in (policy, CARRACING)]
    one, other = (dream.reset(seed=4)[0] for dream in dreams)
    np.testing.assert_array_equal(one, other)


def test_the_time_limit_is_not_guessed_where_no_group_or_several_could_tell_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "agent"
    shutil.copytree(CARRACING, folder)
    save_config(folder, dataclasses.replace(load_config(folder), env_id="own_game:Game-v0"))
    (tmp_path / "env").mkdir()
    (tmp_path / "env/striped.yaml").write_text(
        "id: CarRacing-v3\nkwargs: {domain_randomize: true}\n"
    )
    alone = worldmodels.evaluate(CARRACING, 1, engine="native", max_steps=5).returns.tolist()
    monkeypatch.setattr(extensions, "config_folders", lambda: [tmp_path])
    for agent, said in ((folder, "no group"), (CARRACING, "carracing and striped")):
        for call in (worldmodels.make_dream, worldmodels.evaluate):
            with pytest.raises(ConfigError, match=f"^max_steps: .* is configured by {said} of"):
                call(agent)
        worldmodels.make_dream(agent, max_steps=5).close()
    both = worldmodels.evaluate(CARRACING, 1, engine="native", max_steps=5)
    assert both.returns.tolist() == alone
    with pytest.raises(ConfigError, match="No module named 'own_game'"):
        worldmodels.evaluate(folder, max_steps=5)


def test_an_evaluation_is_that_of_the_stage(smoke: Path) -> None:
    run = smoke / "smoke"
    stage = read_json(run / "evaluate/scores.json")["agent"]
    config = read_json(run / "evaluate/manifest.json")["config"]
    judged = worldmodels.evaluate(
        run / "controller",
        episodes=len(stage["seeds"]),
        first_seed=stage["seeds"][0],
        engine=config["env.engine"],
        max_steps=config["env.max_steps"],
    )
    assert judged.returns.tolist() == stage["returns"]
    assert judged.seeds.tolist() == stage["seeds"]
    assert judged.interval == tuple(stage["interval"])


@pytest.mark.system
def test_workers_change_no_evaluation() -> None:
    one, two = (
        worldmodels.evaluate(CARRACING, episodes=6, max_steps=15, processes=count)
        for count in (0, 2)
    )
    assert one.returns.tolist() == two.returns.tolist()


def test_an_environment_by_its_id() -> None:
    with closing(worldmodels.make_env("picture_env:Countdown-v0", 2, crop_rows=8)) as env:
        frames, _ = env.reset(seed=3)
        assert frames.shape == (2, 64, 64, 3)
        terminated = [env.step(env.action_space.sample())[2].tolist() for _ in range(3)]
    assert terminated == [[False, False], [False, False], [True, False]]


def test_an_environment_is_made_in_threads_and_in_a_program_of_hydra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.yaml").write_text("defaults: [schema, _self_]\nrate: 2\n")
    store, name = ConfigStore.instance(), "picture_env:Countdown-v0"
    monkeypatch.setattr(store, "repo", dict(store.repo))
    store.store("schema", {"rate": 1})

    def shape(size: int) -> tuple[int, ...]:
        with closing(worldmodels.make_env(name, crop_rows=8, size=size)) as env:
            return tuple(env.reset(seed=3)[0].shape)

    with hydra.initialize_config_dir(str(tmp_path), "own", version_base="1.2"):
        assert shape(16) == (1, 16, 16, 3)
        with ThreadPoolExecutor(4) as threads:
            made = list(threads.map(shape, range(16, 20)))
        assert made == [(1, size, size, 3) for size in range(16, 20)]
        composed = hydra.compose("own", return_hydra_config=True)
        base = VersionBase.instance().getbase()
    assert (composed.rate, composed.hydra.job.name, str(base)) == (2, "own", "1.2")


def test_the_documented_interface_runs(
    smoke: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/quick").symlink_to(smoke / "smoke")
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs/python.md").read_text()
    names: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(code, names)
    for name in set(worldmodels.__all__) - {"__version__"}:
        assert f"`{name}`" in page
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    exec(example, names)
