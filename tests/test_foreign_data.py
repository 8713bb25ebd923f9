"""Data files from strangers: refused in one line, before anything is read that they name."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import h5py
import hdf5plugin
import numpy as np
import pytest
from conftest import Once

from worldmodels.data.episodes import EpisodeSet
from worldmodels.data.latents import EncodedEpisode, LatentSet, write_latents
from worldmodels.data.shards import Episode, write_shard
from worldmodels.errors import DataError
from worldmodels.runs.integrity import Listed

STEPS = 40
PACKED = {"fletcher32": True, **hdf5plugin.Blosc("zstd", 3, hdf5plugin.Blosc.NOSHUFFLE)}
MANY = 10**15


@pytest.fixture(scope="module")
def whole(once: Once) -> Path:
    """A shard and a file of latents; shared."""

    def make(folder: Path) -> None:
        rng = np.random.default_rng(0)
        ends = np.arange(STEPS) == STEPS - 1
        frames = rng.integers(0, 256, (STEPS + 1, 2, 2, 3), np.uint8).repeat(4, 1).repeat(4, 2)
        actions, rewards = rng.normal(size=(STEPS, 3)), rng.normal(size=STEPS)
        actions, rewards = actions.astype(np.float32), rewards.astype(np.float32)
        episodes = [Episode(frames, actions, rewards, ends, ends & False, n) for n in range(2)]
        write_shard(folder / "shard.h5", episodes, {"env": "test"})
        mean = rng.normal(size=(STEPS + 1, 4)).astype(np.float32)
        encoded = [EncodedEpisode(mean, mean, actions, rewards, ends, n) for n in range(2)]
        write_latents(folder / "latents.h5", encoded, {"vae": "abc"})

    return once("whole", make)


def _replace(file: h5py.File, name: str, data: object, **options: object) -> None:
    del file[name]
    file.create_dataset(name, data=data, **options)


def _declare(file: h5py.File, name: str, shape: tuple[int, ...], **options: object) -> None:
    dtype = file[name].dtype
    del file[name]
    file.create_dataset(name, shape, dtype, **options)


def _external(file: h5py.File, path: Path) -> None:
    frames = file["frames"][:]
    (path.parent / "secret").write_bytes(frames.tobytes())
    del file["frames"]
    place = [(str(path.parent / "secret"), 0, frames.nbytes)]
    file.create_dataset("frames", frames.shape, np.uint8, external=place)


def _virtual(file: h5py.File, path: Path) -> None:
    shape = file["frames"].shape
    with h5py.File(path.parent / "other.h5", "w") as other:
        other["frames"] = file["frames"][:]
    layout = h5py.VirtualLayout(shape, np.uint8)
    layout[:] = h5py.VirtualSource(path.parent / "other.h5", "frames", shape)
    del file["frames"]
    file.create_virtual_dataset("frames", layout)


def _link(file: h5py.File, link: object) -> None:
    file.move("frames", "kept")
    file["frames"] = link
    del file["seeds"]


def _group(file: h5py.File) -> None:
    del file["frames"]
    file.create_group("frames")


def _lengths(file: h5py.File, values: list[int]) -> None:
    _replace(file, "lengths", np.array(values, np.int64))


def _not_finite(file: h5py.File, name: str, value: float) -> None:
    array = file[name][:]
    array.reshape(-1)[7] = value
    file[name][...] = array


def _later_end(file: h5py.File) -> None:
    ends = file["terminated"][:]
    ends[3] = True
    file["terminated"][...] = ends


def _plain(file: h5py.File, name: str) -> None:
    _replace(file, name, file[name][:], chunks=file[name].chunks)


Edit = Callable[[h5py.File, Path], None]
EDITS: dict[str, Edit] = {
    "external storage": _external,
    "external link": lambda f, p: _link(f, h5py.ExternalLink(str(p.parent / "x.h5"), "frames")),
    "soft link": lambda f, p: _link(f, h5py.SoftLink("/kept")),
    "virtual data set": _virtual,
    "group": lambda f, p: _group(f),
    "another data set": lambda f, p: f.create_dataset("more", data=np.zeros(3)),
    "data set missing": lambda f, p: f.__delitem__("rewards"),
    "texts": lambda f, p: _replace(f, "seeds", ["a", "b"], dtype=h5py.string_dtype()),
    "lists of any length": lambda f, p: _vlen(f),
    "compound": lambda f, p: _replace(f, "rewards", np.zeros(80, [("a", "f4"), ("b", "f8")])),
    "float64 frames": lambda f, p: _replace(f, "frames", f["frames"][:].astype(np.float64)),
    "float64 rewards": lambda f, p: _replace(f, "rewards", f["rewards"][:].astype(np.float64)),
    "grey frames": lambda f, p: _replace(f, "frames", f["frames"][..., 0]),
    "five dimensions": lambda f, p: _replace(f, "frames", f["frames"][:][None]),
    "four colours": lambda f, p: _replace(
        f, "frames", np.zeros((82, 8, 8, 4), np.uint8), chunks=(16, 8, 8, 4), **PACKED
    ),
    "scalar": lambda f, p: _replace(f, "rewards", np.float32(1)),
    "no dimensions at all": lambda f, p: _replace(f, "rewards", h5py.Empty(np.float32)),
    "no episode": lambda f, p: _declare(f, "lengths", (0,), maxshape=(None,)),
    "negative lengths": lambda f, p: _lengths(f, [-2, 82]),
    "zero length": lambda f, p: _lengths(f, [0, 80]),
    "lengths too large": lambda f, p: _lengths(f, [2**62, 2**62]),
    "lengths that overflow": lambda f, p: _lengths(f, [2**63 - 1, 2**63 - 1]),
    "lengths of other rows": lambda f, p: _lengths(f, [40, 41]),
    "a length too few": lambda f, p: _lengths(f, [80]),
    "lengths by the billion": lambda f, p: _declare(f, "lengths", (MANY,), chunks=(4096,)),
    "contiguous and not stored": lambda f, p: _declare(f, "rewards", (MANY,)),
    "chunks not stored": lambda f, p: _declare(
        f, "frames", (82, 8, 8, 3), chunks=(16, 8, 8, 3), **PACKED
    ),
    "rows by the billion": lambda f, p: _declare(
        f, "frames", (MANY, 8, 8, 3), chunks=(16, 8, 8, 3), **PACKED
    ),
    "frames as large as a disk": lambda f, p: _declare(
        f, "frames", (82, 2**20, 2**20, 3), chunks=(1, 64, 64, 3), **PACKED
    ),
    "a huge chunk": lambda f, p: _declare(
        f, "frames", (82, 8000, 8000, 3), chunks=(16, 8000, 8000, 3), **PACKED
    ),
    "another filter": lambda f, p: _replace(
        f, "frames", f["frames"][:], chunks=(16, 8, 8, 3), compression="gzip"
    ),
    "no checksums": lambda f, p: _plain(f, "frames"),
    "a large attribute": lambda f, p: f.attrs.create("env", np.zeros(8000, np.uint8)),
    "a reference as attribute": lambda f, p: f.attrs.create("env", f["frames"].ref),
    "no digest": lambda f, p: f.attrs.__delitem__("digest"),
    "rewards that are not finite": lambda f, p: _not_finite(f, "rewards", np.nan),
    "actions that are not finite": lambda f, p: _not_finite(f, "actions", np.inf),
    "an end before the last step": lambda f, p: _later_end(f),
}


def _vlen(file: h5py.File) -> None:
    del file["rewards"]
    file.create_dataset("rewards", (80,), h5py.vlen_dtype(np.float32))


def _bomb(path: Path) -> None:
    """A chunk whose packed form says that it is 2 GiB."""
    with h5py.File(path) as file:
        place = file["frames"].id.get_chunk_info(0).byte_offset
    with path.open("r+b") as raw:
        raw.seek(place + 4)
        raw.write((2**31 - 64).to_bytes(4, "little"))


def _overwrite(path: Path) -> None:
    """Some of what says where the data are."""
    content = bytearray(path.read_bytes())
    content[512:900] = b"\xff" * 388
    path.write_bytes(bytes(content))


def _in_place(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


def _outside(path: Path) -> None:
    place = path.parent.parent / "outside.h5"
    shutil.move(path, place)
    path.symlink_to(place)


FILES: dict[str, Callable[[Path], object]] = {
    "empty": lambda p: p.write_bytes(b""),
    "text": lambda p: p.write_text("not a data file"),
    "cut": lambda p: os.truncate(p, 4000),
    "user block": lambda p: p.write_bytes(bytes(512) + p.read_bytes()),
    "directory": lambda p: _in_place(p, Path.mkdir),
    "FIFO": lambda p: _in_place(p, os.mkfifo),
    "endless device": lambda p: _in_place(p, lambda q: q.symlink_to("/dev/zero")),
    "link out of the folder": _outside,
    "link to itself": lambda p: _in_place(p, lambda q: q.symlink_to(q)),
    "link to nothing": lambda p: _in_place(p, lambda q: q.symlink_to(q.parent / "nothing")),
    "missing": Path.unlink,
    "a chunk that grows": _bomb,
    "overwritten metadata": _overwrite,
}
READING = {"rewards that are not finite", "actions that are not finite"}
READING |= {"an end before the last step"}
"""What is known when the data are read, and not before."""


def refused(path: Path, reading: bool) -> str:
    with pytest.raises(DataError) as caught:
        episodes = EpisodeSet.listed([Listed(path)])
        assert reading
        episodes.episode(0)
    line = str(caught.value)
    assert "\n" not in line
    assert str(path) in line
    return line


@pytest.mark.parametrize("what", EDITS)
def test_a_shard_of_another_structure_is_refused(whole: Path, tmp_path: Path, what: str) -> None:
    path = tmp_path / "folder/shard-00000.h5"
    path.parent.mkdir()
    shutil.copy(whole / "shard.h5", path)
    assert EpisodeSet.open([path.parent]).episode(1).seed == 1
    with h5py.File(path, "r+") as file:
        EDITS[what](file, path)
    assert "is damaged" in refused(path, what in READING)


@pytest.mark.parametrize("what", FILES)
def test_what_is_no_shard_is_refused(whole: Path, tmp_path: Path, what: str) -> None:
    path = tmp_path / "folder/shard-00000.h5"
    path.parent.mkdir()
    shutil.copy(whole / "shard.h5", path)
    FILES[what](path)
    refused(path, reading=False)


@pytest.mark.parametrize(
    "edit",
    [
        lambda f: _lengths(f, [-2, 82]),
        lambda f: _lengths(f, [41, 40]),
        lambda f: _declare(f, "mean", (MANY, 4), chunks=(256, 4), fletcher32=True),
        lambda f: _replace(f, "logvar", f["logvar"][:, :2], chunks=(16, 2), fletcher32=True),
        lambda f: _replace(f, "mean", f["mean"][:].astype(np.float16)),
        lambda f: _not_finite(f, "mean", np.nan),
        lambda f: _not_finite(f, "logvar", np.inf),
        lambda f: f.create_dataset("more", data=np.zeros(3)),
    ],
)
def test_latents_of_another_structure_are_refused(
    whole: Path, tmp_path: Path, edit: Callable[[h5py.File], None]
) -> None:
    path = tmp_path / "latents.h5"
    shutil.copy(whole / "latents.h5", path)
    assert len(LatentSet(path).episode(1).mean) == STEPS + 1
    with h5py.File(path, "r+") as file:
        edit(file)
    with pytest.raises(DataError, match=r"latents\.h5 is damaged"):
        LatentSet(path).first_latents()
        LatentSet(path).episode(0)


def test_no_file_makes_the_process_large(whole: Path, tmp_path: Path) -> None:
    """All that declare much, in one process that may have little."""
    large = ("lengths by", "contiguous", "chunks not", "rows by", "frames as", "a huge")
    paths: list[Path] = []
    for what, edit in EDITS.items():
        if what.startswith(large):
            paths.append(tmp_path / f"shard-{len(paths):05d}.h5")
            shutil.copy(whole / "shard.h5", paths[-1])
            with h5py.File(paths[-1], "r+") as file:
                edit(file, paths[-1])
    paths.append(tmp_path / f"shard-{len(paths):05d}.h5")
    shutil.copy(whole / "shard.h5", paths[-1])
    _bomb(paths[-1])
    script = f"""
