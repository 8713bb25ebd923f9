"""The latest frames of running episodes, as clips for the encoder.

They are those that `worldmodels.data.clips` cuts of recorded episodes. Shapes are in the letters of
docs/shapes.md: N environments, C frames of a clip, S side of a frame.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Clips:
    """The clips of N environments; with a length of 1 their frames, of which none is kept.

    Args:
        length: C, frames of a clip.
    """

    def __init__(self, length: int) -> None:
        self._length = length
        self._latest: Tensor | None = None  # (N, C, S, S, 3)
        self._earlier: Tensor | None = None  # (N, C - 1, S, S, 3): what the next clips begin with

    def begin(self) -> None:
        """The next frames are the first of their episodes."""
        self._latest = self._earlier = None

    def add(
        self, frames: Tensor, first: Tensor | None = None, rows: Tensor | None = None
    ) -> Tensor:
        """The clips that end with new frames.

        Args:
            frames: uint8 (N, S, S, 3), on the device of those before.
            first: (N,) bool, which of them are the first of an episode; None is none, or all after
                `begin`.
            rows: (N,) bool, the environments whose clips are kept; the others keep theirs of
                before, and what is returned for them is of no use. None: all.

        Returns:
            uint8 (N, C, S, S, 3), the oldest frame first; of length 1 `frames` itself.
        """
        if self._length == 1:
            return frames
        newest = frames.unsqueeze(1)  # (N, 1, S, S, 3)
        repeated = newest.expand(-1, self._length - 1, -1, -1, -1)
        if self._earlier is None:
            earlier = repeated
        elif first is None:
            earlier = self._earlier
        else:
            earlier = torch.where(first.view(-1, 1, 1, 1, 1), repeated, self._earlier)
        clips = torch.cat([earlier, newest], dim=1)
        if rows is not None and self._latest is not None:
            self._hold(torch.where(rows.view(-1, 1, 1, 1, 1), clips, self._latest))
            return clips
        return self._hold(clips)

    def keep(self, index: Tensor) -> None:
        """Keep the environments of `index`, (N,) bool or their numbers."""
        if self._latest is not None:
            self._hold(self._latest[index])

    def before(self, row: int) -> Tensor | None:
        """The frames before the newest in the clip of an environment, (1, C - 1, S, S, 3); None of
        length 1."""
        return None if self._latest is None else self._latest[row : row + 1, :-1].clone()

    def resume(self, earlier: Sequence[Tensor | None]) -> None:
        """Continue from what `before` returned, for each of the N environments."""
        found = [part for part in earlier if part is not None]
        self._earlier = torch.cat(found) if found else None

    def _hold(self, latest: Tensor) -> Tensor:
        self._latest, self._earlier = latest, latest[:, 1:]
        return latest
