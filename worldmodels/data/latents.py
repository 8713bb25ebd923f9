"""Encoded episodes: the posterior of each frame, as mean and log-variance, so that z can be sampled
again for every batch. The timeline is that of ``shards.py`` with latents instead of frames."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import h5py
import numpy as np

from worldmodels.data.hdf5 import (
    LARGEST_EPISODE,
    Column,
    OpenFiles,
    check_lengths,
    check_rows,
    finite,
    open_checked,
    writing,
)
from worldmodels.runs.integrity import Listed, reading, require_made_by

ROWS_A_CHUNK = 256


@dataclass(frozen=True)
class EncodedEpisode:
    """An episode of T steps.

    Args:
        mean: (T + 1, Z) float32.
        logvar: (T + 1, Z) float32.
        actions: (T, A) float32.
        rewards: (T,) float32.
        terminated: (T,) bool.
        seed: of the environment.
    """

    mean: np.ndarray
    logvar: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    seed: int


@dataclass(frozen=True)
class FirstLatents:
    """Posteriors of the first frames of recorded episodes; each (episodes, Z) float32."""

    mean: np.ndarray
    logvar: np.ndarray


_ROWS = ("mean", "logvar", "actions", "rewards", "terminated")
_COLUMNS = {
    "mean": Column(np.float32, 2),
    "logvar": Column(np.float32, 2),
    "actions": Column(np.float32, 2),
    "rewards": Column(np.float32, 1),
    "terminated": Column(np.bool_, 1),
    "lengths": Column(np.int64, 1),
    "seeds": Column(np.int64, 1),
}
_REMEDY = "run stage=rnn again with overwrite=true"


def write_latents(
    path: Path, encoded: Iterable[EncodedEpisode], attrs: Mapping[str, str | int | float]
) -> None:
    """Write encoded episodes, atomically; one episode is in memory at a time.

    Args:
        path: of the HDF5 file.
        encoded: the episodes, written in this order.
        attrs: attributes of the file.

    Raises:
        ArtifactError: the disk is full or not writable; raised after that episode.
    """
    lengths, seeds = [], []
    with writing(path) as output:
        for episode in encoded:
            for name in _ROWS:
                _append(output.file, name, getattr(episode, name))
            lengths.append(len(episode.actions))
            seeds.append(episode.seed)
            output.check()
        output.file["lengths"] = np.array(lengths, np.int64)
        output.file["seeds"] = np.array(seeds, np.int64)
        output.file.attrs.update(attrs)


def _append(file: h5py.File, name: str, rows: np.ndarray) -> None:
    if name not in file:
        shape = rows.shape[1:]
        file.create_dataset(
            name,
            (0, *shape),
            rows.dtype,
            maxshape=(None, *shape),
            chunks=(ROWS_A_CHUNK, *shape),
            fletcher32=True,
        )
    data = file[name]
    data.resize(len(data) + len(rows), axis=0)
    data[-len(rows) :] = rows


class LatentSet:
    """A file of encoded episodes, read lazily.

    Args:
        file: as its manifest lists it, or the path of one that none does.

    Raises:
        DataError: the file is missing, truncated, damaged or something else; at reading also for a
            number that is not finite.
        ArtifactError: it cannot be read, or was made by something else than its manifest says.
    """

    def __init__(self, file: Listed | Path) -> None:
        self._listed = Listed(file, remedy=_REMEDY) if isinstance(file, Path) else file
        self._files = OpenFiles(1)
        self.path = self._listed.path
        open_checked(self._listed, _COLUMNS, self._files)
        with self._open() as opened:
            self.lengths: np.ndarray = check_lengths(opened["lengths"])
            self.latent_size = int(opened["mean"].shape[1])
            self.action_size = int(opened["actions"].shape[1])
            self.attrs = dict(opened.attrs)
            self._check_shapes(opened)
            self.seeds: np.ndarray = opened["seeds"][:]
        if self._listed.made_by is not None:
            require_made_by(self.path, [self.attrs.get("made_by")], self._listed.made_by)
        self._first_frame = np.concatenate([[0], np.cumsum(self.lengths + 1)])
        self._first_step = np.concatenate([[0], np.cumsum(self.lengths)])

    def read(self, index: int, start: int, stop: int) -> EncodedEpisode:
        """A window of an episode.

        Args:
            index: of the episode.
            start: its first step.
            stop: the step after its last one.

        Returns:
            T = stop - start steps, with their T + 1 latents.

        Raises:
            DataError: a number is not finite, or a chunk is damaged.
        """
        frame = int(self._first_frame[index])
        step = int(self._first_step[index])
        frames = slice(frame + start, frame + stop + 1)
        steps = slice(step + start, step + stop)
        with self._open() as file:
            return EncodedEpisode(
                mean=finite("mean", file["mean"][frames]),
                logvar=finite("logvar", file["logvar"][frames]),
                actions=finite("actions", file["actions"][steps]),
                rewards=finite("rewards", file["rewards"][steps]),
                terminated=file["terminated"][steps],
                seed=int(self.seeds[index]),
            )

    def episode(self, index: int) -> EncodedEpisode:
        """Episode `index`."""
        return self.read(index, 0, int(self.lengths[index]))

    def outcomes(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Rewards (T,) float32 and terminations (T,) bool of each episode; raises as `read`."""
        with self._open() as file:
            rewards, terminated = finite("rewards", file["rewards"][:]), file["terminated"][:]
        for start, stop in pairwise(self._first_step):
            yield rewards[start:stop], terminated[start:stop]

    def first_latents(self, episodes: np.ndarray | slice = slice(None)) -> FirstLatents:
        """The posteriors of the first frames of episodes; raises `DataError` as `read` does.

        Args:
            episodes: their numbers, in order; all without it.
        """
        rows = self._first_frame[:-1][episodes]
        with self._open() as file:
            return FirstLatents(
                finite("mean", file["mean"][rows]), finite("logvar", file["logvar"][rows])
            )

    def _check_shapes(self, file: h5py.File) -> None:
        steps, episodes = int(self.lengths.sum()), len(self.lengths)
        rows = dict.fromkeys(("mean", "logvar"), steps + episodes)
        rows |= dict.fromkeys(("actions", "rewards", "terminated"), steps)
        check_rows(file, rows | {"seeds": episodes})
        if file["logvar"].shape != file["mean"].shape:
            raise ValueError(f"mean is {file['mean'].shape}, logvar {file['logvar'].shape}")
        largest = int(self.lengths.max() + 1) * self.latent_size * 4
        if largest > LARGEST_EPISODE:
            raise ValueError(f"it has an episode of {largest:,} bytes")

    @contextmanager
    def _open(self) -> Iterator[h5py.File]:
        with reading(self.path, self._listed.remedy), self._files.lend(self.path) as file:
            yield file
