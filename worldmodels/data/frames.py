"""Mini-batches of shuffled frames, streamed from the shards."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from worldmodels.data.episodes import EpisodeSet
from worldmodels.data.shards import FRAMES_A_CHUNK

RUNS_A_POOL = 256
POOL_BYTES = 2**29
"""Of a pool of large frames, which has fewer runs."""


class FrameBatches:
    """Batches in which every frame of some episodes occurs once per epoch.

    Shuffling reads runs of `FRAMES_A_CHUNK` consecutive frames in random order, mixes
    `RUNS_A_POOL` of them in a pool and cuts batches from it: reading costs a sixteenth of what
    single frames would, and memory is that of two pools (100 MB at 64x64, at most 1 GiB) however
    large the data.

    The order is a function of (seed, epoch), so that a run resumes at any batch.

    Args:
        episodes: the data set.
        indices: of the episodes to use.
        batch_size: B, frames of a batch.
        seed: of the order.
        shuffle: in random order, without the last batch where it would be smaller; False is in
            order, with it.
    """

    def __init__(
        self,
        episodes: EpisodeSet,
        indices: np.ndarray,
        batch_size: int,
        seed: int,
        shuffle: bool,
    ) -> None:
        self._episodes, self._batch_size = episodes, batch_size
        run_bytes = FRAMES_A_CHUNK * int(np.prod(episodes.frame_shape))
        self._runs_a_pool = max(1, min(RUNS_A_POOL, POOL_BYTES // run_bytes))
        self._seed, self._shuffle = seed, shuffle
        self._runs = np.array(
            [
                (index, start, min(start + FRAMES_A_CHUNK, episodes.lengths[index] + 1))
                for index in np.asarray(indices)
                for start in range(0, int(episodes.lengths[index]) + 1, FRAMES_A_CHUNK)
            ],
            np.int64,
        )  # (runs, 3): episode, first frame, frame after the last

    def __len__(self) -> int:
        """The number of batches in an epoch."""
        frames = int((self._runs[:, 2] - self._runs[:, 1]).sum())
        if self._shuffle and frames >= self._batch_size:
            return frames // self._batch_size
        return -(-frames // self._batch_size)

    def epoch(self, number: int, start: int = 0) -> Iterator[np.ndarray]:
        """Batches (B, height, width, 3) uint8 of epoch `number`, from batch `start` on."""
        rng = np.random.default_rng([self._seed, number])
        runs = rng.permutation(self._runs) if self._shuffle else self._runs
        rest: np.ndarray | None = None  # what the pool before left over
        emitted = 0
        for pool_start in range(0, len(runs), self._runs_a_pool):
            part = runs[pool_start : pool_start + self._runs_a_pool]
            count = int((part[:, 2] - part[:, 1]).sum())
            order = rng.permutation(count) if self._shuffle else np.arange(count)
            left = 0 if rest is None else len(rest)
            whole, over = divmod(left + count, self._batch_size)
            if emitted + whole <= start and over <= count:
                # All of these batches are before `start`: read only what the pool leaves over.
                rest, emitted = self._read(part, order[count - over :]), emitted + whole
                continue
            pool = self._read(part, order)
            if rest is not None:
                pool = np.concatenate([rest, pool])
            for offset in range(0, whole * self._batch_size, self._batch_size):
                if emitted >= start:
                    yield pool[offset : offset + self._batch_size]
                emitted += 1
            rest = pool[whole * self._batch_size :]
        if rest is not None and len(rest) and start <= emitted < len(self):
            yield rest

    def _read(self, runs: np.ndarray, order: np.ndarray) -> np.ndarray:
        """The frames of `runs` in `order`, numbers into their concatenation."""
        offsets = np.concatenate([[0], np.cumsum(runs[:, 2] - runs[:, 1])])
        wanted = np.zeros(int(offsets[-1]), bool)
        wanted[order] = True
        frames = np.empty((int(offsets[-1]), *self._episodes.frame_shape), np.uint8)
        # By episode, for few files are open at a time and opening one takes longer than reading.
        for number in np.lexsort((runs[:, 1], runs[:, 0])):
            begin, end = offsets[number : number + 2]
            if wanted[begin:end].any():
                frames[begin:end] = self._episodes.frames(*(int(part) for part in runs[number]))
        shuffled: np.ndarray = frames[order]
        return shuffled
