"""Episodes that are played in the mirror image of their environment."""

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from command import ALONE, composed, error_line, run

from worldmodels.config.limits import check
from worldmodels.data.episodes import EpisodeSet
from worldmodels.envs.engines import EnvSpec, make_vector_env, mirrored_panel
from worldmodels.envs.mirror import MirroredEpisodes, Mirroring
from worldmodels.errors import ConfigError

SEEDS, STEPS = [3, 2**30, 17], 60
STEERING = (0,)


def played(spec: EnvSpec, steering: int, mirroring: Mirroring | None) -> tuple[np.ndarray, ...]:
    """Frames (STEPS + 1, N, ...) and rewards (STEPS, N) of a car that turns."""
    env = make_vector_env(spec, len(SEEDS))
    if mirroring is not None:
        env = MirroredEpisodes(env, mirroring)
    with closing(env):
        first, _ = env.reset(seed=SEEDS)  # type: ignore[arg-type]  # gymnasium's stub
        frames, rewards = [np.array(first)], []
        for step in range(STEPS):
            turn = steering * (0.6 if step > STEPS // 2 else -0.1)
            action = np.tile(np.array([turn, 0.4, 0], np.float32), (len(SEEDS), 1))
            frame, reward, *_ = env.step(action)
            frames.append(np.array(frame))
            rewards.append(np.array(reward))
    return np.stack(frames), np.stack(rewards)


@pytest.mark.parametrize("engine", ["native", "gymnasium"])
def test_a_mirrored_episode_is_that_of_the_opposite_steering_seen_in_a_mirror(engine: str) -> None:
    spec = EnvSpec(engine=engine)
    frames, rewards = played(spec, 1, None)
    mirrored, same = played(spec, -1, Mirroring(1, STEERING, mirrored_panel(spec)))
    np.testing.assert_array_equal(rewards, same)
    np.testing.assert_array_equal(frames[:, :, :, ::-1], mirrored)
    assert not np.array_equal(frames, mirrored)


def test_the_instruments_of_a_mirrored_episode_are_where_they_were() -> None:
    spec = EnvSpec(engine="native", crop_rows=None, frame_skip=2)
    frames, _ = played(spec, 1, None)
    mirrored, _ = played(spec, -1, Mirroring(1, STEERING, mirrored_panel(spec)))
    picture = slice(0, 56)  # 84 of 96 rows
    np.testing.assert_array_equal(frames[:, :, picture, ::-1], mirrored[:, :, picture])
    below, shown = frames[:, :, 58:], mirrored[:, :, 58:]
    np.testing.assert_array_equal(below[..., :24, :], shown[..., :24, :])  # score, speed, wheels
    # The bars of steering (green) and turning (red) begin at columns 32 and 48, to either side.
    for channel, middle in ((1, 32), (0, 48)):
        bars = below[..., middle - 8 : middle + 8, channel]
        assert bars[..., 8:].any() or bars[..., :8].any()
        assert not np.array_equal(bars, bars[..., ::-1])
        np.testing.assert_array_equal(bars[..., ::-1], shown[..., middle - 8 : middle + 8, channel])


def test_whether_an_episode_is_mirrored_depends_on_its_seed_alone() -> None:
    spec, mirroring = EnvSpec(engine="native"), Mirroring(0.5, STEERING)
    with closing(MirroredEpisodes(make_vector_env(spec, 64), mirroring)) as many:
        frames, _ = many.reset(seed=list(range(64)))
    with closing(make_vector_env(spec, 64)) as plain:
        others, _ = plain.reset(seed=list(range(64)))  # type: ignore[arg-type]  # gymnasium's stub
    flipped = np.array([not np.array_equal(*pair) for pair in zip(frames, others, strict=True)])
    assert 20 <= flipped.sum() <= 44
    with closing(MirroredEpisodes(make_vector_env(spec, 1), mirroring)) as one:
        for seed in (5, 6, 7, 8):
            alone, _ = one.reset(seed=[seed])
            np.testing.assert_array_equal(alone[0], frames[seed])


@pytest.mark.system
def test_a_share_of_the_collected_episodes_is_mirrored(tmp_path: Path) -> None:
    words = ("stage=rollouts", "preset=smoke", "rollouts.episodes=8", "env.num_envs=4")
    for name, *more in (
        ("plain", ALONE),
        ("all", ALONE, "rollouts.mirrored_share=1"),
        ("some", ALONE, "rollouts.mirrored_share=0.5"),
        ("again", "workers.processes=2", "rollouts.mirrored_share=0.5"),
    ):
        done = run(tmp_path, *words, f"run={name}", *more)
        assert done.returncode == 0, done.stdout + done.stderr
    names = ("plain", "all", "some", "again")
    plain, every, some, again = (EpisodeSet.open([tmp_path / name / "rollouts"]) for name in names)
    assert some.fingerprint == again.fingerprint
    mixed = []
    for index in range(8):
        first = plain.frames(index, 0, 1)
        np.testing.assert_array_equal(every.frames(index, 0, 1), first[:, :, ::-1])
        mixed.append(np.array_equal(some.frames(index, 0, 1), first))
        # The recorded actions are those of who saw the frames.
        ours, theirs = plain.episode(index).actions, every.episode(index).actions
        both = min(len(ours), len(theirs))
        np.testing.assert_array_equal(ours[:both], theirs[:both])
    assert 0 < sum(mixed) < 8


def test_what_has_no_mirror_image_is_refused(tmp_path: Path) -> None:
    words = ("preset=smoke", "rollouts.mirrored_share=0.5")
    with pytest.raises(ConfigError, match=r"give env\.mirrored_actions"):
        check(composed(*words, "env.mirrored_actions=null"))
    with pytest.raises(ConfigError, match="cannot be set back"):
        check(composed(*words, "rollouts.branches=1", "rollouts.noise=0.1"))
    said = error_line(run(tmp_path, "stage=rollouts", *words, "env.mirrored_actions=[1]", ALONE))
    assert "env.mirrored_actions: action 1 cannot change sign" in said
