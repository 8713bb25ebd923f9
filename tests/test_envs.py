import warnings
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from worldmodels.envs.engines import EnvSpec, make_vector_env, resolve_engine
from worldmodels.envs.envpool_engine import EnvPoolVectorEnv, envpool_has
from worldmodels.envs.gymnasium_engine import GymnasiumVectorEnv
from worldmodels.errors import ConfigError, WorldModelsError

COUNTDOWN = "picture_env:Countdown-v0"
needs_envpool = pytest.mark.skipif(
    not envpool_has("CarRacing-v3"), reason="EnvPool is not installed"
)
ENGINES = ["native", "gymnasium", pytest.param("envpool", marks=needs_envpool)]

Lanes = VectorEnv[Any, Any, Any]


def car_actions(seed: int, steps: int) -> NDArray[np.float32]:
    """(T, 3) that keep the car moving: some steering, more gas than brake."""
    uniform = np.random.default_rng(seed).uniform(size=(steps, 3))
    return (uniform * [2.0, 1.0, 0.1] - [1.0, 0.0, 0.0]).astype(np.float32)


def play(env: Lanes, seeds: list[int], actions: NDArray[np.float32]) -> list[NDArray[Any]]:
    """Run environment i on ``actions[:, i]``; returns frames, rewards, terminated, truncated over
    time."""
    frames, _ = env.reset(seed=seeds)  # type: ignore[arg-type]  # Gymnasium's hint has no list
    rows = [[frames], [], [], []]
    for action in actions:
        for row, value in zip(rows, env.step(action)[:4], strict=True):
            row.append(value)
    return [np.stack(row) for row in rows]


def countdown(num_envs: int, processes: int = 1, **kwargs: Any) -> GymnasiumVectorEnv:
    return GymnasiumVectorEnv(COUNTDOWN, num_envs, processes, max_steps=100, kwargs=kwargs)


@pytest.fixture
def countdown_envs() -> Iterator[GymnasiumVectorEnv]:
    with closing(countdown(3)) as env:
        yield env


# ------------------------------------------------------------------------------ the environment
# contract


@pytest.mark.parametrize("engine", ENGINES)
def test_shapes_types_and_spaces(engine: str) -> None:
    with closing(make_vector_env(EnvSpec(engine=engine), num_envs=2)) as env:
        frames, rewards, terminated, truncated = play(env, [4, 5], np.zeros((3, 2, 3), np.float32))
        assert env.metadata["autoreset_mode"] == AutoresetMode.DISABLED
        assert env.num_envs == 2
        assert frames.shape == (4, 2, 64, 64, 3)
        assert all(frame in env.observation_space for frame in frames)
        assert frames[0, 0] in env.single_observation_space
        assert env.single_action_space.shape == (3,)
        for values, dtype in ((rewards, "float64"), (terminated, "bool"), (truncated, "bool")):
            assert values.shape == (3, 2)
            assert values.dtype == dtype


@pytest.mark.parametrize("engine", ENGINES)
def test_an_episode_depends_on_its_seed_alone(engine: str) -> None:
    spec = EnvSpec(engine=engine)
    actions = np.repeat(car_actions(0, 12)[:, None], 3, axis=1)  # (T, N, A)
    with (
        closing(make_vector_env(spec, num_envs=3)) as three,
        closing(make_vector_env(spec, num_envs=1)) as one,
    ):
        first = play(three, [7, 8, 9], actions)
        other = play(three, [9, 1, 2], actions)  # the same environments, further episodes
        alone = play(one, [9], actions[:, :1])
    for of_first, of_other, of_alone in zip(first, other, alone, strict=True):
        np.testing.assert_array_equal(of_first[:, 2], of_alone[:, 0])
        np.testing.assert_array_equal(of_other[:, 0], of_alone[:, 0])
    assert (first[0][:, 0] != first[0][:, 1]).any()


@pytest.mark.parametrize("engine", ENGINES)
def test_reset_restarts_the_same_episodes(engine: str) -> None:
    actions = np.repeat(car_actions(1, 10)[:, None], 2, axis=1)
    with closing(make_vector_env(EnvSpec(engine=engine, max_steps=8), num_envs=2)) as env:
        for first, second in zip(
            play(env, [3, 4], actions), play(env, [3, 4], actions), strict=True
        ):
            np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_time_limit_truncates_and_freezes(engine: str) -> None:
    actions = np.repeat(car_actions(2, 9)[:, None], 2, axis=1)
    with closing(make_vector_env(EnvSpec(engine=engine, max_steps=6), num_envs=2)) as env:
        frames, rewards, terminated, truncated = play(env, [1, 2], actions)
    assert not terminated.any()
    np.testing.assert_array_equal(truncated.all(axis=1), np.arange(1, 10) >= 6)
    np.testing.assert_array_equal(truncated.any(axis=1), np.arange(1, 10) >= 6)
    assert (rewards[:6] != 0).all()
    assert (rewards[6:] == 0).all()
    assert (frames[7:] == frames[6]).all()
    assert (frames[6] != frames[5]).any()


