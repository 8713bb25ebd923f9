"""The native CarRacing beside Gymnasium's, from the outside."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.box2d.car_racing import CarRacing
from gymnasium.error import InvalidAction, ResetNeeded
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

import worldmodels.envs  # noqa: F401  (registers)
from worldmodels.envs.carracing import glyphs
from worldmodels.envs.carracing.track import draw_track
from worldmodels.envs.carracing.vector import CarRacingVectorEnv
from worldmodels.errors import WorldModelsError

ID = "worldmodels/CarRacing-v3"
Driver = Callable[[CarRacing, int, np.random.Generator], tuple[float, float, float]]


def brownian(env: CarRacing, step: int, rng: np.random.Generator) -> tuple[float, float, float]:
    return tuple(np.clip(0.5 * rng.standard_normal(3) + (0, 0.5, -0.5), (-1, 0, 0), 1).tolist())


def full_throttle(
    env: CarRacing, step: int, rng: np.random.Generator
) -> tuple[float, float, float]:
    return 0.1 * math.sin(step / 30), 1.0, 0.0


def follower(env: CarRacing, step: int, rng: np.random.Generator) -> tuple[float, float, float]:
    """Steers towards the road four tiles ahead of the nearest one, slower where it bends."""
    assert env.car is not None
    x, y = env.car.hull.position
    points = np.array([point[2:4] for point in env.track])
    near = int(((points - (x, y)) ** 2).sum(axis=1).argmin())
    ahead_x, ahead_y = points[(near + 4) % len(points)]
    turn = _angle(math.atan2(ahead_y - y, ahead_x - x) - math.pi / 2 - env.car.hull.angle)
    bend = abs(_angle(env.track[(near + 8) % len(points)][1] - env.track[near][1]))
    speed, wanted = math.hypot(*env.car.hull.linearVelocity), 70 / (1 + 0.8 * bend)
    return float(np.clip(-2 * turn, -1, 1)), 0.5 * (speed < wanted), 0.4 * (speed > wanted + 8)


def _angle(angle: float) -> float:
    return (angle + math.pi) % (2 * math.pi) - math.pi


def off_the_field(
    env: CarRacing, step: int, rng: np.random.Generator
) -> tuple[float, float, float]:
    return 0.0, float(step % 40 < 30), 0.0


DRIVERS = (brownian, full_throttle, follower, off_the_field)


def bodies(env: CarRacing) -> NDArray[np.float32]:
    """Angle, speeds and frame of the hull and the wheels (5, 8), as Box2D has them."""
    assert env.car is not None
    rows = []
    for body in (env.car.hull, *env.car.wheels):
        c, s = body.GetWorldVector((1, 0))
        rows.append((body.angle, *body.linearVelocity, body.angularVelocity, *body.position, s, c))
    return np.array(rows, np.float32)


@pytest.fixture
def silent() -> Iterator[CarRacing]:
    """Gymnasium's game without its pictures, which take nearly all of its time."""
    env = CarRacing()
    env._render = lambda mode: None  # type: ignore[method-assign]  # it is for this game alone
    with closing(env):
        yield env


def test_tracks_are_gymnasiums(silent: CarRacing) -> None:
    for seed in range(40):
        track = draw_track(gymnasium.utils.seeding.np_random(seed)[0])
        silent.reset(seed=seed)
        quads = []
        for tile, border, has_border in zip(
            track.tiles, track.borders, track.has_border, strict=True
        ):
            quads.append(tile)
            if has_border:
                quads.append(border)
        np.testing.assert_array_equal(quads, [np.array(quad) for quad, _ in silent.road_poly])
        assert tuple(track.start) == silent.track[0][1:4]


@pytest.mark.parametrize("driver", DRIVERS)
def test_an_episode_is_gymnasiums_to_the_bit(silent: CarRacing, driver: Driver) -> None:
    with closing(CarRacingVectorEnv(1, None, size=64)) as ours:
        ended = 0
        for seed in (1, 3):  # the follower finishes these laps
            rng = np.random.default_rng(seed)
            silent.reset(seed=seed)
            ours.reset(seed=seed)
            for step in range(1000):
                action = np.array(driver(silent, step, rng), np.float32)
                _, reward, terminated, _, info = silent.step(action)
                _, rewards, terminations, _, infos = ours.step(action[None])
                assert (rewards[0], terminations[0]) == (reward, terminated)
                state = ours.get_state()["envs.body"][0]
                np.testing.assert_array_equal(state[:, 2:10], bodies(silent))
                road: Any = silent.road  # Gymnasium's hint says None
                visited = {tile.idx for tile in road if tile.road_visited}
                flags = ours.get_state()["envs.visited"][0]
                assert set(np.flatnonzero(flags)) == visited
                if terminated:
                    assert bool(infos["lap_finished"][0]) == info["lap_finished"]
                    ended += 1
                    break
        if driver in (follower, off_the_field):
            assert ended, "no lap was finished and no field was left: nothing was compared"


