"""Mini-batches of shuffled frames, or of their clips, streamed from the shards."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from worldmodels.data.clips import clip_rows
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
        clip_length: C, frames of a clip: a frame and those before it. A run is read with the C - 1
            frames before it, and a frame is copied once for each clip only where a batch is cut.
    """

    def __init__(
        self,
        episodes: EpisodeSet,
        indices: np.ndarray,
        batch_size: int,
        seed: int,
        shuffle: bool,
        clip_length: int = 1,
    ) -> None:
        self._episodes, self._batch_size = episodes, batch_size
        self._clip_length = clip_length
        run_bytes = (FRAMES_A_CHUNK + clip_length - 1) * int(np.prod(episodes.frame_shape))
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
        """Batches (B, height, width, 3) uint8 of epoch `number`, from batch `start` on.

        With a clip length above 1 they are (B, C, height, width, 3), as `worldmodels.data.clips`
        cuts them.
        """
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
            # Where all of these batches are before `start`, only what the pool leaves over is read.
            skipped = emitted + whole <= start and over <= count
            frames, rows = self._read(part, order[count - over :] if skipped else order)
            if skipped:
                rest, emitted = frames[rows], emitted + whole
                continue
            begin = 0
            for _ in range(whole):
                end = begin + self._batch_size - left
                if emitted >= start:
                    batch = frames[rows[begin:end]]
                    yield batch if rest is None or not left else np.concatenate([rest, batch])
                emitted, begin, left = emitted + 1, end, 0
            tail = frames[rows[begin:]]
            rest = tail if rest is None or not left else np.concatenate([rest, tail])
        if rest is not None and len(rest) and start <= emitted < len(self):
            yield rest

    def _read(self, runs: np.ndarray, order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The frames of `runs`, and where those of some clips are among them.

        Args:
            runs: (n, 3), of which those without such a clip are not read.
            order: newest frames of the clips: numbers into the concatenation of the runs.

        Returns:
            frames (m, height, width, 3), and `clip_rows` into them.
        """
        before = np.minimum(runs[:, 1], self._clip_length - 1)  # read with each run
        numbers = np.concatenate([[0], np.cumsum(runs[:, 2] - runs[:, 1])])
        places = np.concatenate([[0], np.cumsum(runs[:, 2] - runs[:, 1] + before)])
        of = np.searchsorted(numbers, order, side="right") - 1
        wanted = np.zeros(len(runs), bool)
        wanted[of] = True
        frames = np.empty((int(places[-1]), *self._episodes.frame_shape), np.uint8)
        # By episode, for few files are open at a time and opening one takes longer than reading.
        for run in np.lexsort((runs[:, 1], runs[:, 0])):
            if wanted[run]:
                index, start, stop = (int(part) for part in runs[run])
                found = self._episodes.frames(index, start - int(before[run]), stop)
                frames[places[run] : places[run + 1]] = found
        last = places[of] + before[of] + order - numbers[of]
        return frames, clip_rows(last, places[of], self._clip_length)
