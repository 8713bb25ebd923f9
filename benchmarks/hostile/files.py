"""Data files and agents that are damaged, foreign or built to harm."""

from __future__ import annotations

import functools
import json
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import hdf5plugin  # noqa: F401 - the codec of the shards
import numpy as np
from harness import (
    ALONE,
    HUNG,
    SMALL,
    STAGES,
    Bench,
    Case,
    Surroundings,
    content,
    fault,
    record,
    run,
    unprintable,
)

MEMORY = 3 * 2**30
"""Bytes that a refusal may take beside the program itself."""

QUICK_SECONDS = 30.0
"""A refusal takes less, on a busy machine as well."""

READERS: dict[str, tuple[str, ...]] = {
    "rollouts/shard-00000.h5": ("stage=vae",),
    "rollouts/manifest.json": ("stage=vae",),
    "vae/vae.safetensors": ("stage=rnn",),
    "vae/manifest.json": ("stage=rnn",),
    "rnn/latents.h5": ("stage=controller", "controller.pca_components=8"),
    "rnn/rnn.safetensors": ("stage=controller",),
    "rnn/manifest.json": ("stage=controller",),
    "controller/agent/agent.json": ("stage=evaluate",),
    "controller/agent/vae.safetensors": ("stage=evaluate",),
    "controller/agent/rnn.safetensors": ("stage=evaluate",),
    "controller/agent/controller.safetensors": ("stage=evaluate",),
    "controller/manifest.json": ("stage=evaluate",),
    "controller/metrics.csv": ("stage=report",),
    "evaluate/scores.json": ("stage=report",),
    "evaluate/manifest.json": ("stage=report",),
}
"""A file of a run, and the command that reads it next."""


def _words(*reader: str) -> tuple[str, ...]:
    return (*SMALL, ALONE, "run=smoke", *reader)


def _made_by(reader: tuple[str, ...]) -> str:
    return reader[0].removeprefix("stage=")


def _copied(bench: Bench, folder: Path, reader: tuple[str, ...]) -> Path:
    """A data folder with what the command reads, and not what it makes."""
    made = _made_by(reader)
    return bench.copy(folder, *(STAGES if made == "report" else STAGES[: STAGES.index(made)]))


