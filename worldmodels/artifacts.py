"""Run folders and what makes an artifact trustworthy: fingerprints and manifests.

A run is a folder ``data/<run>`` with one folder a stage. A stage *begins* by stating its
configuration and the fingerprints of its inputs, and *finishes* by stating the fingerprint of what
it made. Both are in ``manifest.json``, so that a later stage, or the same one started again, knows
whether the artifact is complete, resumable, or made from something else.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple

import numpy as np

from worldmodels.errors import ArtifactError, Stopped, WorldModelsError
from worldmodels.files import read_json, write_json
from worldmodels.integrity import MANIFEST, origin, sha256_of
from worldmodels.provenance import provenance
from worldmodels.resources import Meter
from worldmodels.succession import aside, discard, restore, set_aside


def fingerprint_file(path: Path) -> str:
    """Short SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def fingerprint_arrays(arrays: Mapping[str, np.ndarray]) -> str:
    """Short SHA-256 over names, types, shapes and values, independent of the file format."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()[:16]


@dataclass
class StageFolder:
    """A stage at work in its folder. Made by `Run.begin`.

    `unlike` says how a base's artifact, which might have served, differs from what is wanted.

    As a context it notes, when the stage ends before its work is done, the time that went into it;
    the time of a process that was killed outright is not known and not counted. An error puts back
    what this folder was to replace (``fresh=true``); where there was nothing, it takes the folder
    away if nothing was made.
    """

    stage: str
    path: Path
    record: dict[str, Any]
    complete: bool
    unlike: str | None = None
    started: float = field(default_factory=time.monotonic)
    meter: Meter = field(default_factory=Meter)

    def __enter__(self) -> StageFolder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.complete or not self.path.exists():
            return
        failed = isinstance(error, Exception) and not isinstance(error, Stopped)
        if failed and aside(self.path).exists():
            restore(self.path)
            return
        alone = [path.name for path in self.path.iterdir()] == [MANIFEST]
        if alone and isinstance(error, WorldModelsError):
            shutil.rmtree(self.path)  # refused before anything was made: nothing is in the way
            return
        self._count()
        write_json(self.path / MANIFEST, self.record)

    def finish(
        self,
        fingerprint: str,
        throughput: Mapping[str, float] | None = None,
        summary: Mapping[str, Any] | None = None,
        files: Iterable[str] = (),
    ) -> None:
        """Mark the artifact complete.

        Args:
            fingerprint: of the content, so that equal artifacts have equal fingerprints.
            throughput: rates by unit, for example ``{"images/s": 1500.0}``.
            summary: results worth reading without opening the artifact.
            files: names of those that later stages read, whose SHA-256 the manifest is to hold.
        """
        self._count()
        self.record |= {
            "state": "complete",
            "fingerprint": fingerprint,
            "throughput": dict(throughput or {}) or self.record.get("throughput", {}),
            "summary": dict(summary or {}),
            "files": sha256_of(self.path, files),
        }
        write_json(self.path / MANIFEST, self.record)
        self.complete = True
        discard(self.path)

    def keep(self, files: Mapping[str, str]) -> None:
        """Note that of the files that later stages read there are `files`, and not yet all.

        Args:
            files: SHA-256 by name.
        """
        if self.complete or self.record.get("files", {}) != files:
            self.record |= {"state": "running", "files": dict(files)}
            write_json(self.path / MANIFEST, self.record)
        self.complete = False

    def _count(self) -> None:
        """Add this process's time and memory to what earlier ones used."""
        before = self.record.get("resources", {"cpu_s": 0.0, "peak_bytes": {}})
        used = self.meter.read()
        peaks = before["peak_bytes"] | {
            where: max(peak, before["peak_bytes"].get(where, 0))
            for where, peak in used["peak_bytes"].items()
        }
        wall = self.record.get("wall_s", 0.0) + time.monotonic() - self.started
        self.record |= {
            "wall_s": round(wall, 3),
            "resources": {
                "cpu_s": round(before["cpu_s"] + used["cpu_s"], 3),
                "peak_bytes": peaks,
            },
        }


