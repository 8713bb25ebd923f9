"""Files of a run with a flipped bit or a missing end."""

from __future__ import annotations

import functools
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from harness import STAGES, Bench, Case, fault, record, run, smoke_command

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
    done = run(data, *smoke_command(*reader), timeout=120)
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
        run(data, *smoke_command(*reader))
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
    done = run(data, *smoke_command(*reader), timeout=120)
    if done.code != 0:
        return fault(done, data, name)
    wanted, found = _reference(bench, reader), _fingerprint(data, "controller")
    return None if found == wanted else f"made {found} from it and not {wanted}, with code 0"
