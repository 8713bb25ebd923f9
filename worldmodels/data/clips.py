"""Clips: a frame of an episode and those before it, for encoders that take several frames.

The clip of frame t, of C frames, is frames t - C + 1 to t. Before the first frame of an episode
stands that frame itself, as often as needed, so that every frame has a clip, however short the
episode. `worldmodels.worlds.clips` makes the same of frames as they come.
"""

from __future__ import annotations

import numpy as np

from worldmodels.data.episodes import EpisodeSet


def clips(frames: np.ndarray, start: int, stop: int, length: int) -> np.ndarray:
    """The clips of frames `start` to `stop` of an episode.

    Args:
        frames: of the episode from its first one on, uint8 (T + 1, height, width, 3).
        start: the first frame that has a clip in the result.
        stop: the frame after the last.
        length: C, frames of a clip.

    Returns:
        uint8 (stop - start, C, height, width, 3), the oldest frame first; of length 1 the frames
        (stop - start, height, width, 3), a view.
    """
    if length == 1:
        return frames[start:stop]
    gathered: np.ndarray = frames[clip_rows(np.arange(start, stop), 0, length)]
    return gathered


def read_clip(episodes: EpisodeSet, index: int, time: int, length: int) -> np.ndarray:
    """The clip of frame `time` of an episode as `clips` returns it; no other frame is read."""
    first = max(0, time - length + 1)
    return clips(episodes.frames(index, first, time + 1), time - first, time - first + 1, length)


def clip_rows(last: np.ndarray, first: np.ndarray | int, length: int) -> np.ndarray:
    """Where the frames of clips are in an array of frames.

    Args:
        last: (n,), where the newest frame of each clip is.
        first: (n,) or one for all, before which no frame is of the clip's episode.
        length: C.

    Returns:
        (n, C) int64; of length 1 (n,).
    """
    if length == 1:
        return last
    rows: np.ndarray = last[:, None] + np.arange(1 - length, 1)
    rows = np.maximum(rows, np.reshape(first, (-1, 1)))
    return rows
