"""Which moving things the encoders of shipped agents keep, on new episodes: minutes on one core.

    python benchmarks/vision.py

A region is a group of adjacent pixels that differ from the frame before by more than `CHANGE`. It
is kept if the squared error of its reconstruction from the mean latent is at most a quarter of its
squared change: more than half of the change is there. Edges of scenery that moves count as well.
Writes ``vision.json``.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from calibration import CASES, played
from probe import PATH
from scipy import ndimage

from worldmodels import seeds
from worldmodels.agents.folder import read_agent
from worldmodels.files.atomic import write_json
from worldmodels.models.encoder import Encoder, to_input
from worldmodels.runs.provenance import provenance
from worldmodels.runs.tracking import say

CHANGE = 0.15
"""Of the range of a colour."""
SIZES = (1, 4, 16, 64)
"""Smallest number of pixels of each row of the table."""


def regions(frames: np.ndarray, decoded: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sizes in pixels, and whether they are kept, of the moving regions of an episode.

    Args:
        frames: (T, H, W, 3) in [0, 1].
        decoded: their reconstructions, likewise.
    """
    sizes, kept = [], []
    for before, frame, found in zip(frames, frames[1:], decoded[1:], strict=False):
        difference = np.abs(frame - before).max(axis=-1)
        labels, count = ndimage.label(difference > CHANGE, np.ones((3, 3)))
        numbers = np.arange(1, count + 1)
        change = ndimage.sum(((frame - before) ** 2).sum(axis=-1), labels, numbers)
        error = ndimage.sum(((frame - found) ** 2).sum(axis=-1), labels, numbers)
        sizes.append(np.bincount(labels.ravel(), minlength=count + 1)[1:])
        kept.append(error <= 0.25 * change)
    return np.concatenate(sizes), np.concatenate(kept)


@torch.inference_mode()
def reconstructed(encoder: Encoder, frames: np.ndarray) -> np.ndarray:
    """Frames (T, H, W, 3) uint8 from their mean latents: floats in [0, 1]."""
    parts = [
        encoder.decode(encoder.encode(to_input(torch.from_numpy(part))).mean)
        for part in np.array_split(frames, -(-len(frames) // 256))
    ]
    return torch.cat(parts).permute(0, 2, 3, 1).numpy()


def measure(name: str, encoder: Encoder, episodes: Sequence[np.ndarray]) -> dict[str, Any]:
    """Regions by size, over frames (T, H, W, 3) uint8 of each episode."""
    found = [regions(frames / 255.0, reconstructed(encoder, frames)) for frames in episodes]
    sizes, kept = (np.concatenate(part) for part in zip(*found, strict=True))
    rows = []
    for least, above in zip(SIZES, (*SIZES[1:], np.inf), strict=True):
        chosen = (sizes >= least) & (sizes < above)
        share = float(kept[chosen].mean()) if chosen.any() else None
        rows.append({"pixels": least, "regions": int(chosen.sum()), "kept": share})
        if share is not None:
            say(
                f"{name}: {100 * share:.0f} % of {chosen.sum():,} regions of {least} pixels or more"
            )
    return {"name": name, "frames": sum(map(len, episodes)), "sizes": rows}


def main() -> None:
    """Measure each agent, print and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--agents", type=Path, default=Path("pretrained"))
    parser.add_argument("--episodes", type=int, default=4, help="of each agent")
    parser.add_argument("--out", type=Path, default=Path("data/vision.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    drawn = seeds.draw(seeds.Purpose.ROLLOUTS, 1, PATH, count=options.episodes)
    figures = []
    for case in CASES:
        if case.noise:
            continue
        with tempfile.TemporaryDirectory() as folder:
            episodes = played(case, options.agents, drawn, Path(folder))
            frames = [episodes.episode(i).frames for i in range(episodes.num_episodes)]
        encoder = read_agent(options.agents / case.env).encoder.to(torch.float32)
        figures.append(measure(case.name, encoder, frames))
    write_json(options.out, {**provenance(), "figures": figures})
    say(f"wrote {options.out}; python docs/render.py {options.out} puts it into the documentation")


if __name__ == "__main__":
    main()
