"""Episodes as other programs record them, and the runs that import them."""

from pathlib import Path
from typing import Any

import numpy as np
from command import composed

import worldmodels
from worldmodels.config import limits
from worldmodels.data.shards import Episode
from worldmodels.stages import dispatch

STEPS = 12
SMALL = ("env.size=16", "env.crop_rows=null", "run=other")


def arrays(seed: int, steps: int = STEPS, side: int = 16) -> dict[str, Any]:
    """The arrays of an archive; the pictures are blocks of one colour, which videos keep."""
    rng = np.random.default_rng(seed)
    return {
        "observations": rng.integers(0, 256, (steps + 1, 2, 2, 3), np.uint8)
        .repeat(side // 2, axis=1)
        .repeat(side // 2, axis=2),
        "actions": rng.normal(size=(steps, 2)).astype(np.float32),
        "rewards": rng.normal(size=steps).astype(np.float32),
        "terminations": np.arange(steps) == steps - 1,
    }


def archives(folder: Path, count: int = 3, steps: int = STEPS, side: int = 16) -> Path:
    folder.mkdir()
    for number in range(count):
        np.savez(folder / f"episode-{number}.npz", **arrays(number, steps, side))
    return folder


def imported(data: Path, source: Path, form: str, *words: str) -> list[Episode]:
    """The episodes of a run after ``stage=import``."""
    stage(data, "stage=import", f"format={form}", f"source='{source}'", *SMALL, *words)
    return list(worldmodels.load_episodes(data / "other"))


def stage(data: Path, *words: str) -> None:
    config = composed(*words, f"data='{data}'")
    limits.check(config)
    dispatch.run_alone(config)


def shards(data: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in data.rglob("shard-*.h5")}