@pytest.mark.parametrize("randomize", [False, True])
def test_pictures_are_gymnasiums_nearly(randomize: bool) -> None:
    kwargs = {"domain_randomize": randomize}
    with (
        closing(gymnasium.make("CarRacing-v3", **kwargs)) as theirs,
        closing(gymnasium.make(ID, **kwargs)) as ours,
    ):
        rng = np.random.default_rng(0)
        road, bar = [], []
        for seed in range(2):
            pairs = [(theirs.reset(seed=seed)[0], ours.reset(seed=seed)[0])]
            for step in range(90):
                action = np.array(follower(theirs.unwrapped, step, rng), np.float32)  # type: ignore[arg-type]
                pairs.append((theirs.step(action)[0], ours.step(action)[0]))
            for a, b in pairs:
                difference = np.abs(a.astype(int) - b)
                road.append(difference[:84].mean())
                bar.append(difference[84:].mean())
                # An object that is missing or misplaced by a pixel leaves a patch behind.
                patch = difference[:84].sum(axis=2)[: 84 - 84 % 2].reshape(42, 2, 48, 2)
                assert patch.mean(axis=(1, 3)).max() < 130
        assert np.mean(road) < 0.3
        assert np.max(road) < 1.0
        assert np.mean(bar) < 0.5


def test_small_frames_are_the_large_ones_reduced() -> None:
    from worldmodels.envs.observation import PixelObservation

    large = PixelObservation(CarRacingVectorEnv(2), size=64, crop_rows=84)
    with closing(large), closing(CarRacingVectorEnv(2, size=64)) as small:
        frames = [(large.reset(seed=3)[0], small.reset(seed=3)[0])]
        for _step in range(80):
            action = np.tile(np.array([0.1, 0.5, 0], np.float32), (2, 1))
            frames.append((large.step(action)[0], small.step(action)[0]))
        difference = np.abs(np.array([a for a, _ in frames], int) - [b for _, b in frames])
        assert difference.max() <= 2  # each way of rounding
        assert difference.mean() < 0.2


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
@pytest.mark.parametrize("kwargs", [{}, {"continuous": False}, {"domain_randomize": True}])
def test_gymnasiums_checker_passes(kwargs: dict[str, Any]) -> None:
    env = gymnasium.make(ID, render_mode="rgb_array", **kwargs)
    theirs = gymnasium.make("CarRacing-v3", **kwargs)
    assert env.observation_space == theirs.observation_space
    assert env.action_space == theirs.action_space
    check_env(env.unwrapped)
    env.close()


def test_discrete_actions_are_gymnasiums(silent: CarRacing) -> None:
    theirs = CarRacing(continuous=False)
    theirs._render = lambda mode: None  # type: ignore[method-assign]  # this game alone
    rng = np.random.default_rng(0)
    with closing(CarRacingVectorEnv(1, continuous=False, size=64)) as ours:
        theirs.reset(seed=1)
        ours.reset(seed=1)
        for _ in range(150):
            action = int(rng.integers(5))
            assert ours.step(np.array([action]))[1][0] == theirs.step(action)[1]
        np.testing.assert_array_equal(ours.get_state()["envs.body"][0, :, 2:10], bodies(theirs))
        with pytest.raises(InvalidAction, match="actions: 5 of environment 0"):
            ours.step(np.array([5]))


