"""The folder of one stage: a manifest while its work is done, and the finished artifact."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from worldmodels.errors import ArtifactError, Stopped, WorldModelsError
from worldmodels.files.atomic import remove_temporary
from worldmodels.runs import costs
from worldmodels.runs.integrity import sha256_of
from worldmodels.runs.locks import FolderLock
from worldmodels.runs.manifests import MANIFEST, write_manifest
from worldmodels.runs.succession import aside, discard, restore
from worldmodels.runs.tracking import say
from worldmodels.system.resources import Meter


@dataclass
class StageFolder:
    """The folder of one stage and its manifest; made by `Run.begin`.

    As a context manager it handles a stage that ends before it is finished. The time used so far is
    written to the manifest; that of a killed process is not known. After an error, an artifact that
    was to be replaced (``overwrite=true``) is restored and the unfinished successor kept aside; an
    empty folder is removed.

    Args:
        stage: its name.
        path: of the folder.
        record: the content of the manifest.
        complete: the artifact is finished.
        unlike: how the base run's artifact differs from the one that is wanted, where it has one.
        lock: keeps other processes out of the folder until the stage ends; None for a complete
            artifact, which is only read.
        started: when this process began, by `time.monotonic`.
        meter: of the process's CPU time and memory.
        price_per_hour: of the machine, for the costs in the manifest; None where it is not known.
    """

    stage: str
    path: Path
    record: dict[str, Any]
    complete: bool
    unlike: str | None = None
    lock: FolderLock | None = None
    started: float = field(default_factory=time.monotonic)
    meter: Meter = field(default_factory=Meter)
    price_per_hour: float | None = None
    _finished: bool = False

    def __enter__(self) -> StageFolder:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if not self.complete and self.path.exists():
                self._leave(error)
            if self._finished and error is None:
                say(f"{self.stage}: {costs.in_words(self.record)}")
        except (ArtifactError, OSError):
            # On a full disk this is the second error, and the first one says more.
            if error is None:
                raise
        finally:
            self._release()

    def hold(self) -> None:
        """Lock the folder of a complete artifact, before files of it are made again.

        Raises:
            ArtifactError: another process has locked it.
        """
        if self.lock is None:
            self.lock = FolderLock(self.path, self.stage)

    def abandon(self) -> None:
        """Remove a folder in which nothing was made, and restore the artifact that it was to
        replace, if there is one."""
        shutil.rmtree(self.path)
        if aside(self.path).exists():
            restore(self.path, keep=False)
        self._release()

    def _leave(self, error: BaseException | None) -> None:
        """Put a folder whose stage is not complete into the state that the next command expects."""
        failed = isinstance(error, Exception) and not isinstance(error, Stopped)
        alone = [path.name for path in self.path.iterdir()] == [MANIFEST]
        if failed and aside(self.path).exists():
            if not alone:
                with contextlib.suppress(ArtifactError):  # of a full disk: restore first
                    self._note()
            restore(self.path, keep=not alone)
            if not alone:
                say(
                    f"{self.stage}: the previous artifact is restored; to continue the unfinished"
                    " one, run the same command without overwrite=true"
                )
            return
        if alone and isinstance(error, WorldModelsError):
            shutil.rmtree(self.path)  # an error before anything was made: no folder is left
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
            fingerprint: of the content; equal artifacts have equal fingerprints.
            throughput: rates by unit, for example ``{"images/s": 1500.0}``.
            summary: results to read without opening the artifact.
            files: names of the files that later stages read; their SHA-256 is in the manifest.

        Raises:
            ArtifactError: the disk is full or not writable, or one of `files` cannot be read.
        """
        remove_temporary(self.path)  # left by a worker that was killed while writing
        self._count()
        self.record |= {
            "state": "complete",
            "fingerprint": fingerprint,
            "throughput": dict(throughput or {}) or self.record.get("throughput", {}),
            "summary": dict(summary or {}),
            "files": sha256_of(self.path, files),
        }
        write_manifest(self.path, self.record)
        self.complete = self._finished = True
        discard(self.path)
        self._release()

    def keep(self, files: Mapping[str, str]) -> None:
        """Write to the manifest which files of an unfinished artifact are finished.

        Args:
            files: name -> SHA-256.
        """
        if self.complete or self.record.get("files", {}) != files:
            self.record |= {"state": "running", "files": dict(files)}
            write_manifest(self.path, self.record)
        self.complete = False

    def _count(self) -> None:
        """Add this process's time and memory to what earlier ones used."""
        used, wall = self.meter.read(), time.monotonic() - self.started
        self.record |= costs.added(self.record, used, wall, self.path, self.price_per_hour)
