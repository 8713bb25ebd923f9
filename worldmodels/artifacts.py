"""Run folders and what makes an artifact trustworthy: fingerprints and manifests.

A run is a folder ``data/<run>`` with one folder a stage. A stage *begins* by stating its
configuration and the fingerprints of its inputs, and *finishes* by stating the fingerprint of what
it made. Both are in ``manifest.json``, so that a later stage, or the same one started again, knows
whether the artifact is complete, resumable, or made from something else.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from worldmodels.errors import ArtifactError, Stopped, WorldModelsError
from worldmodels.files import remove_temporary
from worldmodels.integrity import origin, sha256_of
from worldmodels.locks import FolderLock
from worldmodels.manifests import MANIFEST, differences, read_manifest, write_manifest
from worldmodels.provenance import provenance
from worldmodels.resources import Meter
from worldmodels.succession import aside, discard, restore, resume, set_aside, unfinished
from worldmodels.tracking import say


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
    what this folder was to replace (``overwrite=true``) and keeps the unfinished successor aside;
    where there was nothing, it takes the folder away if nothing was made.

    `lock` keeps other processes from this folder until the stage ends. A complete artifact that is
    only read has none.
    """

    stage: str
    path: Path
    record: dict[str, Any]
    complete: bool
    unlike: str | None = None
    lock: FolderLock | None = None
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
        try:
            if not self.complete and self.path.exists():
                self._leave(error)
        except (ArtifactError, OSError):
            # Of a disk that is full, this would be the second error, and the first says more.
            if error is None:
                raise
        finally:
            self._release()

    def hold(self) -> None:
        """Lock the folder of a complete artifact that is to be changed after all.

        Raises:
            ArtifactError: another process is at it.
        """
        if self.lock is None:
            self.lock = FolderLock(self.path, self.stage)

    def _leave(self, error: BaseException | None) -> None:
        """Leave a folder whose stage is not complete as the next command is to find it."""
        failed = isinstance(error, Exception) and not isinstance(error, Stopped)
        alone = [path.name for path in self.path.iterdir()] == [MANIFEST]
        if failed and aside(self.path).exists():
            if not alone:
                with contextlib.suppress(ArtifactError):  # a full disk must not keep the old away
                    self._note()
            restore(self.path, keep=not alone)
            if not alone:
                say(
                    f"{self.stage}: the artifact before is back; to go on with the unfinished one,"
                    " run the same command without overwrite=true"
                )
            return
        if alone and isinstance(error, WorldModelsError):
            shutil.rmtree(self.path)  # refused before anything was made: nothing is in the way
            return
        self._note()

    def _note(self) -> None:
        self._count()
        write_manifest(self.path, self.record)

    def _release(self) -> None:
        if self.lock is not None:
            self.lock.release()
            self.lock = None

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
        remove_temporary(self.path)  # of a worker that was killed while it wrote
        self._count()
        self.record |= {
            "state": "complete",
            "fingerprint": fingerprint,
            "throughput": dict(throughput or {}) or self.record.get("throughput", {}),
            "summary": dict(summary or {}),
            "files": sha256_of(self.path, files),
        }
        write_manifest(self.path, self.record)
        self.complete = True
        discard(self.path)
        self._release()

    def keep(self, files: Mapping[str, str]) -> None:
        """Note that of the files that later stages read there are `files`, and not yet all.

        Args:
            files: SHA-256 by name.
        """
        if self.complete or self.record.get("files", {}) != files:
            self.record |= {"state": "running", "files": dict(files)}
            write_manifest(self.path, self.record)
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

        Raises `ArtifactError` when there is none, or a manifest is damaged.
        """
        folder, found = self.folder(stage), self._state(stage)
        if found == "complete":
            return folder
        if found is None and self.base is not None:
            return self.base.locate(stage)
        state = "is not finished" if found else "is missing"
        raise ArtifactError(
            f"{folder} {state}: first run python -m worldmodels stage={self.made_by or stage}"
            f" run={self.name}"
        )

    def has(self, stage: str) -> bool:
        """Whether a finished artifact of `stage` is at hand; a damaged manifest raises."""
        found = self._state(stage)
        if found is None and self.base is not None:
            return self.base.has(stage)
        return found == "complete"

    def manifest(self, stage: str) -> dict[str, Any]:
        """The manifest of the finished artifact of `stage`; raises `ArtifactError` if none."""
        return read_manifest(self.locate(stage))

    def fingerprint(self, stage: str) -> str:
        """The fingerprint of the finished artifact of `stage`; raises `ArtifactError` if none."""
        return str(self.manifest(stage)["fingerprint"])

    def begin(
        self,
        stage: str,
        config: Mapping[str, Any],
        inputs: Mapping[str, str],
        growable: tuple[str, ...] = (),
        overwrite: bool = False,
        share: bool = False,
    ) -> StageFolder:
        """Open the folder of `stage` for work, or find that it is done.

        Args:
            config: flat ``key -> value`` of everything that determines the artifact's content.
            inputs: ``stage -> fingerprint`` of what it is made from.
            growable: keys that may be raised on an artifact that exists (more of the same), None
                being more than any number.
            overwrite: start over. What is there is kept aside until its successor is finished, and
                put back where that fails, or where a command killed half way is not repeated. The
                same without `overwrite` goes on with an unfinished successor.
            share: where this run has none, the base's artifact of the same configuration and inputs
                is as good as done here. It is opened in its own folder then.

        Raises:
            ArtifactError: the folder holds an artifact of another configuration or other inputs, or
                files that no manifest accounts for; or another process makes it at this time.
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
        if not overwrite:
            done = self._done(stage, record, growable) or self._shared(stage, record, share)
            if done is not None:
                return done
        lock = FolderLock(folder, stage)
        try:
            return self._open(stage, record, growable, overwrite, share, lock)
        except BaseException as error:
            if overwrite and isinstance(error, Exception) and aside(folder).exists():
                with contextlib.suppress(OSError):  # the first error says more
                    restore(folder, keep=False)
            lock.release()
            raise

    def _done(
        self, stage: str, wanted: dict[str, Any], growable: tuple[str, ...]
    ) -> StageFolder | None:
        """The artifact that is wanted, if it is complete: it is not changed, so nobody locks it."""
        if self._state(stage) != "complete" or aside(self.folder(stage)).exists():
            return None
        old = read_manifest(self.folder(stage))
        if next(differences(old, wanted), None) is not None:
            return None
        return StageFolder(stage, self.folder(stage), old, complete=True)

    def _shared(self, stage: str, wanted: dict[str, Any], share: bool) -> StageFolder | None:
        """The base's artifact, if it is what is wanted and this run has none."""
        own = self.folder(stage)
        if not share or self.base is None or not self.base.has(stage):
            return None
        if (own / MANIFEST).exists() or _files(own) or aside(own).exists():
            return None
        theirs = self.base.manifest(stage)
        if next(differences(theirs, wanted), None) is not None:
            return None
        return StageFolder(stage, self.base.locate(stage), theirs, complete=True)

    def _open(
        self,
        stage: str,
        record: dict[str, Any],
        growable: tuple[str, ...],
        overwrite: bool,
        share: bool,
        lock: FolderLock,
    ) -> StageFolder:
        """Open a folder that this process has locked, for work."""
        folder = self.folder(stage)
        if overwrite:
            set_aside(folder)
        else:
            self._settle(stage, record, growable)
        remove_temporary(folder)
        if not (folder / MANIFEST).exists() and _files(folder):
            raise ArtifactError(
                f"{folder} has {_files(folder)[0]} but no {MANIFEST} to say what made it: move the"
                " folder away, or make it again with overwrite=true"
            )
        unlike = None
        if (folder / MANIFEST).exists():
            old = read_manifest(folder)
            self._refuse_other(stage, old, record, growable)
            grown = any(old["config"].get(key) != record["config"].get(key) for key in growable)
            if old["state"] == "complete" and not grown:  # another process finished it meanwhile
                lock.release()
                return StageFolder(stage, folder, old, complete=True)
            record |= {key: old[key] for key in ("wall_s", "resources", "files") if key in old}
        elif share and not overwrite and self.base is not None and self.base.has(stage):
            difference = next(differences(self.base.manifest(stage), record), None)
            if difference is not None:
                unlike = f"{self.base.locate(stage)} {difference}"
        write_manifest(folder, record)
        return StageFolder(stage, folder, record, complete=False, unlike=unlike, lock=lock)

    def _state(self, stage: str) -> str | None:
        folder = self.folder(stage)
        return str(read_manifest(folder)["state"]) if (folder / MANIFEST).exists() else None

    def _settle(self, stage: str, wanted: dict[str, Any], growable: tuple[str, ...]) -> None:
        """Of an artifact and its unfinished successor, put the one that is wanted in its place."""
        folder = self.folder(stage)

        def serves(place: Path) -> bool:
            return all(
                difference.key in growable and difference.grown
                for difference in differences(read_manifest(place), wanted)
            )

        if aside(folder).exists():  # a process was killed before it had finished the successor
            state = self._state(stage)
            if state == "complete":
                discard(folder)
            elif state is None:
                restore(folder, keep=False)
            elif not serves(folder):
                restore(folder, keep=True)
        failed = unfinished(folder)
        if (
            (folder / MANIFEST).exists()
            and (failed / MANIFEST).exists()
            and not aside(folder).exists()
            and not serves(folder)
            and serves(failed)
        ):
            resume(folder)

    def _refuse_other(
        self, stage: str, old: dict[str, Any], new: dict[str, Any], growable: tuple[str, ...]
    ) -> None:
        folder = self.folder(stage)
        mend = "choose another run=<name>, or make it again with overwrite=true"
        for difference in differences(old, new):
            if not (difference.key in growable and difference.grown):
                raise ArtifactError(f"{folder} {difference}: {mend}")


def _files(folder: Path) -> list[str]:
    """The names in `folder`, if it exists, without those of temporary files."""
    names = sorted(path.name for path in folder.glob("*"))
    return [name for name in names if not name.startswith(".")]