@pytest.mark.parametrize("engine", ENGINES)
def test_returned_arrays_are_the_callers(engine: str) -> None:
    actions = np.repeat(car_actions(3, 2)[:, None], 2, axis=1)
    with closing(make_vector_env(EnvSpec(engine=engine, max_steps=1), num_envs=2)) as env:
        env.reset(seed=[1, 2])  # type: ignore[arg-type]
        returned = env.step(actions[0])[:4]
        kept = [value.copy() for value in returned]
        for value in returned:
            value[...] = 0
        for again, before in zip(env.step(actions[1])[:4], kept, strict=True):
            if before.dtype != np.float64:  # rewards become 0, the rest stays
                np.testing.assert_array_equal(again, before)


# ------------------------------------------------------------------------------ Gymnasium


def test_gymnasium_envs_are_gymnasium_bitwise() -> None:
    seeds, steps = [11, 2**31 - 1], 30
    actions = np.stack([car_actions(index, steps) for index in range(2)], axis=1)  # (T, N, A)
    with closing(GymnasiumVectorEnv("CarRacing-v3", 2, 1, 1000, {})) as env:
        frames, rewards, _, _ = play(env, seeds, actions)
    for index, seed in enumerate(seeds):
        reference = gymnasium.make("CarRacing-v3")
        frame, _ = reference.reset(seed=seed)
        np.testing.assert_array_equal(frames[0, index], frame)
        for step in range(steps):
            frame, reward, *_ = reference.step(actions[step, index])
            np.testing.assert_array_equal(frames[step + 1, index], frame)
            assert rewards[step, index] == reward
        reference.close()


