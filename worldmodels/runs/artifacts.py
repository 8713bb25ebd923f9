"""Run folders: where the artifact of each stage is, and whether it can be used or continued.

A run is a folder ``data/<run>`` with one folder for each stage. A stage *begins* by stating its
configuration and the fingerprints of its inputs, and *finishes* by stating the fingerprint of what
it made. Both are in ``manifest.json``, by which a later stage, or the same one started again,
determines whether the artifact is complete, resumable, or made from something else.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from worldmodels.errors import ArtifactError
from worldmodels.files.atomic import remove_temporary
from worldmodels.runs.integrity import origin
from worldmodels.runs.locks import FolderLock
from worldmodels.runs.manifests import MANIFEST, differences, read_manifest, write_manifest
from worldmodels.runs.provenance import provenance
from worldmodels.runs.stage_folder import StageFolder
from worldmodels.runs.succession import (
    aside,
    clear,
    discard,
    left_over,
    restore,
    resume,
    set_aside,
    unfinished,
)


class Run:
    """The artifacts of one run.

    Args:
        root: the folder, ``data/<run>``.
        base: a run whose finished artifacts are used where this one has none, so that a variant of
            one stage need not repeat the stages before it.
        name: of the run on the command line, if not that of the folder.
        made_by: the stage that makes all artifacts, if it is one stage.
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
        """The folder of this run's own artifact of `stage`; it may not exist yet."""
        return self.root / stage

    def within(self, folder: str, made_by: str) -> Run:
        """A run that is part of this one, in a subfolder; its base is the same part of the base."""
        base = None if self.base is None else self.base.within(folder, made_by)
        return Run(self.root / folder, base, self.name, made_by)

    def locate(self, stage: str, key: str = "run") -> Path:
        """The folder of the finished artifact of `stage`, in this run or its base.

        Args:
            stage: its name.
            key: that names this run on the command line.

        Raises:
            ArtifactError: there is none, or a manifest is damaged.
        """
        folder, found = self.folder(stage), self._state(stage)
        if found == "complete":
            return folder
        if found is None and self.base is not None and self.base.has(stage):
            return self.base.locate(stage)
        newest = None if found else self.newest_round(stage, key=key)
        if newest is not None:
            raise ArtifactError(
                f"{folder} is missing: the rounds of stage=iterate are runs of their own; give"
                f" {newest}"
            )
        if found is None and self.base is not None:
            return self.base.locate(stage)
        state = "is not finished" if found else "is missing"
        raise ArtifactError(
            f"{folder} {state}: first run stage={self.made_by or stage} with the same run, preset"
            " and keys"
        )

    def has(self, stage: str) -> bool:
        """Whether there is a finished artifact of `stage`; a damaged manifest raises."""
        found = self._state(stage)
        if found is None and self.base is not None:
            return self.base.has(stage)
        return found == "complete"

    def newest_round(self, *stages: str, key: str = "run") -> str | None:
        """The newest round of this run, or else of its base, that has one of some finished stages.

        Args:
            stages: the first of which any round has a finished artifact decides.
            key: that names this run on the command line.

        Returns:
            Key and name of the round, ``run=<run>/round-2``; None where there is no such round.

        Raises:
            ArtifactError: a manifest of a round is damaged.
        """
        names = [path.name for path in self.root.glob("round-*")]
        found = sorted(int(name[6:]) for name in names if name[6:].isdecimal())
        for stage in stages:
            for number in reversed(found):
                if Run(self.root / f"round-{number}").has(stage):
                    return f"{key}={self.name}/round-{number}"
        return None if self.base is None else self.base.newest_round(*stages, key="base")

    def nearest(self, *stages: str) -> str | None:
        """The first of some stages that this run has, finished or not, or else its base; None where
        neither has one of them."""
        found = next((stage for stage in stages if self._state(stage) is not None), None)
        return self.base.nearest(*stages) if found is None and self.base is not None else found

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
        """Open the folder of `stage` for work, or find that the artifact is finished.

        Args:
            stage: its name.
            config: flat ``key -> value`` of everything that determines the artifact's content.
            inputs: ``stage -> fingerprint`` of what it is made from.
            growable: keys whose value may be larger than that of the existing artifact, which is
                then extended; None counts as larger than any number.
            overwrite: make the artifact again. The existing one is kept aside until its successor
                is finished, and restored if that fails or is killed and not repeated. The same
                command without `overwrite` continues an unfinished successor.
            share: where this run has no artifact, use the base's of the same configuration and
                inputs, in the base's folder.

        Raises:
            ArtifactError: the folder has an artifact of another configuration or other inputs, or
                files without a manifest; or another process is making it.
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
        if self.base is not None:
            record["base"] = self.base.name
        if not overwrite:
            done = self._done(stage, record, growable) or self._shared(stage, record, share)
            if done is not None:
                return done
        lock = FolderLock(folder, stage)
        try:
            return self._open(stage, record, growable, overwrite, share, lock)
        except BaseException as error:
            if overwrite and isinstance(error, Exception) and aside(folder).exists():
                with contextlib.suppress(OSError):  # the first error is the cause
                    restore(folder, keep=False)
            lock.release()
            raise

    def _done(
        self, stage: str, wanted: dict[str, Any], growable: tuple[str, ...]
    ) -> StageFolder | None:
        """The artifact that is wanted, if it is complete; it is only read and not locked."""
        folder = self.folder(stage)
        if self._state(stage) != "complete" or aside(folder).exists() or left_over(folder):
            return None
        old = read_manifest(folder)
        if next(differences(old, wanted), None) is not None:
            return None
        return StageFolder(stage, folder, old, complete=True)

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
        clear(folder)
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
        """Of an artifact and its unfinished successor, keep the wanted one in the folder."""
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
        remedy = "choose another run=<name>, or make it again with overwrite=true"
        for difference in differences(old, new):
            if not (difference.key in growable and difference.grown):
                raise ArtifactError(f"{folder} {difference}: {remedy}")


def _files(folder: Path) -> list[str]:
    """The names in `folder`, if it exists, without those of temporary files."""
    names = sorted(path.name for path in folder.glob("*"))
    return [name for name in names if not name.startswith(".")]
