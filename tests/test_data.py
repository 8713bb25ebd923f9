"""Episodes, frames and sequences on real HDF5 files."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from worldmodels.data.episodes import EpisodeSet
from worldmodels.data.frames import FrameBatches
from worldmodels.data.latents import EncodedEpisode, LatentSet, write_latents
from worldmodels.data.prefetch import prefetch
from worldmodels.data.sequences import SequenceBatch, SequenceBatches
from worldmodels.data.shards import Episode, Shard, write_shard
from worldmodels.errors import DataError

FEW = settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def episode(steps: int, seed: int) -> Episode:
    """Frame t of the episode holds (seed, t) in its first pixel."""
    rng = np.random.default_rng(seed)
    frames = rng.integers(0, 256, (steps + 1, 8, 8, 3), np.uint8)
    frames[:, 0, 0, 0] = seed
    frames[:, 0, 0, 1] = np.arange(steps + 1)
    ends = np.zeros(steps, bool)
    ends[-1] = True
    actions = rng.normal(size=(steps, 3)).astype(np.float32)
    rewards = rng.normal(size=steps).astype(np.float32)
    return Episode(frames, actions, rewards, ends, np.zeros(steps, bool), seed)


def data_set(folder: Path, lengths: list[int]) -> EpisodeSet:
    for path in folder.glob("*.h5"):
        path.unlink()
    for number in range(0, len(lengths), 3):
        part = [episode(n, number + i) for i, n in enumerate(lengths[number : number + 3])]
        write_shard(folder / f"shard-{number:05d}.h5", part, {"env": "test"})
    return EpisodeSet.open([folder])


def latent_set(path: Path, lengths: list[int]) -> LatentSet:
    """Latent t of episode i is (i, t), its action (i, t), its reward t."""

    def encoded(index: int, steps: int) -> EncodedEpisode:
        time = np.arange(steps + 1, dtype=np.float32)
        rows = np.stack([np.full_like(time, index), time], axis=1)
        ends = np.zeros(steps, bool)
        ends[-1] = True
        return EncodedEpisode(rows, -rows, rows[:-1], time[:-1], ends, index)

    write_latents(path, (encoded(i, n) for i, n in enumerate(lengths)), {"vae": "abc"})
    return LatentSet(path)


def test_episodes_come_back_as_they_were_written(tmp_path: Path) -> None:
    episodes = data_set(tmp_path, [5, 9, 1, 20])
    for index, steps in enumerate([5, 9, 1, 20]):
        for name in ("frames", "actions", "rewards", "terminated", "truncated"):
            ours = getattr(episodes.episode(index), name)
            np.testing.assert_array_equal(ours, getattr(episode(steps, index), name))
    sums = [episode(n, i).rewards.sum() for i, n in enumerate([5, 9, 1, 20])]
    np.testing.assert_allclose(episodes.returns(), sums, rtol=1e-5, atol=1e-6)


def test_equal_episodes_have_equal_fingerprints_and_others_do_not(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    first = data_set(tmp_path / "a", [5, 9]).fingerprint
    assert data_set(tmp_path / "b", [5, 9]).fingerprint == first
    assert data_set(tmp_path / "b", [5, 8]).fingerprint != first


@pytest.mark.parametrize("field", ["frames", "rewards", "terminated"])
def test_arrays_that_do_not_fit_are_refused(field: str) -> None:
    whole = episode(4, 0)
    parts = {name: getattr(whole, name) for name in vars(whole)}
    parts[field] = parts[field][:-1]
    with pytest.raises(ValueError, match="episode of seed 0"):
        Episode(**parts)


def test_an_end_before_the_last_step_is_refused() -> None:
    parts = vars(episode(4, 0)).copy()
    parts["truncated"] = np.array([False, True, False, False])
    with pytest.raises(ValueError, match="ends before its last step"):
        Episode(**parts)


def test_damage_is_named(tmp_path: Path) -> None:
    data_set(tmp_path, [30, 30, 30, 30])
    path = tmp_path / "shard-00000.h5"
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    with pytest.raises(DataError, match=r"shard-00000.h5 is damaged.*stage=rollouts"):
        EpisodeSet.open([tmp_path])
    path.write_bytes(b"not a data file")
    with pytest.raises(DataError, match=r"shard-00000.h5 is damaged"):
        EpisodeSet.open([tmp_path])
    assert EpisodeSet.open([tmp_path], "skip").skipped == [path]
    flipped = bytearray(whole)
    with Shard(tmp_path / "shard-00003.h5"):
        pass
    import h5py

    path.write_bytes(whole)
    with h5py.File(path) as file:
        place = file["frames"].id.get_chunk_info(0).byte_offset
    flipped[place + 40] ^= 1
    path.write_bytes(bytes(flipped))
    with pytest.raises(DataError, match=r"shard-00000.h5"):
        Shard(path).verify()
    assert EpisodeSet.open([tmp_path], "skip").skipped == [path]


@FEW
@given(st.lists(st.integers(1, 70), min_size=2, max_size=7), st.integers(1, 40), st.integers(0, 9))
def test_every_frame_once_an_epoch_and_resumption_anywhere(
    tmp_path: Path, lengths: list[int], size: int, seed: int
) -> None:
    episodes = data_set(tmp_path, lengths)
    indices = np.arange(len(lengths))
    batches = FrameBatches(episodes, indices, size, seed, shuffle=True)
    epoch = list(batches.epoch(3))
    assert len(epoch) == len(batches)
    seen = [tuple(frame[0, 0, :2]) for batch in epoch for frame in batch]
    assert len(set(seen)) == len(seen)
    assert episodes.num_frames - len(seen) < size
    middle = len(epoch) // 2
    for one, two in zip(epoch[middle:], batches.epoch(3, middle), strict=True):
        np.testing.assert_array_equal(one, two)
    plain = FrameBatches(episodes, indices, size, seed, shuffle=False)
    assert sum(len(batch) for batch in plain.epoch(0)) == episodes.num_frames


def test_epochs_differ_in_order(tmp_path: Path) -> None:
    batches = FrameBatches(data_set(tmp_path, [60, 60]), np.arange(2), 16, 0, shuffle=True)
    one, two = next(batches.epoch(0)), next(batches.epoch(1))
    assert not np.array_equal(one, two)


def test_large_sets_resume_without_reading_what_was_seen(tmp_path: Path) -> None:
    # More than one pool: 256 runs of 16 frames.
    batches = FrameBatches(data_set(tmp_path, [250] * 20), np.arange(20), 64, 1, shuffle=True)
    whole = list(batches.epoch(0))
    for start in (1, 63, 64, 65, len(whole) - 1, len(whole)):
        rest = list(batches.epoch(0, start))
        assert len(rest) == len(whole) - start
        for one, two in zip(whole[start:], rest, strict=True):
            np.testing.assert_array_equal(one, two)


def test_large_frames_have_small_pools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # One run of 16 frames, fewer than a batch.
    monkeypatch.setattr("worldmodels.data.frames.POOL_BYTES", 1)
    batches = FrameBatches(data_set(tmp_path, [60, 60]), np.arange(2), 40, 0, shuffle=True)
    epoch = list(batches.epoch(0))
    assert len({tuple(frame[0, 0, :2]) for batch in epoch for frame in batch}) == 120
    for one, two in zip(epoch[1:], batches.epoch(0, 1), strict=True):
        np.testing.assert_array_equal(one, two)


@FEW
@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=8),
    st.integers(1, 5),
    st.integers(0, 12),
    st.booleans(),
)
def test_every_transition_once_in_order_and_within_its_episode(
    tmp_path: Path, lengths: list[int], rows: int, length: int, shuffle: bool
) -> None:
    path = tmp_path / "latents.h5"
    latents = latent_set(path, lengths)
    batches = SequenceBatches(latents, np.arange(len(lengths)), rows, length, 0, shuffle)
    seen = []
    last: dict[int, tuple[float, float]] = {}  # row -> episode and step it has come to
    epoch = list(batches.epoch(2))
    assert len(epoch) == batches.steps(2)
    for batch in epoch:
        for row in range(len(batch.starts)):
            real = batch.mask[row]
            if not real.any():
                assert batch.starts[row]
                continue
            count = int(real.sum())
            assert real[:count].all()  # padding is at the end
            index, first = batch.mean[row, 0]
            np.testing.assert_array_equal(batch.mean[row, : count + 1, 0], index)
            np.testing.assert_array_equal(
                batch.mean[row, : count + 1, 1], first + np.arange(count + 1)
            )
            np.testing.assert_array_equal(batch.actions[row, :count], batch.mean[row, :count])
            np.testing.assert_array_equal(batch.rewards[row, :count], batch.mean[row, :count, 1])
            at_end = batch.terminated[row, :count] == 1
            assert at_end.sum() == (first + count == lengths[int(index)])
            assert batch.starts[row] == (first == 0)
            if not batch.starts[row]:
                assert last[row] == (index, first)  # the state carried is this episode's own
            last[row] = (index, first + count)
            seen += [(int(index), int(first) + step) for step in range(count)]
    assert sorted(seen) == [(i, t) for i, n in enumerate(lengths) for t in range(n)]
    middle = len(epoch) // 2
    for one, two in zip(epoch[middle:], batches.epoch(2, middle), strict=True):
        for name in SequenceBatch._fields:
            np.testing.assert_array_equal(getattr(one, name), getattr(two, name))


@FEW
@given(st.integers(2, 12), st.integers(0, 100), st.floats(0.01, 0.9))
def test_the_split_is_by_episode_and_leaves_both_sides_some(
    tmp_path: Path, count: int, seed: int, fraction: float
) -> None:
    episodes = data_set(tmp_path, [3] * count)
    train, validation = episodes.split(fraction, seed)
    assert len(train) >= 1
    assert len(validation) >= 1
    assert sorted([*train, *validation]) == list(range(count))


def test_one_episode_cannot_be_split(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="collect more"):
        data_set(tmp_path, [3]).split(0.1, 0)


def test_prefetching_keeps_order_and_hands_errors_on() -> None:
    import threading

    def source() -> Iterator[int]:
        yield from range(10)
        raise DataError("shard-00001.h5 is damaged")

    taken = []
    with pytest.raises(DataError, match="shard-00001"):
        for item in prefetch(source()):
            taken.append(item)
    assert taken == list(range(10))
    early = prefetch(iter(range(1000)))
    assert next(early) == 0
    early.close()  # type: ignore[attr-defined]
    assert not [t for t in threading.enumerate() if t.name == "prefetch"]