def test_one_process_or_many_make_no_difference() -> None:
    actions = np.stack([car_actions(index, 8) for index in range(2)], axis=1)
    spec = EnvSpec(engine="gymnasium", max_steps=6)
    with (
        closing(make_vector_env(spec, num_envs=2, processes=1)) as here,
        closing(make_vector_env(spec, num_envs=2, processes=2)) as there,
    ):
        for a, b in zip(play(here, [5, 6], actions), play(there, [5, 6], actions), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("processes", [1, 3])
def test_ended_envs_freeze_while_others_run(processes: int) -> None:
    lengths = np.array([2, 5, 3])
    with closing(countdown(3, processes)) as env:
        frames, rewards, terminated, truncated = play(
            env, lengths.tolist(), np.zeros((6, 3, 2), np.float32)
        )
    steps = np.arange(1, 7)[:, None]
    np.testing.assert_array_equal(frames[1:, :, 0, 0, 0], np.minimum(steps, lengths))
    np.testing.assert_array_equal(rewards, (steps <= lengths).astype(float))
    np.testing.assert_array_equal(terminated, steps >= lengths)
    assert not truncated.any()


@pytest.mark.parametrize("processes", [1, 3])
def test_reset_mask_restarts_some_envs(processes: int) -> None:
    zeros = np.zeros((3, 2), np.float32)
    options = {"reset_mask": np.array([True, False, True])}
    with closing(countdown(3, processes)) as env:
        play(env, [2, 9, 9], np.stack([zeros] * 3))
        frames, _ = env.reset(seed=[4, 4, 4], options=options)
        assert frames[:, 0, 0, 0].tolist() == [0, 3, 0]
        assert "reset_mask" in options, "the caller's dictionary was changed"
        frames, _, terminated, _, _ = env.step(zeros)
        assert frames[:, 0, 0, 0].tolist() == [1, 4, 1]
        assert not terminated.any()


def test_infos_pass_through(countdown_envs: GymnasiumVectorEnv) -> None:
    countdown_envs.reset(seed=[1, 9, 9])
    infos = [countdown_envs.step(np.zeros((3, 2), np.float32))[4] for _ in range(2)]
    assert set(infos[0]) == {"steps", "_steps", "done", "_done"}
    assert infos[1]["steps"][1:].tolist() == [2, 2]
    assert infos[1]["_steps"].tolist() == [False, True, True]


# ------------------------------------------------------------------------------ EnvPool


@needs_envpool
def test_envpool_envs_freeze_while_others_run() -> None:
    num_envs, steps = 4, 200
    actions = np.zeros((steps, num_envs, 2), np.float32)  # the lander falls: 50 to 200 steps
    with closing(EnvPoolVectorEnv("LunarLanderContinuous-v3", num_envs, 2, 1000, {})) as env:
        states, rewards, terminated, truncated = play(env, [0, 1, 2, 3], actions)
    ends = terminated.argmax(axis=0)  # (N,) the step that terminated
    assert terminated[-1].all()
    assert len(set(ends.tolist())) > 1, (
        "the environments ended at the same time: nothing was tested"
    )
    assert not truncated.any()
    for index, end in enumerate(ends):
        assert terminated[end:, index].all()
        assert (rewards[end + 1 :, index] == 0).all()
        assert (states[end + 1 :, index] == states[end + 1, index]).all()
        with closing(EnvPoolVectorEnv("LunarLanderContinuous-v3", 1, 1, 1000, {})) as alone:
            expected = play(alone, [index], actions[:, :1])
        np.testing.assert_array_equal(states[:, index], expected[0][:, 0])
        np.testing.assert_array_equal(rewards[:, index], expected[1][:, 0])


@needs_envpool
def test_envpool_draws_what_gymnasium_draws() -> None:
    """But for antialiasing; on a seed whose track is the same in both (see `EnvPoolVectorEnv`)."""
    actions = car_actions(0, 10)[:, None]
    frames = []
    for engine in ("gymnasium", "envpool"):
        with closing(make_vector_env(EnvSpec(engine=engine), num_envs=1)) as env:
            frames.append(play(env, [3], actions)[0].astype(float))
    assert np.abs(frames[0] - frames[1]).mean() < 6
    assert np.corrcoef(frames[0].ravel(), frames[1].ravel())[0, 1] > 0.95


@needs_envpool
def test_envpool_makes_no_noise() -> None:
    with (
        warnings.catch_warnings(),
        closing(make_vector_env(EnvSpec(engine="envpool"), num_envs=1)) as env,
    ):
        warnings.simplefilter("error")
        play(env, [1], np.zeros((1, 1, 3), np.float32))
        play(env, [2], np.zeros((1, 1, 3), np.float32))


@needs_envpool
def test_envpool_refuses_what_it_cannot_do() -> None:
    with closing(make_vector_env(EnvSpec(engine="envpool"), num_envs=1)) as env:
        with pytest.raises(ResetNeeded):
            env.step(np.zeros((1, 3), np.float32))
        with pytest.raises(WorldModelsError, match=r"reset_mask.*env\.engine=gymnasium"):
            env.reset(seed=[1], options={"reset_mask": np.array([True])})  # type: ignore[arg-type]
    with pytest.raises(ResetNeeded):
        env.step(np.zeros((1, 3), np.float32))
    with pytest.raises(ConfigError, match="domain_randomize"):
        make_vector_env(EnvSpec(engine="envpool", kwargs={"domain_randomize": True}), num_envs=1)


# ------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize("engine", ENGINES)
def test_bad_actions_name_the_env(engine: str) -> None:
    with closing(make_vector_env(EnvSpec(engine=engine), num_envs=2)) as env:
        env.reset(seed=[1, 2])  # type: ignore[arg-type]
        for bad in (np.nan, np.inf):
            actions = np.zeros((2, 3), np.float32)
            actions[1, 2] = bad
            with pytest.raises(WorldModelsError, match=r"(environment|environment) 1"):
                env.step(actions)
        with pytest.raises(WorldModelsError, match=r"\(2, 4\).*\(2, 3\)"):
            env.step(np.zeros((2, 4), np.float32))
        assert np.isfinite(env.step(np.zeros((2, 3)))[1]).all(), "float64 is converted"


@pytest.mark.parametrize(
    ("seeds", "message"),
    [
        ([1, 2], "2 seeds for 3 environments"),
        ([1, 2, -1], "environment 2"),
        ([2**31, 1, 1], "environment 0"),
    ],
)
def test_bad_seeds_are_refused(
    countdown_envs: GymnasiumVectorEnv, seeds: list[int], message: str
) -> None:
    with pytest.raises(WorldModelsError, match=message):
        countdown_envs.reset(seed=seeds)


def test_seeds_as_gymnasium_defines_them(countdown_envs: GymnasiumVectorEnv) -> None:
    """One integer is the first of consecutive seeds; numpy's integers are integers."""
    zeros = np.zeros((3, 2), np.float32)
    countdown_envs.reset(seed=1)
    assert countdown_envs.step(zeros)[2].tolist() == [True, False, False]
    assert countdown_envs.step(zeros)[2].tolist() == [True, True, False]
    countdown_envs.reset(seed=list(np.array([2, 1, 2])))
    assert countdown_envs.step(zeros)[2].tolist() == [False, True, False]
    countdown_envs.reset(seed=[None, 1, None])
    assert countdown_envs.step(zeros)[2].tolist() == [False, True, False]
    countdown_envs.reset()
    assert not countdown_envs.step(zeros)[2].any(), "unpredictable seeds are large"


@pytest.mark.parametrize(
    ("reward", "processes"), [("nan", 1), ("nan", 2), ("-inf", 1), ("1e+39", 1)]
)
def test_a_reward_that_no_file_can_hold_names_its_environment(
    reward: str, processes: int, tmp_path: Path
) -> None:
    (tmp_path / "open").touch()
    kwargs = {"folder": str(tmp_path), "reward": float(reward), "since": 5}
    spec = EnvSpec(id="gate_env:Boundless-v0", kwargs=kwargs, crop_rows=None)
    with closing(make_vector_env(spec, 2, processes)) as env:
        env.reset(seed=[1, 2])  # type: ignore[arg-type]  # Gymnasium's hint has no list
        zeros = np.zeros((2, 3), np.float32)
        env.step(zeros)
        later = {"reset_mask": np.array([True, False])}
        env.reset(seed=[1, 2], options=later)  # type: ignore[arg-type]
        for _ in range(3):
            assert np.isfinite(env.step(zeros)[1]).all()
        with pytest.raises(ConfigError) as raised:
            env.step(zeros)
    said = f"the reward of environment 1 is {reward}; correct the environment"
    assert str(raised.value) == f"env.id=gate_env:Boundless-v0: {said}"


@pytest.mark.parametrize(
    ("spec", "num_envs", "message"),
    [
        (EnvSpec(id="CarRacing-v99", engine="gymnasium"), 1, "CarRacing-v99"),
        (EnvSpec(id="CarRacing-v99"), 1, "CarRacing-v99"),
        (EnvSpec(engine="gymnasium", kwargs={"wheels": 5}), 1, "wheels"),
        (EnvSpec(id="Pendulum-v1", engine="gymnasium"), 1, "pictures"),
        (EnvSpec(id=COUNTDOWN, crop_rows=9), 1, "crop_rows=9.*8 rows"),
        (EnvSpec(id="picture_env:Console-v0", kwargs={"pictures": 2}), 1, "2 of its observations"),
        (EnvSpec(id="picture_env:Console-v0", kwargs={"pictures": 0}), 1, "0 of its observations"),
        (EnvSpec(id="no_such_game:Game-v0"), 1, "No module named 'no_such_game': install"),
        (EnvSpec(id=COUNTDOWN, engine="envpool"), 1, "env.engine=gymnasium"),
        (EnvSpec(id=COUNTDOWN), 0, "num_envs=0"),
    ],
)
def test_what_cannot_be_made_is_named_in_one_line(
    spec: EnvSpec, num_envs: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        make_vector_env(spec, num_envs)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("key", ["max_steps", "crop_rows", "size"])
def test_a_number_below_one_is_refused(key: str) -> None:
    values: dict[str, Any] = {key: 0}
    with pytest.raises(ConfigError, match=f"env.{key}=0"):
        EnvSpec(**values)


def test_engines_resolve() -> None:
    assert resolve_engine(EnvSpec(id=COUNTDOWN)) == "gymnasium"
    assert resolve_engine(EnvSpec(engine="gymnasium")) == "gymnasium"
    assert resolve_engine(EnvSpec()) == "native"
    assert resolve_engine(EnvSpec(kwargs={"domain_randomize": True})) == "native"
    with pytest.raises(ConfigError, match="choose one of auto, native, gymnasium, envpool"):
        EnvSpec(engine="unity")
    with pytest.raises(ConfigError, match="native simulates CarRacing-v3"):
        resolve_engine(EnvSpec(id=COUNTDOWN, engine="native"))
    with pytest.raises(ConfigError, match=r"env.kwargs: .*colour"):
        make_vector_env(EnvSpec(kwargs={"colour": 1}), num_envs=1)