def test_dropped_environments_leave_the_others_alone() -> None:
    actions = np.random.default_rng(0).uniform(0, 1, (40, 4, 3))
    kept = np.array([True, False, False, True])
    with (
        closing(CarRacingVectorEnv(4, size=64)) as all_envs,
        closing(CarRacingVectorEnv(4, size=64)) as some,
    ):
        all_envs.reset(seed=5)
        some.reset(seed=5)
        for step, action in enumerate(actions):
            if step == 20:
                some.keep(kept)
                assert some.num_envs == 2
            dense = action if step < 20 else action[kept]
            frames, rewards, *_ = all_envs.step(action)
            some_frames, some_rewards, *_ = some.step(dense)
        np.testing.assert_array_equal(frames[kept], some_frames)
        np.testing.assert_array_equal(rewards[kept], some_rewards)
        assert some_frames in some.observation_space


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_steps_without_drawing_leave_the_episodes_as_they_are(mode: AutoresetMode) -> None:
    """And an environment shows the frame in which its episode ended, or the next began."""
    actions = np.random.default_rng(0).uniform((-1, 0, 0), (1, 1, 0.2), (40, 3, 3))
    drawn = np.arange(40) % 4 == 3
    options: dict[str, Any] = {"size": 64, "max_episode_steps": 21, "autoreset_mode": mode}
    with (
        closing(CarRacingVectorEnv(3, **options)) as every,
        closing(CarRacingVectorEnv(3, **options)) as some,
    ):
        shown, _ = every.reset(seed=5)
        some.reset(seed=5)
        for step, action in enumerate(actions):
            *wanted, infos = every.step(action)
            *found, same = some.step(action, draw=bool(drawn[step]))
            for one, two in zip(wanted[1:], found[1:], strict=True):
                np.testing.assert_array_equal(one, two)
            new = drawn[step] or step == 20 or (step == 21 and mode is AutoresetMode.NEXT_STEP)
            shown = wanted[0] if new else shown
            np.testing.assert_array_equal(found[0], shown)
            if "final_obs" in infos:
                np.testing.assert_array_equal(infos["final_obs"][0], same["final_obs"][0])
        assert mode is AutoresetMode.DISABLED or not found[2].any()


def test_threads_change_nothing() -> None:
    actions = np.random.default_rng(0).uniform(0, 1, (20, 5, 3))
    results = []
    for threads in (1, 2):
        with closing(CarRacingVectorEnv(5, size=96, threads=threads)) as env:
            env.reset(seed=2)
            results.append([env.step(action) for action in actions])
    for one, two in zip(*results, strict=True):
        for a, b in zip(one[:4], two[:4], strict=True):
            np.testing.assert_array_equal(a, b)


def test_bad_input_is_refused_by_name() -> None:
    with pytest.raises(WorldModelsError, match="num_envs=0"):
        CarRacingVectorEnv(0)
    with pytest.raises(WorldModelsError, match="size=80"):
        CarRacingVectorEnv(1, size=80)
    with closing(CarRacingVectorEnv(3, size=64)) as env:
        with pytest.raises(ResetNeeded, match="environment 0"):
            env.step(np.zeros((3, 3)))
        with pytest.raises(WorldModelsError, match="2 seeds for 3 environments"):
            env.reset(seed=[1, 2])
        with pytest.raises(WorldModelsError, match="seed: -1 of environment 2"):
            env.reset(seed=[1, 2, -1])
        with pytest.raises(WorldModelsError, match="colour"):
            env.reset(options={"colour": 1})
        with pytest.raises(WorldModelsError, match="reset_mask"):
            env.reset(options={"reset_mask": np.zeros(3, bool)})
        env.reset(seed=1)
        with pytest.raises(WorldModelsError, match=r"environment 1 is not finite"):
            env.step(np.array([[0, 0, 0], [np.nan, 0, 0], [0, 0, 0]]))
        with pytest.raises(WorldModelsError, match=r"\(2, 3\)"):
            env.step(np.zeros((2, 3)))


def test_kernels_are_compiled_anew_when_what_they_call_has_changed(tmp_path: Path) -> None:
    package = tmp_path / "kernels"
    package.mkdir()
    outer = "from numba import njit\nfrom kernels.inner import inner\n\n"
    outer += "@njit(cache=True)\ndef outer():\n    return inner()\n"
    (package / "outer.py").write_text(outer)
    script = "from kernels.outer import outer; from pathlib import Path\n"
    script += "from worldmodels.envs.carracing.compiled import forget_stale\n"
    script += "forget_stale(Path(outer.stats.cache_path), Path('kernels'))\n"
    script += "print(outer(), sum(outer.stats.cache_hits.values()))"
    printed = []
    for number in (1, 1, 2):
        inner = f"from numba import njit\n\n@njit\ndef inner():\n    return {number}\n"
        (package / "inner.py").write_text(inner)
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
        done = subprocess.run(
            [sys.executable, "-B", "-c", script],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        printed.append(done.stdout.split())
    assert printed == [["1", "0"], ["1", "1"], ["2", "0"]]


def test_the_stored_characters_are_those_that_pygame_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = np.load(glyphs._PATH)
    monkeypatch.setattr(glyphs, "_PATH", tmp_path / "glyphs.npz")
    glyphs.main()
    drawn = np.load(tmp_path / "glyphs.npz")
    for name in ("images", "advance"):
        np.testing.assert_array_equal(drawn[name], stored[name])
