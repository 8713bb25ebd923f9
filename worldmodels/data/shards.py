"""Recorded episodes in HDF5 shards.

The timeline of an episode of T steps, which everything that slices time points to::

    frame_0 --action_0--> reward_0, terminated_0, truncated_0, frame_1 --action_1--> ... frame_T

T + 1 frames; T actions, rewards and ends. Index t has ``action_t`` and its results: the transition
is (frame_t, action_t) -> frame_{t+1}, reward_t, terminated_t. The last action and the frame after
it are in the data; no transition crosses a reset.

A shard is a few episodes, complete or missing: ``frames (frames, height, width, 3)``, ``actions``,
``rewards``, ``terminated``, ``truncated`` of all its episodes one after another, with ``lengths``
and ``seeds``. A shard with branches also has ``parents``, the seed that the environment of each
episode was reset with, and ``first_steps``, the steps taken in it before the episode's first frame.
Chunks carry a checksum, and the manifest of the stage the SHA-256 of the whole file, so that a
flipped bit is an error and not a wrong frame.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np

from worldmodels.data.hdf5 import (
    LARGEST_CHUNK,
    LARGEST_EPISODE,
    Column,
    OpenFiles,
    check_lengths,
    check_rows,
    finite,
    open_checked,
    writing,
)
from worldmodels.errors import DataError
from worldmodels.runs.integrity import Listed, damaged, reading, require_made_by

FORMAT = 1
# Measured with benchmarks/shard_codecs.py on CarRacing: 16.8 to 1, 0.1 ms for a random frame and
# 0.6 ms for 100 in a row; gzip gives 14.1 to 1 at 0.4 and 3.3 ms, single-frame chunks 8.8 to 1.
FRAMES_A_CHUNK = 16
STEPS_A_CHUNK = 4096
CODEC = "blosc zstd-3"
_BLOCK = LARGEST_CHUNK // 4
"""Bytes of rows that are looked at together."""
_COLUMNS = {
    "frames": Column(np.uint8, 4),
    "actions": Column(np.float32, 2),
    "rewards": Column(np.float32, 1),
    "terminated": Column(np.bool_, 1),
    "truncated": Column(np.bool_, 1),
    "lengths": Column(np.int64, 1),
    "seeds": Column(np.int64, 1),
}
_BRANCH_COLUMNS = {"parents": Column(np.int64, 1), "first_steps": Column(np.int64, 1)}


@dataclass(frozen=True)
class Episode:
    """One episode of T steps.

    Args:
        frames: (T + 1, height, width, 3) uint8.
        actions: (T, A) float32.
        rewards: (T,) float32.
        terminated: (T,) bool, True at most at the last step.
        truncated: (T,) bool, likewise.
        seed: what the environment was reset with; of a branch, what its noise is drawn from.
        parent: of a branch, the seed of the episode that it continues with other actions; else
            None.
        first_step: of a branch, the index of its first frame in that episode; else 0.

    Raises:
        ValueError: arrays that do not fit one another, or an end before the last step.
    """

    frames: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    seed: int
    parent: int | None = None
    first_step: int = 0

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
    """Write episodes as one shard, atomically. The same episodes give the same `digest`.

    Args:
        path: of the shard.
        episodes: at least one, with frames of one shape.
        attrs: attributes of the file, such as environment, engine and policy.

    Raises:
        DataError: an episode is too long to be in memory as a whole.
        ArtifactError: the disk is full or not writable.
    """
    arrays = {
        name: np.concatenate([getattr(episode, name) for episode in episodes])
        for name in ("frames", "actions", "rewards", "terminated", "truncated")
    }
    arrays["actions"] = arrays["actions"].astype(np.float32)
    arrays["rewards"] = arrays["rewards"].astype(np.float32)
    arrays["lengths"] = np.array([len(episode.actions) for episode in episodes], np.int64)
    arrays["seeds"] = np.array([episode.seed for episode in episodes], np.int64)
    if any(episode.parent is not None for episode in episodes):
        parents = [e.seed if e.parent is None else e.parent for e in episodes]
        arrays["parents"] = np.array(parents, np.int64)
        arrays["first_steps"] = np.array([episode.first_step for episode in episodes], np.int64)
    largest = max(episode.frames.nbytes for episode in episodes)
    if largest > LARGEST_EPISODE:
        raise DataError(
            f"{path}: an episode has {largest:,} bytes of frames, more than"
            f" {LARGEST_EPISODE:,}; choose a smaller rollouts.max_steps or env.size"
        )
    codec = hdf5plugin.Blosc(cname="zstd", clevel=3, shuffle=hdf5plugin.Blosc.NOSHUFFLE)
    with writing(path) as output:
        for name, array in arrays.items():
            rows = min(len(array), FRAMES_A_CHUNK if name == "frames" else STEPS_A_CHUNK)
            chunks = (rows, *array.shape[1:])
            output.file.create_dataset(name, data=array, chunks=chunks, fletcher32=True, **codec)
            output.check()
        digest = _digest({name: [array] for name, array in arrays.items()}, arrays)
        output.file.attrs.update({**attrs, "format": FORMAT, "codec": CODEC, "digest": digest})


class Shard:
    """A shard, read lazily.

    Args:
        file: as its manifest lists it, or the path of one that none does.
        files: keeps it open among others; None is a limit of its own.

    Raises:
        DataError: the file is missing, truncated, damaged or something else; at opening for what
            its SHA-256 and structure show, at reading for a bad checksum or a number that is not
            finite.
        ArtifactError: it cannot be read, or was made by something else than its manifest says.
    """

    def __init__(self, file: Listed | Path, files: OpenFiles | None = None) -> None:
        self._listed = Listed(file) if isinstance(file, Path) else file
        self._files = files or OpenFiles(1)
        self.path = self._listed.path
        try:
            open_checked(self._listed, _COLUMNS, self._files, _BRANCH_COLUMNS)
            with self._open() as opened:
                self.lengths: np.ndarray = check_lengths(opened["lengths"])
                self.attrs: dict[str, Any] = dict(opened.attrs)
                """Attributes of the file: environment, engine, policy, codec."""
                self.digest = str(self.attrs["digest"])
                self.frame_shape: tuple[int, ...] = tuple(opened["frames"].shape[1:])
                """(height, width, 3)."""
                self._check_shapes(opened)
                self.seeds: np.ndarray = opened["seeds"][:]
                self.parents, self.first_steps = self.seeds, np.zeros_like(self.seeds)
                if "parents" in opened:
                    self.parents, self.first_steps = (opened[name][:] for name in _BRANCH_COLUMNS)
            if self._listed.made_by is not None:
                require_made_by(self.path, [self.attrs.get("made_by")], self._listed.made_by)
        except Exception:
            self.close()
            raise
        self._first_frame = np.concatenate([[0], np.cumsum(self.lengths + 1)])
        self._first_step = np.concatenate([[0], np.cumsum(self.lengths)])

    @property
    def num_frames(self) -> int:
        """The number of frames of all episodes."""
        return int(self._first_frame[-1])

    @property
    def frame_bytes(self) -> int:
        """Size of all frames in memory, in bytes."""
        return self.num_frames * int(np.prod(self.frame_shape))

    def first_frame(self, index: int) -> int:
        """The index in the shard of the first frame of episode `index`."""
        return int(self._first_frame[index])

    def read_frames(self, start: int, stop: int) -> np.ndarray:
        """Frames `start` to `stop` of the shard, (stop - start, height, width, 3) uint8."""
        with self._open() as file:
            return np.asarray(file["frames"][start:stop])

    def read_episode(self, index: int) -> Episode:
        """Episode `index` of the shard, read into memory."""
        frames = slice(*self._first_frame[index : index + 2])
        steps = slice(*self._first_step[index : index + 2])
        seed, parent = int(self.seeds[index]), int(self.parents[index])
        with self._open() as file:
            return Episode(
                frames=file["frames"][frames],
                actions=finite("actions", file["actions"][steps]),
                rewards=finite("rewards", file["rewards"][steps]),
                terminated=file["terminated"][steps],
                truncated=file["truncated"][steps],
                seed=seed,
                parent=None if parent == seed else parent,
                first_step=int(self.first_steps[index]),
            )

    def returns(self) -> np.ndarray:
        """The sum of rewards of each episode, (episodes,) float64."""
        sums = np.zeros(len(self._first_step))  # of all rewards before an episode
        first, total = 0, 0.0
        with self._open() as file:
            for rewards in _blocks(file["rewards"]):
                running = np.cumsum(np.concatenate([[total], finite("rewards", rewards)]))
                last = first + len(rewards)
                here = (first < self._first_step) & (self._first_step <= last)
                sums[here] = running[self._first_step[here] - first]
                first, total = last, running[-1]
        returns: np.ndarray = np.diff(sums)
        return returns

    def count_ends(self) -> tuple[int, int]:
        """How many episodes terminated, and how many were truncated."""
        with self._open() as file:
            terminated, truncated = (
                sum(int(block.sum()) for block in _blocks(file[name]))
                for name in ("terminated", "truncated")
            )
        return terminated, truncated

    def verify(self) -> None:
        """Read everything; raises `DataError` if it is not what was written."""
        with self._open() as file:
            columns = {name: file[name] for name in (*_COLUMNS, *_BRANCH_COLUMNS) if name in file}
            found = _digest({name: _blocks(data) for name, data in columns.items()}, columns)
        if found != self.digest:
            raise damaged(self.path, "its data are not those of its digest", self._listed.remedy)

    def close(self) -> None:
        """Close the file; it is opened again where something is read."""
        self._files.close(self.path)

    def __enter__(self) -> Shard:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _check_shapes(self, file: h5py.File) -> None:
        steps, episodes = int(self.lengths.sum()), len(self.lengths)
        rows = dict.fromkeys(("actions", "rewards", "terminated", "truncated"), steps)
        per_episode = dict.fromkeys(("seeds", *(_BRANCH_COLUMNS.keys() & file.keys())), episodes)
        check_rows(file, {"frames": steps + episodes, **per_episode, **rows})
        if self.frame_shape[-1] != 3:
            raise ValueError(f"its frames are {self.frame_shape}")
        step = max(math.prod(self.frame_shape), 4 * file["actions"].shape[1])
        largest = int(self.lengths.max() + 1) * step
        if largest > LARGEST_EPISODE:
            raise ValueError(f"it has an episode of {largest:,} bytes")

    @contextmanager
    def _open(self) -> Iterator[h5py.File]:
        with reading(self.path, self._listed.remedy), self._files.lend(self.path) as file:
            yield file


def _blocks(data: h5py.Dataset) -> Iterator[np.ndarray]:
    """The rows of a data set, a few chunks at a time: packed, they may be a small part of that."""
    size = data.dtype.itemsize * int(np.prod(data.chunks))
    rows = max(1, _BLOCK // size) * int(data.chunks[0])
    for start in range(0, data.shape[0], rows):
        block = data[start : start + rows]
        parts = max(1, _BLOCK // (block.nbytes // len(block)))
        for first in range(0, len(block), parts):
            yield block[first : first + parts]


def _digest(blocks: Mapping[str, Iterable[np.ndarray]], like: Mapping[str, Any]) -> str:
    """SHA-256 over names, types, shapes and values; types and shapes are those of `like`."""
    digest = hashlib.sha256()
    for name in like:
        digest.update(f"{name} {like[name].dtype} {tuple(like[name].shape)}".encode())
        for block in blocks[name]:
            digest.update(np.ascontiguousarray(block).data)
    return digest.hexdigest()
