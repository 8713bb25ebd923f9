"""Codecs and chunk lengths for recorded frames.

Rewrites the frames of one shard with each, and times what training does: reading single frames and
windows of consecutive ones at random places, from the page cache::

    python benchmarks/shard_codecs.py data/<run>/rollouts
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
from rich.table import Table

from worldmodels.data.episodes import EpisodeSet
from worldmodels.runs.tracking import console

CODECS: dict[str, Mapping[str, Any]] = {
    "none": {},
    "gzip-4": {"compression": "gzip", "compression_opts": 4},
    "lzf": {"compression": "lzf"},
    "blosc lz4-5": hdf5plugin.Blosc("lz4", 5, hdf5plugin.Blosc.NOSHUFFLE),
    "blosc zstd-1": hdf5plugin.Blosc("zstd", 1, hdf5plugin.Blosc.NOSHUFFLE),
    "blosc zstd-3": hdf5plugin.Blosc("zstd", 3, hdf5plugin.Blosc.NOSHUFFLE),
    "blosc zstd-3 shuffled": hdf5plugin.Blosc("zstd", 3, hdf5plugin.Blosc.SHUFFLE),
    "blosc zstd-6": hdf5plugin.Blosc("zstd", 6, hdf5plugin.Blosc.NOSHUFFLE),
    "zstd-3": hdf5plugin.Zstd(3),
}
CHUNKS = (1, 4, 16, 64)
WINDOW, READS = 100, 200


def each(reads: int, read: Callable[[], object]) -> float:
    """Milliseconds of one of many reads."""
    began = time.perf_counter()
    for _ in range(reads):
        read()
    return 1e3 * (time.perf_counter() - began) / reads


def measure(frames: np.ndarray, codec: Mapping[str, Any], chunk: int, path: Path) -> list[str]:
    """The cells of one line: ratio, writing, a frame, a window."""
    rng = np.random.default_rng(0)
    began = time.perf_counter()
    with h5py.File(path, "w") as file:
        shape = (chunk, *frames.shape[1:])
        file.create_dataset("frames", data=frames, chunks=shape, fletcher32=True, **codec)
    written = frames.nbytes / 2**20 / (time.perf_counter() - began)
    with h5py.File(path, "r", rdcc_nbytes=0) as file:  # no chunk is read twice by luck
        data = file["frames"]
        places = iter(rng.integers(0, len(frames) - WINDOW, 2 * READS))

        def frame() -> np.ndarray:
            return np.asarray(data[next(places)])

        def window() -> np.ndarray:
            start = next(places)
            return np.asarray(data[start : start + WINDOW])

        one, many = each(READS, frame), each(READS // 4, window)
    ratio = frames.nbytes / path.stat().st_size
    return [f"{ratio:.1f}", f"{written:,.0f}", f"{one:.2f}", f"{many:.1f}"]


def main() -> None:
    """Measure every codec at the chunk in use, and every chunk with the codec in use."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rollouts", type=Path)
    shard = EpisodeSet.open([parser.parse_args().rollouts]).shards[0]
    frames = shard.read_frames(0, shard.num_frames)
    table = Table("codec", "frames a chunk", "ratio", "MB/s written", "ms a frame", "ms a window")
    pairs = [(name, 16) for name in CODECS]
    pairs += [("blosc zstd-3", chunk) for chunk in CHUNKS if chunk != 16]
    with tempfile.TemporaryDirectory() as folder:
        for name, chunk in pairs:
            cells = measure(frames, CODECS[name], chunk, Path(folder) / "shard.h5")
            table.add_row(name, str(chunk), *cells)
    console.print(f"{len(frames):,} frames; a window is {WINDOW} frames")
    console.print(table)


if __name__ == "__main__":
    main()
