"""How an agent's numbers become actions."""

import warnings
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiBinary

from worldmodels.envs.action_spec import ActionBounds, actions_of
from worldmodels.envs.engines import EnvSpec, make_vector_env
from worldmodels.errors import ConfigError, WorldModelsError

COUNTDOWN = "picture_env:Countdown-v0"


def chooses(count: int, start: int = 0, action_bins: tuple[int, ...] | None = None) -> EnvSpec:
    kwargs = {"actions": Discrete(count, start=start)}
    return EnvSpec(id=COUNTDOWN, crop_rows=8, size=8, action_bins=action_bins, kwargs=kwargs)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_choice_is_the_largest_number(processes: int) -> None:
    with closing(make_vector_env(chooses(3, start=5), num_envs=2, processes=processes)) as env:
        assert actions_of(env).bounds == ActionBounds((0.0,) * 3, (1.0,) * 3, choice=True)
        env.reset(seed=[9, 9])  # type: ignore[arg-type]
        vectors = np.array([[0, 0, 1], [0.2, 0.1, 0]], np.float32)
        infos = env.step(vectors)[4]
        assert infos["done"].tolist() == [7, 5]
        assert actions_of(env).from_vectors(vectors).tolist() == [7, 5]
        with pytest.raises(WorldModelsError, match="environment 1"):
            env.step(np.array([[0, 0, 1], [0, np.nan, 0]], np.float32))


def test_a_action_bins_has_three_thirds() -> None:
    with closing(make_vector_env(chooses(4, action_bins=(2, 0, 3)), num_envs=5)) as env:
        assert actions_of(env).bounds == ActionBounds((-1.0,), (1.0,))
        env.reset(seed=[9] * 5)  # type: ignore[arg-type]
        pulled = np.array([[-1], [-0.34], [0.33], [0.34], [1]], np.float32)
        assert env.step(pulled)[4]["done"].tolist() == [2, 2, 0, 3, 3]
        assert actions_of(env).from_vectors(pulled).tolist() == [2, 2, 0, 3, 3]


def test_an_unusual_box_is_acted_in_from_minus_one_to_one() -> None:
    spec = EnvSpec(
        id=COUNTDOWN, crop_rows=8, kwargs={"actions": Box(np.array([-2, 0]), np.array([2, 8]))}
    )
    with closing(make_vector_env(spec, num_envs=1)) as env:
        assert actions_of(env).bounds == ActionBounds((-1.0, -1.0), (1.0, 1.0))
        env.reset(seed=[9])  # type: ignore[arg-type]
        vectors = np.array([[0.5, -0.5]], np.float32)
        done = env.step(vectors)[4]["done"]
        np.testing.assert_allclose(done, [[1, 2]])
        own = actions_of(env)
        np.testing.assert_array_equal(own.from_vectors(vectors), done)
        np.testing.assert_allclose(own.from_vectors(9 * vectors), [[2, 0]])  # within the bounds


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_no_warning_tells_of_a_box_that_is_rescaled(dtype: type[np.floating[Any]]) -> None:
    box = Box(np.array([-2, 0.1], dtype), np.array([2, 0.3], dtype), dtype=dtype)
    spec = EnvSpec(id=COUNTDOWN, crop_rows=8, kwargs={"actions": box})
    vectors = np.array([[0.5, -0.5]], np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with closing(make_vector_env(spec, num_envs=1)) as env:
            env.reset(seed=[9])  # type: ignore[arg-type]
            done = env.step(vectors)[4]["done"]
            own = actions_of(env).from_vectors(vectors)
    np.testing.assert_allclose(done, [[1, 0.15]], rtol=1e-2)
    np.testing.assert_allclose(own, done, rtol=1e-2)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (EnvSpec(id=COUNTDOWN, crop_rows=4, kwargs={"actions": MultiBinary(2)}), "MultiBinary"),
        (
            EnvSpec(id=COUNTDOWN, crop_rows=4, action_bins=(0, 1, 2)),
            "env.action_bins=.0, 1, 2.*Box",
        ),
        (chooses(3, action_bins=(0, 1)), "env.action_bins=.0, 1.: choose three"),
        (chooses(3, action_bins=(0, 1, 3)), "env.action_bins=.0, 1, 3.: choose three"),
    ],
)
def test_other_actions_are_refused_in_one_line(spec: EnvSpec, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        make_vector_env(spec, num_envs=1)
    assert "\n" not in str(caught.value)
