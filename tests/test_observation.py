"""How an environment's pictures become frames."""

from contextlib import closing
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from PIL import Image

from worldmodels.envs.engines import EnvSpec, make_vector_env
from worldmodels.envs.observation import PixelObservation


@settings(max_examples=40, deadline=None)
@given(
    st.tuples(st.integers(1, 3), st.integers(8, 40), st.integers(8, 40)).flatmap(
        lambda shape: arrays(np.uint8, (*shape, 3))
    ),
    st.integers(1, 24),
    st.integers(1, 8) | st.none(),
)
def test_frames_are_reduced_as_pil_reduces_them(
    pictures: NDArray[np.uint8], size: int, crop_rows: int | None
) -> None:
    num_envs, rows, columns, _ = pictures.shape
    env = PixelObservation(SyncVectorEnv([Blank(rows, columns)] * num_envs), size, crop_rows)
    frames = env.observations(pictures)
    assert frames in env.observation_space
    for picture, frame in zip(pictures, frames, strict=True):
        image = Image.fromarray(picture[: crop_rows or rows])
        expected = np.asarray(image.resize((size, size), Image.Resampling.BILINEAR))
        assert np.abs(frame.astype(int) - expected.astype(int)).max() <= 1


class Blank:
    """Makes an environment of pictures of one size."""

    def __init__(self, rows: int, columns: int) -> None:
        self._shape = (rows, columns, 3)

    def __call__(self) -> gymnasium.Env[Any, Any]:
        env: gymnasium.Env[Any, Any] = gymnasium.Env()
        env.observation_space = gymnasium.spaces.Box(0, 255, self._shape, np.uint8)
        env.action_space = gymnasium.spaces.Box(-1, 1, (1,))
        return env


def test_the_dashboard_is_cropped() -> None:
    """CarRacing draws a black bar below row 84: it fills the lowest row of a whole picture."""
    black = []
    for crop_rows in (None, 84):
        spec = EnvSpec(engine="gymnasium", crop_rows=crop_rows)
        with closing(make_vector_env(spec, num_envs=1)) as env:
            frames, _ = env.reset(seed=[1])  # type: ignore[arg-type]
            black.append((frames[0, -1].max(axis=-1) < 10).mean())
    assert black[0] == 1
    assert black[1] < 0.5


def test_the_picture_is_taken_from_among_other_observations() -> None:
    spec = EnvSpec(id="picture_env:Console-v0", crop_rows=8, size=8)
    with closing(make_vector_env(spec, num_envs=1)) as env:
        first, _ = env.reset(seed=[3])  # type: ignore[arg-type]  # Gymnasium's hint has no list
        frames = [first, *(env.step(np.zeros((1, 2), np.float32))[0] for _ in range(4))]
    assert [frame[0, 0, 0, 0] for frame in frames] == [0, 1, 2, 2, 2], "the last step shows nothing"
