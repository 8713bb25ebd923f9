"""Shards of other origin, damaged or built to do harm."""

from __future__ import annotations

import functools
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import hdf5plugin  # noqa: F401 - the codec of the shards
import numpy as np
from harness import (
    HUNG,
    REFUSAL_BYTES,
    REFUSAL_SECONDS,
    Bench,
    Case,
    Surroundings,
    fault,
    run,
    smoke_command,
)


def foreign(bench: Bench, folder: Path) -> Iterator[Case]:
    """Shards of other origin."""
    for harm in (
        *(_external_storage, _external_link, _soft_link, _virtual, _bomb, _bomb_of_lengths),
        *(_wrong_type, _wrong_shape, _not_finite, _nothing, _pipe, _endless, _stray, _missing),
        *(_text, _negative_lengths, _deep_group),
    ):
        check = functools.partial(_foreign, bench, harm)
        yield Case("foreign", harm.__name__.strip("_").replace("_", " "), check)


def _foreign(bench: Bench, harm: Callable[[Path], None], folder: Path) -> str | None:
    data = bench.copy(folder, "rollouts")
    shard = data / "smoke/rollouts/shard-00001.h5"
    harm(shard)
    done = run(
        data, *smoke_command("stage=vae"), around=Surroundings(memory=REFUSAL_BYTES), timeout=45
    )
    if done.seconds > REFUSAL_SECONDS and done.code != HUNG:
        return f"took {done.seconds:.0f} s"
    if harm is _stray:
        return _same_vae(bench, data) if done.code == 0 else done.errors
    return fault(done, data, "shard-", str(shard.parent))


def _same_vae(bench: Bench, data: Path) -> str | None:
    """The VAE learns from the shards that the manifest lists, and from no others."""
    made, quiet = (
        json.loads((place / "smoke/vae/manifest.json").read_text())["fingerprint"]
        for place in (data, bench.smoke)
    )
    return None if made == quiet else "it learned from a shard that the manifest does not list"


def _replace(shard: Path, name: str, **how: object) -> None:
    """Put another data set in the place of one of the shard's."""
    with h5py.File(shard, "r+") as file:
        del file[name]
        file.create_dataset(name, **how)


def _external_storage(shard: Path) -> None:
    with h5py.File(shard) as file:
        shape = file["frames"].shape
    secret = shard.parent.parent / "secret"
    secret.write_bytes(b"secret" * int(np.prod(shape)))
    external = [(str(secret), 0, int(np.prod(shape)))]
    _replace(shard, "frames", shape=shape, dtype=np.uint8, external=external)


def _external_link(shard: Path) -> None:
    other = shard.parent.parent / "other.h5"
    shutil.copy(shard, other)
    with h5py.File(shard, "r+") as file:
        del file["frames"]
        file["frames"] = h5py.ExternalLink(str(other), "/frames")


def _soft_link(shard: Path) -> None:
    with h5py.File(shard, "r+") as file:
        file.move("frames", "hidden")
        file["frames"] = h5py.SoftLink("/hidden")


def _virtual(shard: Path) -> None:
    other = shard.parent.parent / "other.h5"
    shutil.copy(shard, other)
    with h5py.File(shard, "r+") as file:
        shape = file["frames"].shape
        layout = h5py.VirtualLayout(shape, np.uint8)
        layout[:] = h5py.VirtualSource(str(other), "frames", shape)
        del file["frames"]
        file.create_virtual_dataset("frames", layout)


def _bomb(shard: Path) -> None:
    with h5py.File(shard) as file:
        rows = file["frames"].shape[0]
    shape = (rows, 2**16, 2**16, 3)
    _replace(shard, "frames", shape=shape, dtype=np.uint8, chunks=(1, 64, 64, 3))


def _bomb_of_lengths(shard: Path) -> None:
    _replace(shard, "lengths", shape=(2**40,), dtype=np.int64, chunks=(4096,))


def _wrong_type(shard: Path) -> None:
    with h5py.File(shard) as file:
        frames = file["frames"][:].astype(np.float64)
    _replace(shard, "frames", data=frames)


def _wrong_shape(shard: Path) -> None:
    with h5py.File(shard) as file:
        frames = file["frames"][:, :32]
    _replace(shard, "frames", data=frames)


def _not_finite(shard: Path) -> None:
    with h5py.File(shard) as file:
        rewards = np.full_like(file["rewards"][:], np.nan)
    _replace(shard, "rewards", data=rewards)


def _negative_lengths(shard: Path) -> None:
    with h5py.File(shard) as file:
        lengths = file["lengths"][:]
    lengths[0], lengths[1] = -lengths[1], 2 * lengths[1] + lengths[0]
    _replace(shard, "lengths", data=lengths)


def _deep_group(shard: Path) -> None:
    with h5py.File(shard, "r+") as file:
        del file["frames"]
        file.create_group("frames/" + "/".join("x" * 200))


def _nothing(shard: Path) -> None:
    shard.write_bytes(b"")


def _text(shard: Path) -> None:
    shard.write_text("not a shard\n")


def _pipe(shard: Path) -> None:
    shard.unlink()
    os.mkfifo(shard)


def _endless(shard: Path) -> None:
    shard.unlink()
    shard.symlink_to("/dev/zero")


def _stray(shard: Path) -> None:
    shutil.copy(shard, shard.with_name("shard-00099.h5"))


def _missing(shard: Path) -> None:
    shard.unlink()