class Run:
    """The artifacts of one run.

    Args:
        root: ``data/<run>``.
        base: a run whose finished artifacts serve where this one has none, so that a variant of
            one stage need not repeat the stages before it.
        name: what ``run=`` calls it, unless its folder's name.
        made_by: the one stage that makes all of it, if there is one.
    """

    def __init__(
        self,
        root: Path,
        base: Run | None = None,
        name: str | None = None,
        made_by: str | None = None,
    ) -> None:
        self.root = root
        self.base = base
        self.name = name or root.name
        self.made_by = made_by

    def folder(self, stage: str) -> Path:
        """Where this run's own artifact of `stage` lies or will lie."""
        return self.root / stage

    def within(self, folder: str, made_by: str) -> Run:
        """A run that belongs to this one, in a folder of its own below it."""
        base = None if self.base is None else self.base.within(folder, made_by)
        return Run(self.root / folder, base, self.name, made_by)

    def locate(self, stage: str) -> Path:
        """The folder of the finished artifact of `stage`, in this run or its base.

        Raises `ArtifactError` when there is none.
        """
        folder = self.folder(stage)
        if self._state(stage) == "complete":
            return folder
        if self._state(stage) is None and self.base is not None:
            return self.base.locate(stage)
        state = "is not finished" if self._state(stage) else "is missing"
        raise ArtifactError(
            f"{folder} {state}: first run python -m worldmodels stage={self.made_by or stage}"
            f" run={self.name}"
        )

    def has(self, stage: str) -> bool:
        """Whether a finished artifact of `stage` is at hand."""
        try:
            self.locate(stage)
        except ArtifactError:
            return False
        return True

    def manifest(self, stage: str) -> dict[str, Any]:
        """The manifest of the finished artifact of `stage`; raises `ArtifactError` if none."""
        record: dict[str, Any] = read_json(self.locate(stage) / MANIFEST)
        return record

    def fingerprint(self, stage: str) -> str:
        """The fingerprint of the finished artifact of `stage`; raises `ArtifactError` if none."""
        return str(self.manifest(stage)["fingerprint"])

    def begin(
        self,
        stage: str,
        config: Mapping[str, Any],
        inputs: Mapping[str, str],
        growable: tuple[str, ...] = (),
        fresh: bool = False,
        share: bool = False,
    ) -> StageFolder:
        """Open the folder of `stage` for work, or find that it is done.

        Args:
            config: flat ``key -> value`` of everything that determines the artifact's content.
            inputs: ``stage -> fingerprint`` of what it is made from.
            growable: keys that may be raised on an artifact that exists (more of the same), None
                being more than any number.
            fresh: start over. What is there is kept aside until its successor is finished, and put
                back where that fails, or where a command killed half way is not repeated.
            share: where this run has none, the base's artifact of the same configuration and inputs
                is as good as done here. It is opened in its own folder then.

        Raises:
            ArtifactError: the folder holds an artifact of another configuration or other inputs, or
                files that no manifest accounts for.
        """
        folder = self.folder(stage)
        config = json.loads(json.dumps(config))
        record: dict[str, Any] = {
            "stage": stage,
            "state": "running",
            "config": config,
            "inputs": dict(inputs),
            "made_by": origin(stage, config, inputs, growable),
            **provenance(),
        }
        if fresh:
            set_aside(folder)
        elif aside(folder).exists():
            self._settle(stage, record, growable)
        if not (folder / MANIFEST).exists() and _files(folder):
            raise ArtifactError(
                f"{folder} has {_files(folder)[0]} but no {MANIFEST} to say what made it: move the"
                " folder away, or make it again with fresh=true"
            )
        complete = False
        unlike = None
        if (folder / MANIFEST).exists():
            old = read_json(folder / MANIFEST)
            self._refuse_other(stage, old, record, growable)
            grown = any(old["config"].get(key) != config.get(key) for key in growable)
            complete = old["state"] == "complete" and not grown
            if complete:
                record = old
            else:
                used = {key: old[key] for key in ("wall_s", "resources", "files") if key in old}
                record |= used
        elif share and not fresh and self.base is not None and self.base.has(stage):
            theirs, place = self.base.manifest(stage), self.base.locate(stage)
            difference = next(_differences(theirs, record), None)
            if difference is None:
                return StageFolder(stage, place, theirs, complete=True)
            unlike = f"{place} {difference}"
        if not complete:
            write_json(folder / MANIFEST, record)
        return StageFolder(stage, folder, record, complete, unlike)

    def _state(self, stage: str) -> str | None:
        path = self.folder(stage) / MANIFEST
        return str(read_json(path)["state"]) if path.exists() else None

    def _settle(self, stage: str, wanted: dict[str, Any], growable: tuple[str, ...]) -> None:
        """After a kill between an artifact and its successor: keep the one that is wanted."""
        folder = self.folder(stage)
        state = self._state(stage)
        if state == "complete":
            discard(folder)
        elif state is None or any(
            not (difference.key in growable and difference.grown)
            for difference in _differences(read_json(folder / MANIFEST), wanted)
        ):
            restore(folder)

    def _refuse_other(
        self, stage: str, old: dict[str, Any], new: dict[str, Any], growable: tuple[str, ...]
    ) -> None:
        folder = self.folder(stage)
        mend = "choose another run=<name>, or make it again with fresh=true"
        for difference in _differences(old, new):
            if not (difference.key in growable and difference.grown):
                raise ArtifactError(f"{folder} {difference}: {mend}")


def _files(folder: Path) -> list[str]:
    """The names in `folder`, if it exists, without those of temporary files."""
    names = sorted(path.name for path in folder.glob("*"))
    return [name for name in names if not name.startswith(".")]


class _Difference(NamedTuple):
    """How an artifact's manifest differs from what is wanted now."""

    part: Literal["inputs", "config"]
    key: str
    before: Any
    now: Any

    @property
    def grown(self) -> bool:
        """Whether there is to be more of it."""
        return self.before is not None and (self.now is None or bool(self.now > self.before))

    def __str__(self) -> str:
        if self.part == "inputs":
            return f"was made from another {self.key} ({self.before}, now {self.now})"
        return f"was made with {self.key}={self.before}, now {self.now}"


def _differences(old: dict[str, Any], new: dict[str, Any]) -> Iterator[_Difference]:
    """How two manifests differ in what determines the artifact, inputs first."""
    for part in ("inputs", "config"):
        for key in sorted(set(old[part]) | set(new[part])):
            before, now = old[part].get(key), new[part].get(key)
            if before != now:
                yield _Difference(part, key, before, now)
