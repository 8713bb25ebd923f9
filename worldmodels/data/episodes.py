"""A set of recorded episodes in several shards."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from worldmodels.data.hdf5 import OpenFiles
from worldmodels.data.shards import Episode, Shard
from worldmodels.errors import DataError
from worldmodels.runs.integrity import Listed


class EpisodeSet:
    """The episodes of several shards under one numbering, from 0; `open` and `listed` make it.

    Args:
        shards: in the order of their episodes.
        skipped: paths of damaged shards that were left out.
    """

    def __init__(self, shards: list[Shard], skipped: list[Path]) -> None:
        self.shards, self.skipped = shards, skipped
        self.lengths = np.concatenate([shard.lengths for shard in shards])
        self.seeds = np.concatenate([shard.seeds for shard in shards])
        self.parents = np.concatenate([shard.parents for shard in shards])
        self._first = np.concatenate([[0], np.cumsum([len(s.lengths) for s in shards])])
        digest = hashlib.sha256("".join(shard.digest for shard in shards).encode())
        self.fingerprint = digest.hexdigest()[:16]

    @classmethod
    def open(cls, folders: Sequence[Path], on_corrupt: str = "refuse") -> EpisodeSet:
        """Open every ``shard-*.h5`` of some folders without their manifests, in the order of names.

        Args:
            folders: one after another.
            on_corrupt: see `listed`; so are the errors.
        """
        paths = [path for folder in folders for path in sorted(folder.glob("shard-*.h5"))]
        if not paths:
            raise DataError(f"{folders[0]} has no shard; run stage=rollouts")
        return cls.listed([Listed(path) for path in paths], on_corrupt)

    @classmethod
    def listed(cls, files: Sequence[Listed], on_corrupt: str = "refuse") -> EpisodeSet:
        """Open the shards that manifests list.

        Args:
            files: in the order their episodes are numbered.
            on_corrupt: "refuse" raises at the first shard that its SHA-256 or structure shows to be
                missing or damaged; "skip" reads every shard whole first, leaves damaged ones
                out and logs them.

        Raises:
            DataError: a damaged shard (refuse), no shard that is not, or frames of several shapes.
            ArtifactError: a shard that cannot be read.
        """
        shards: list[Shard] = []
        skipped: list[Path] = []
        opened = OpenFiles()
        for file in files:
            try:
                shard = Shard(file, opened)
                if on_corrupt == "skip":
                    shard.verify()
                shards.append(shard)
            except DataError as error:
                if on_corrupt != "skip":
                    raise
                logging.getLogger(__name__).warning("left out: %s", error)
                skipped.append(file.path)
        if not shards:
            where = f"{files[0].path.parent}: no" if files else "no"
            raise DataError(f"{where} shard can be read; run stage=rollouts")
        for shard in shards:
            if shard.frame_shape != shards[0].frame_shape:
                raise DataError(
                    f"{shard.path}: frames of {shard.frame_shape}, those of {shards[0].path} are"
                    f" {shards[0].frame_shape}; collect all with the same env"
                )
        return cls(shards, skipped)

    @property
    def num_episodes(self) -> int:
        """The number of episodes."""
        return len(self.lengths)

    @property
    def num_frames(self) -> int:
        """The number of frames of all episodes."""
        return int((self.lengths + 1).sum())

    @property
    def frame_shape(self) -> tuple[int, ...]:
        """Shape of a frame: (height, width, 3)."""
        return self.shards[0].frame_shape

    @property
    def branches(self) -> np.ndarray:
        """Which episodes continue another one from a moment within it: (episodes,) bool."""
        branches: np.ndarray = self.parents != self.seeds
        return branches

    def find(self, index: int) -> tuple[Shard, int]:
        """The shard of episode `index`, and its index in that shard."""
        number = int(np.searchsorted(self._first, index, side="right")) - 1
        return self.shards[number], index - int(self._first[number])

    def episode(self, index: int) -> Episode:
        """Episode `index`, read into memory; raises `DataError` if it is damaged."""
        shard, local = self.find(index)
        return shard.read_episode(local)

    def frames(self, index: int, start: int, stop: int) -> np.ndarray:
        """Frames `start` to `stop` of episode `index`, (stop - start, height, width, 3) uint8."""
        shard, local = self.find(index)
        first = shard.first_frame(local)
        return shard.read_frames(first + start, first + stop)

    def returns(self) -> np.ndarray:
        """The sum of rewards of each episode, (episodes,) float64."""
        return np.concatenate([shard.returns() for shard in self.shards])

    def split(self, validation_fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Divide the episodes into training and validation, with at least one each.

        A hash of an episode's seed and `seed` decides, so that an episode stays on its side when
        the set grows, unless a side would be empty. Branches are on the side of their parent.

        Args:
            validation_fraction: expected share of validation episodes, between 0 and 1.
            seed: of the division.

        Returns:
            indices of the training episodes and of the validation episodes.

        Raises:
            DataError: fewer than two episodes, not counting branches.
        """
        ranks = np.array([_unit_hash(seed, int(parent)) for parent in self.parents])
        if len(np.unique(ranks)) < 2:
            raise DataError("one episode cannot be split: collect more with rollouts.episodes")
        validation = ranks < validation_fraction
        if not validation.any():
            validation = ranks == ranks.min()
        if validation.all():
            validation = ranks != ranks.max()
        return np.flatnonzero(~validation), np.flatnonzero(validation)


def _unit_hash(seed: int, episode: int) -> float:
    digest = hashlib.sha256(f"{seed} {episode}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