def flips(bench: Bench, folder: Path) -> Iterator[Case]:
    """Bit flips and cuts anywhere in a file: the command that reads it refuses it by name, or makes
    what it makes from the whole file."""
    files = list(READERS)
    for number in range(bench.cases):
        name = files[number % len(files)]
        place, cut = bench.rng.random(), bench.rng.random() < 0.3
        check = functools.partial(_flipped, bench, name, place, cut)
        yield Case("flips", f"{name} {'cut' if cut else 'flipped'} at {place:.6f}", check)
    logs = sorted((bench.smoke / "smoke/controller").glob("*.jsonl"))
    for log in logs:
        for _ in range(max(1, bench.cases // len(files))):
            place = bench.rng.random()
            check = functools.partial(_log_flipped, bench, log.name, place)
            yield Case("flips", f"controller/{log.name} flipped at {place:.6f}", check)


def damage(path: Path, place: float, cut: bool) -> None:
    """Flip a bit of a file, or cut it, at a place from 0 to 1."""
    data = bytearray(path.read_bytes())
    bit = int(place * len(data) * 8)
    if cut:
        del data[bit // 8 :]
    else:
        data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def _fingerprint(data: Path, stage: str) -> str | None:
    path = data / "smoke" / stage / "manifest.json"
    return record(path).get("fingerprint") if path.exists() else None


def _flipped(bench: Bench, name: str, place: float, cut: bool, folder: Path) -> str | None:
    reader = READERS[name]
    data = _copied(bench, folder, reader)
    path = data / "smoke" / name
    damage(path, place, cut)
    done = run(data, *_words(*reader), patience=120)
    if done.code != 0:
        return fault(done, data, str(path.name), str(path.parent))
    made = _made_by(reader)
    if made == "report":
        return None if name.endswith("metrics.csv") else _same_report(bench, data, name)
    wanted = _reference(bench, reader)
    found = _fingerprint(data, made)
    return None if found == wanted else f"made {found} from it and not {wanted}, with code 0"


def _same_report(bench: Bench, data: Path, name: str) -> str | None:
    """A report of a damaged file is right if what it read means the same."""
    try:
        same = record(data / "smoke" / name) == record(bench.smoke / "smoke" / name)
    except ValueError:
        return "a page was made of a file that is no JSON"
    return None if same else "a page was made of other values, with code 0"


_references: dict[tuple[str, ...], str | None] = {}


def _reference(bench: Bench, reader: tuple[str, ...]) -> str | None:
    if len(reader) == 1:
        return _fingerprint(bench.smoke, _made_by(reader))
    if reader not in _references:
        folder = bench.smoke.parent / "references" / str(len(_references)) / str(os.getpid())
        shutil.rmtree(folder, ignore_errors=True)
        data = _copied(bench, folder, reader)
        run(data, *_words(*reader))
        _references[reader] = _fingerprint(data, _made_by(reader))
    return _references[reader]


def _log_flipped(bench: Bench, name: str, place: float, folder: Path) -> str | None:
    """The log of an unfinished search: the search goes on from it, or refuses it."""
    reader = ("stage=controller",)
    data = bench.copy(folder, *STAGES[:4])
    manifest = data / "smoke/controller/manifest.json"
    unfinished = record(manifest) | {"state": "running"}
    del unfinished["crc32"]  # of the state as well
    manifest.write_text(json.dumps(unfinished))
    path = manifest.with_name(name)
    damage(path, place, cut=False)
    done = run(data, *_words(*reader), patience=120)
    if done.code != 0:
        return fault(done, data, name)
    wanted, found = _reference(bench, reader), _fingerprint(data, "controller")
    return None if found == wanted else f"made {found} from it and not {wanted}, with code 0"


def foreign(bench: Bench, folder: Path) -> Iterator[Case]:
    """Shards that others have made."""
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
    done = run(data, *_words("stage=vae"), around=Surroundings(memory=MEMORY), patience=45)
    if done.seconds > QUICK_SECONDS and done.code != HUNG:
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


def agents(bench: Bench, folder: Path) -> Iterator[Case]:
    """Agents that others have made, in little memory."""
    for harm in (
        *(_huge_sizes, _huge_header, _wrong_tensors, _agent_pipe, _agent_endless, _deep_json),
        *(_escapes, _number_for_object, _nan_parameters, _huge_hidden, _unknown_key, _empty_agent),
    ):
        check = functools.partial(_hostile_agent, bench, harm)
        yield Case("agents", harm.__name__.strip("_").replace("_", " "), check)


def _hostile_agent(bench: Bench, harm: Callable[[Path], None], folder: Path) -> str | None:
    agent = folder / "agent"
    shutil.copytree(bench.smoke / "smoke/controller/agent", agent)
    data = folder / "data"
    harm(agent)
    words = _words("stage=evaluate", f"model={agent}")
    done = run(data, *words, around=Surroundings(memory=MEMORY), patience=45)
    if done.seconds > QUICK_SECONDS and done.code != HUNG:
        return f"took {done.seconds:.0f} s"
    if harm is _escapes and done.code == 0:  # a name that only a message would show
        return unprintable(done)
    wrong = fault(done, folder, str(agent), "agent.json", "safetensors")
    if wrong is None and content(data):
        return f"made {', '.join(content(data))}"
    return wrong


def _rewrite_tree(path: Path, change: Callable[[dict[str, object]], object]) -> None:
    """Change the header of a safetensors file."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])


def _set(path: Path, old: str, new: str) -> None:
    def change(header: dict[str, object]) -> None:
        metadata = header["__metadata__"]
        assert isinstance(metadata, dict)
        before = metadata["tree"]
        metadata["tree"] = before.replace(old, new)
        assert metadata["tree"] != before

    _rewrite_tree(path, change)


def _huge_sizes(agent: Path) -> None:
    _set(
        agent / "vae.safetensors",
        '["latent_size", {"value": 32}]',
        '["latent_size", {"value": 1000000000}]',
    )


def _huge_hidden(agent: Path) -> None:
    _set(
        agent / "rnn.safetensors",
        '["hidden_size", {"value": 32}]',
        '["hidden_size", {"value": 1000000}]',
    )


def _huge_header(agent: Path) -> None:
    path = agent / "vae.safetensors"
    path.write_bytes(struct.pack("<Q", 2**62) + path.read_bytes()[8:])


def _wrong_tensors(agent: Path) -> None:
    shutil.copy(agent / "rnn.safetensors", agent / "vae.safetensors")


def _agent_pipe(agent: Path) -> None:
    (agent / "vae.safetensors").unlink()
    os.mkfifo(agent / "vae.safetensors")


def _agent_endless(agent: Path) -> None:
    (agent / "agent.json").unlink()
    (agent / "agent.json").symlink_to("/dev/zero")


def _deep_json(agent: Path) -> None:
    (agent / "agent.json").write_text("[" * 200_000)


def _record(agent: Path, **values: object) -> None:
    path = agent / "agent.json"
    path.write_text(json.dumps(record(path) | values))


def _escapes(agent: Path) -> None:
    _record(agent, env_id="\x1b]0;title\x07\x1b[2J\nNo-v0")


def _number_for_object(agent: Path) -> None:
    (agent / "agent.json").write_text("5")


def _unknown_key(agent: Path) -> None:
    _record(agent, further="\x1b[2J")


def _empty_agent(agent: Path) -> None:
    (agent / "controller.safetensors").write_bytes(b"")


def _nan_parameters(agent: Path) -> None:
    path = agent / "controller.safetensors"
    data = bytearray(path.read_bytes())
    data[-4:] = np.array([np.nan], np.float32).tobytes()
    path.write_bytes(data)
