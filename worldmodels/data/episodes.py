"""Recorded episodes in HDF5 shards.

The timeline of an episode of T steps, which everything that slices time points to::

    frame_0 --action_0--> reward_0, terminated_0, truncated_0, frame_1 --action_1--> ... frame_T

T + 1 frames; T actions, rewards and ends. What index t holds beside ``action_t`` is the world's
answer to it: the transition is (frame_t, action_t) -> frame_{t+1}, reward_t, terminated_t. The
fatal action and the last frame are in the data; no transition crosses a reset.

A shard is a few episodes, whole or absent: ``frames (F, H, W, 3)``, ``actions``, ``rewards``,
``terminated``, ``truncated`` of all its episodes one after another, with ``lengths`` and ``seeds``.
Chunks carry a checksum, so that a flipped byte is an error and not a strange picture.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import h5py
import hdf5plugin
import numpy as np

from worldmodels.errors import DataError
from worldmodels.files import atomic_path

FORMAT = 1
# Measured with benchmarks/codecs.py on CarRacing: 16.8 to 1, 0.1 ms for a random frame and 0.6 ms
# for 100 in a row; gzip gives 14.1 to 1 at 0.4 and 3.3 ms, single-frame chunks 8.8 to 1.
FRAMES_A_CHUNK = 16
STEPS_A_CHUNK = 4096
CODEC = "blosc zstd-3"
_FIELDS = ("frames", "actions", "rewards", "terminated", "truncated", "lengths", "seeds")


@dataclass(frozen=True)
class Episode:
    """One episode of T steps.

    Args:
        frames: (T + 1, H, W, 3) uint8.
        actions: (T, A) float32.
        rewards: (T,) float32.
        terminated: (T,) bool, True at most at the last step.
        truncated: (T,) bool, likewise.
        seed: what the environment was reset with.

    Raises:
        ValueError: arrays that do not fit one another, or an end before the last step.
    """

    frames: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    seed: int

    def __post_init__(self) -> None:
        steps = len(self.actions)
        if steps < 1:
            raise ValueError(f"episode of seed {self.seed}: it has no steps")
        if len(self.frames) != steps + 1 or self.frames.dtype != np.uint8:
            raise ValueError(
                f"episode of seed {self.seed}: {len(self.frames)} frames of {self.frames.dtype} for"
                f" {steps} actions; T actions go with T + 1 uint8 frames"
            )
        for name in ("rewards", "terminated", "truncated"):
            if len(getattr(self, name)) != steps:
                raise ValueError(
                    f"episode of seed {self.seed}: {len(getattr(self, name))} {name} for"
                    f" {steps} actions"
                )
        if (self.terminated | self.truncated)[:-1].any():
            raise ValueError(f"episode of seed {self.seed}: it ends before its last step")


def write_shard(
    path: Path, episodes: Sequence[Episode], attrs: Mapping[str, str | int | float]
) -> None:
    """Write episodes as one shard, atomically. The same episodes give the same `digest`."""
    arrays = {
        name: np.concatenate([getattr(episode, name) for episode in episodes])
        for name in ("frames", "actions", "rewards", "terminated", "truncated")
    }
    arrays["actions"] = arrays["actions"].astype(np.float32)
    arrays["rewards"] = arrays["rewards"].astype(np.float32)
    arrays["lengths"] = np.array([len(episode.actions) for episode in episodes], np.int64)
    arrays["seeds"] = np.array([episode.seed for episode in episodes], np.int64)
    codec = hdf5plugin.Blosc(cname="zstd", clevel=3, shuffle=hdf5plugin.Blosc.NOSHUFFLE)
    with atomic_path(path) as temporary, h5py.File(temporary, "w") as file:
        for name, array in arrays.items():
            rows = min(len(array), FRAMES_A_CHUNK if name == "frames" else STEPS_A_CHUNK)
            chunks = (rows, *array.shape[1:])
            file.create_dataset(name, data=array, chunks=chunks, fletcher32=True, **codec)
        file.attrs.update({**attrs, "format": FORMAT, "codec": CODEC, "digest": _digest(arrays)})


class Shard:
    """A shard, read lazily.

    Raises:
        DataError: the file is missing, truncated, damaged or something else; at opening for what
            its structure shows, at reading for a bad checksum.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._naming_the_file():
            self._file = h5py.File(path, "r")
        try:
            with self._naming_the_file():
                self.lengths: np.ndarray = self._file["lengths"][:]
                self.seeds: np.ndarray = self._file["seeds"][:]
                self.digest = str(self._file.attrs["digest"])
                self._check_shapes()
        except DataError:
            self._file.close()
            raise
        self._first_frame = np.concatenate([[0], np.cumsum(self.lengths + 1)])
        self._first_step = np.concatenate([[0], np.cumsum(self.lengths)])

    @property
    def num_frames(self) -> int:
        """Frames of all episodes."""
        return int(self._first_frame[-1])

    @property
    def frame_shape(self) -> tuple[int, ...]:
        """(H, W, 3)."""
        return tuple(self._file["frames"].shape[1:])

    def read_frames(self, start: int, stop: int) -> np.ndarray:
        """Frames `start` to `stop` of the shard, (stop - start, H, W, 3) uint8."""
        with self._naming_the_file():
            return np.asarray(self._file["frames"][start:stop])

    def read_episode(self, index: int) -> Episode:
        """Episode number `index` of the shard."""
        frames = slice(*self._first_frame[index : index + 2])
        steps = slice(*self._first_step[index : index + 2])
        with self._naming_the_file():
            file = self._file
            return Episode(
                frames=file["frames"][frames],
                actions=file["actions"][steps],
                rewards=file["rewards"][steps],
                terminated=file["terminated"][steps],
                truncated=file["truncated"][steps],
                seed=int(self.seeds[index]),
            )

    def read_rewards(self) -> np.ndarray:
        """All rewards, (steps,)."""
        with self._naming_the_file():
            return np.asarray(self._file["rewards"][:])

    @property
    def attrs(self) -> dict[str, Any]:
        """What was noted beside the data: environment, engine, policy, codec."""
        return dict(self._file.attrs)

    @property
    def frame_bytes(self) -> int:
        """Size of the frames in memory."""
        return int(self._file["frames"].nbytes)

    def count_ends(self) -> tuple[int, int]:
        """How many episodes terminated, and how many were truncated."""
        with self._naming_the_file():
            terminated, truncated = (self._file[name][:] for name in ("terminated", "truncated"))
        return int(terminated.sum()), int(truncated.sum())

    def verify(self) -> None:
        """Read everything; raises `DataError` if it is not what was written."""
        with self._naming_the_file():
            arrays = {name: self._file[name][:] for name in _FIELDS}
        if _digest(arrays) != self.digest:
            raise DataError(f"{self.path} is not what was written to it; {_MEND}")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Shard:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _check_shapes(self) -> None:
        steps, frames = int(self.lengths.sum()), int((self.lengths + 1).sum())
        for name in ("frames", "actions", "rewards", "terminated", "truncated"):
            rows = self._file[name].shape[0]
            if rows != (frames if name == "frames" else steps):
                raise KeyError(f"{name} has {rows} rows")

    @contextmanager
    def _naming_the_file(self) -> Iterator[None]:
        try:
            yield
        except (OSError, KeyError, RuntimeError, ValueError) as error:
            line = " ".join(str(error).split())
            raise DataError(f"{self.path} is damaged ({line}); {_MEND}") from error


