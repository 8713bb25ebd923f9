"""The characters of the score, as pygame's own font draws them at 42 pixels.

``glyphs.npz`` holds them, so that drawing a score needs neither pygame nor a font. It was written
by ``python -m worldmodels.envs.carracing.glyphs``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

CHARACTERS = "0123456789-"
MINUS = 10
HEIGHT = 46
_PATH = Path(__file__).with_suffix(".npz")


def _load() -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    with np.load(_PATH, allow_pickle=False) as stored:
        advance = stored["advance"].astype(np.int64)
        images = stored["images"].astype(np.float64) / 255
    sums = np.zeros((len(CHARACTERS), HEIGHT + 1, images.shape[2] + 1))
    sums[:, 1:, 1:] = images.cumsum(axis=1).cumsum(axis=2)
    return advance, sums


ADVANCE, SUMS = _load() if _PATH.exists() else (np.zeros((12, 11), np.int64), np.zeros((11, 1, 1)))
"""Pixels from a character to the next, ``(11, 11)`` with kerning, row 11 the width of the last;
and the sum of each one's coverage above and left of a point, ``(11, 47, width + 1)``."""


def main() -> None:
    """Draw the characters and write them."""
    import pygame

    pygame.font.init()
    font = pygame.font.Font(pygame.font.get_default_font(), 42)

    def drawn(text: str) -> NDArray[np.uint8]:
        surface = font.render(text, True, (255, 255, 255), (0, 0, 0))
        return np.asarray(pygame.surfarray.array3d(surface)[..., 0].T, np.uint8)

    single = [drawn(character) for character in CHARACTERS]
    images = np.zeros((len(single), HEIGHT, max(s.shape[1] for s in single)), np.uint8)
    advance = np.zeros((len(single) + 1, len(single)), np.uint8)
    for i, image in enumerate(single):
        images[i, :, : image.shape[1]] = image
        advance[-1, i] = image.shape[1]
        for j, other in enumerate(single):
            advance[i, j] = drawn(CHARACTERS[i] + CHARACTERS[j]).shape[1] - other.shape[1]
    np.savez_compressed(_PATH, images=images, advance=advance)


if __name__ == "__main__":
    main()