import resource
from pathlib import Path
from worldmodels.data.shards import Shard
from worldmodels.errors import DataError
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**27, used + 2**27))
for path in sorted(Path({str(tmp_path)!r}).glob("shard-*.h5")):
    try:
        Shard(path)
    except DataError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(paths) == 7


def _zeros(path: Path, steps: int, size: int = 1) -> None:
    """One episode with `size` numbers an action, packed to a thousandth."""
    shapes: dict[str, tuple[int, ...]] = {
        "frames": (steps + 1, 1, 1, 3),
        "actions": (steps, size),
        **dict.fromkeys(("rewards", "terminated", "truncated"), (steps,)),
    }
    with h5py.File(path, "r+") as file:
        for name, (rows, *others) in shapes.items():
            count = 2**21 // size
            _declare(file, name, (rows, *others), chunks=(count, *others), **PACKED)
            file[name][:count] = 0
            file.flush()
            mask, packed = file[name].id.read_direct_chunk((0,) * file[name].ndim)
            for start in range(count, rows, count):
                place = (start, *(0 for _ in others))
                file[name].id.write_direct_chunk(place, packed, mask)
        _lengths(file, [steps])
        _replace(file, "seeds", np.zeros(1, np.int64))


def test_actions_that_are_packed_to_a_thousandth_are_refused(whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "shard-00000.h5"
    shutil.copy(whole / "shard.h5", path)
    _zeros(path, 3_000_000, size=100)
    assert "it has an episode of 1,200,000,400 bytes" in refused(path, reading=False)


def test_statistics_of_what_is_packed_to_a_thousandth_need_little_memory(
    whole: Path, tmp_path: Path
) -> None:
    path = tmp_path / "shard-00000.h5"
    shutil.copy(whole / "shard.h5", path)
    _zeros(path, 20_000_000)
    assert path.stat().st_size < 2**20
    script = f"""
import resource
from pathlib import Path
from worldmodels.data.episodes import EpisodeSet
from worldmodels.data.inspection import describe
episodes = EpisodeSet.open([Path({str(tmp_path)!r})])
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, used + 2**28))
print(dict(describe(episodes))["steps"])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "20,000,000"
