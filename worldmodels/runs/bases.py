"""The run that ``base=`` names, and those whose finished stages it uses itself."""

from __future__ import annotations

import re
from pathlib import Path, PurePath

from worldmodels.errors import ArtifactError
from worldmodels.files.untrusted import MEGABYTE, read_json
from worldmodels.runs.artifacts import Run
from worldmodels.runs.manifests import MANIFEST, read_manifest

SWEEP = "sweep.json"
"""The file of a sweep, in its run; trials and members are runs below it."""
SWEEP_BYTES = 64 * MEGABYTE
_PART = re.compile(r"(.+)/(trial-\d{3,}|interval-\d{3,}/member-\d{3,})")
"""The run of a sweep, and a trial or member in it."""
_MAKING = ("controller", "baseline", "rnn", "vae", "rollouts", "evaluate", "report")
"""Stages whose manifests name the base. The first round of ``base=<run>`` has a report alone."""
_DEPTH = 16
"""Sweeps of which each has a trial of the next one as its base, at most."""


def base_run(data: Path, name: str, depth: int = _DEPTH) -> Run:
    """A run as the base of others.

    A trial or member of a sweep has only the stages that it made again: its base is the run of the
    sweep, whose own base is the one that the sweep had.

    Args:
        data: the folder of all runs.
        name: of the run.
        depth: how many bases after one another are looked for.

    Raises:
        ArtifactError: the file of its sweep is damaged.
    """
    part = _PART.fullmatch(PurePath(name).as_posix())
    if part is None or not (data / part[1] / SWEEP).is_file() or not depth:
        return Run(data / name, name=name)
    path = data / part[1] / SWEEP
    record = read_json(path, SWEEP_BYTES)
    found = record.get("base") if isinstance(record, dict) else None  # an older one has none
    if found is None:
        below = None
    elif isinstance(found, str):
        below = base_run(data, found, depth - 1)
    else:
        raise ArtifactError(f"{path}: is not the record of a sweep (base); give another base=")
    return Run(data / name, Run(data / part[1], below, part[1]), name)


def recorded_base(data: Path, root: Path) -> Run | None:
    """The run whose finished stages another one used, as the manifests of that one say.

    Args:
        data: the folder of all runs.
        root: of the run that used them.

    Returns:
        None where no base is named, or where it is no longer there.

    Raises:
        ArtifactError: a manifest is damaged, or names a folder that is not below `data`.
    """
    for stage in _MAKING:
        if (root / stage / MANIFEST).exists():
            name = read_manifest(root / stage).get("base")
            if name is None:
                continue
            if PurePath(name).is_absolute() or ".." in PurePath(name).parts:
                raise ArtifactError(
                    f"{root / stage / MANIFEST}: base={name}: is no run below {data}; make the"
                    " stage again by overwrite=true"
                )
            if (data / name).is_dir():
                return base_run(data, name)
    return None