_MEND = "delete it and run stage=rollouts again, which collects it anew"


class EpisodeSet:
    """The episodes of some folders of shards, numbered through."""

    def __init__(self, shards: list[Shard], skipped: list[Path]) -> None:
        self.shards, self.skipped = shards, skipped
        self.lengths = np.concatenate([shard.lengths for shard in shards])
        self.seeds = np.concatenate([shard.seeds for shard in shards])
        self._first = np.concatenate([[0], np.cumsum([len(s.lengths) for s in shards])])
        digest = hashlib.sha256("".join(shard.digest for shard in shards).encode())
        self.fingerprint = digest.hexdigest()[:16]

    @classmethod
    def open(cls, folders: Sequence[Path], on_corrupt: str = "refuse") -> EpisodeSet:
        """Open every ``shard-*.h5`` of `folders` in the order of their names.

        Args:
            folders: in the order their episodes are numbered.
            on_corrupt: "refuse" raises at the first damaged shard that its structure shows;
                "skip" reads every shard whole first, leaves the damaged out and says so.

        Raises:
            DataError: a damaged shard (refuse), or no shard at all.
        """
        shards: list[Shard] = []
        skipped: list[Path] = []
        for path in [path for folder in folders for path in sorted(folder.glob("shard-*.h5"))]:
            try:
                shard = Shard(path)
                if on_corrupt == "skip":
                    shard.verify()
                shards.append(shard)
            except DataError as error:
                if on_corrupt != "skip":
                    raise
                logging.getLogger(__name__).warning("left out: %s", error)
                skipped.append(path)
        if not shards:
            raise DataError(f"{folders[0]} has no readable shard; run stage=rollouts")
        return cls(shards, skipped)

    @property
    def num_episodes(self) -> int:
        """How many episodes there are."""
        return len(self.lengths)

    @property
    def num_frames(self) -> int:
        """How many frames there are."""
        return int((self.lengths + 1).sum())

    @property
    def frame_shape(self) -> tuple[int, ...]:
        """(H, W, 3)."""
        return self.shards[0].frame_shape

    def find(self, index: int) -> tuple[Shard, int]:
        """The shard of episode `index` and the episode's number in it."""
        number = int(np.searchsorted(self._first, index, side="right")) - 1
        return self.shards[number], index - int(self._first[number])

    def episode(self, index: int) -> Episode:
        """Episode `index`."""
        shard, local = self.find(index)
        return shard.read_episode(local)

    def frames(self, index: int, start: int, stop: int) -> np.ndarray:
        """Frames `start` to `stop` of episode `index`, (stop - start, H, W, 3) uint8."""
        shard, local = self.find(index)
        first = int(shard._first_frame[local])
        return shard.read_frames(first + start, first + stop)

    def returns(self) -> np.ndarray:
        """The sum of rewards of each episode, (episodes,)."""
        parts = []
        for shard in self.shards:
            sums = np.concatenate([[0.0], np.cumsum(shard.read_rewards(), dtype=np.float64)])
            parts.append(np.diff(sums[shard._first_step]))
        return np.concatenate(parts)

    def split(self, validation_fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Episode numbers for training and for validation, at least one each.

        An episode's side depends on its own seed and on `seed`: it stays where it is when the set
        grows, as long as the threshold on its hash does not have to move to leave both sides some.

        Raises:
            DataError: fewer than two episodes.
        """
        if self.num_episodes < 2:
            raise DataError("one episode cannot be split: collect more with rollouts.episodes")
        ranks = np.array([_unit_hash(seed, int(episode)) for episode in self.seeds])
        validation = ranks < validation_fraction
        if not validation.any():
            validation[np.argmin(ranks)] = True
        if validation.all():
            validation[np.argmax(ranks)] = False
        return np.flatnonzero(~validation), np.flatnonzero(validation)


def _unit_hash(seed: int, episode: int) -> float:
    digest = hashlib.sha256(f"{seed} {episode}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def _digest(arrays: Mapping[str, Any]) -> str:
    digest = hashlib.sha256()
    for name in _FIELDS:
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
