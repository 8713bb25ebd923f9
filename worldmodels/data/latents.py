"""Encoded episodes: what V makes of each frame, as mean and log-variance, so that z can be drawn
anew each time. The timeline is that of ``episodes.py`` with latents for frames."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

from worldmodels.errors import DataError
from worldmodels.files import atomic_path

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


def write_latents(
    path: Path, encoded: Iterable[EncodedEpisode], attrs: Mapping[str, str | int | float]
) -> None:
    """Write encoded episodes as they come, atomically; one episode is in memory at a time."""
    lengths, seeds = [], []
    with atomic_path(path) as temporary, h5py.File(temporary, "w") as file:
        for episode in encoded:
            for name in _ROWS:
                _append(file, name, getattr(episode, name))
            lengths.append(len(episode.actions))
            seeds.append(episode.seed)
        file["lengths"] = np.array(lengths, np.int64)
        file["seeds"] = np.array(seeds, np.int64)
        file.attrs.update(attrs)


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

    Raises:
        DataError: the file is missing, truncated or damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = h5py.File(path, "r")
            self.lengths: np.ndarray = self._file["lengths"][:]
            self.seeds: np.ndarray = self._file["seeds"][:]
            self.latent_size = int(self._file["mean"].shape[1])
            self.action_size = int(self._file["actions"].shape[1])
        except (OSError, KeyError) as error:
            raise self._damaged(error) from error
        self.attrs = dict(self._file.attrs)
        self._first_frame = np.concatenate([[0], np.cumsum(self.lengths + 1)])
        self._first_step = np.concatenate([[0], np.cumsum(self.lengths)])

    def read(self, index: int, start: int, stop: int) -> EncodedEpisode:
        """Steps `start` to `stop` of episode `index`, with the stop - start + 1 latents around."""
        frame = int(self._first_frame[index])
        step = int(self._first_step[index])
        frames = slice(frame + start, frame + stop + 1)
        steps = slice(step + start, step + stop)
        try:
            return EncodedEpisode(
                mean=self._file["mean"][frames],
                logvar=self._file["logvar"][frames],
                actions=self._file["actions"][steps],
                rewards=self._file["rewards"][steps],
                terminated=self._file["terminated"][steps],
                seed=int(self.seeds[index]),
            )
        except OSError as error:
            raise self._damaged(error) from error

    def episode(self, index: int) -> EncodedEpisode:
        """Episode `index`."""
        return self.read(index, 0, int(self.lengths[index]))

    def first_latents(self) -> FirstLatents:
        """Of each episode."""
        rows = self._first_frame[:-1]
        try:
            return FirstLatents(self._file["mean"][rows], self._file["logvar"][rows])
        except OSError as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> DataError:
        line = " ".join(str(error).split())
        return DataError(f"{self.path} is damaged ({line}); delete it and run stage=rnn again")
