"""A folder and its successor: the old one is kept aside until the new one is finished.

    vae                    what is there
    .vae.replaced          what was there, while its successor is being made
    .vae.unfinished        a successor that failed, once what was there is back in its place
    .vae.<pid>.removed     what is being deleted, under a name that nothing reads

Each step is one rename, so that a process killed anywhere leaves one of these states. Between the
two renames of `restore` and of `resume` there is no ``vae``, but both of the others: what was there
is put back then, and the successor can still be resumed.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def aside(folder: Path) -> Path:
    """Where the predecessor of `folder` is kept."""
    return folder.with_name(f".{folder.name}.replaced")


def unfinished(folder: Path) -> Path:
    """Where a failed successor of `folder` is kept."""
    return folder.with_name(f".{folder.name}.unfinished")


def set_aside(folder: Path) -> None:
    """Make room for a successor of what is in `folder`, which begins from nothing.

    Where something is kept aside already, an earlier successor was not finished: that one goes.
    """
    if aside(folder).exists():
        _remove(folder, folder)
    elif folder.exists():
        folder.rename(aside(folder))
    _remove(folder, unfinished(folder))


def restore(folder: Path, keep: bool) -> None:
    """Put back what was set aside; `keep` the successor in its place, or delete it."""
    if keep and folder.exists():
        _remove(folder, unfinished(folder))
        folder.rename(unfinished(folder))
    _remove(folder, folder)
    aside(folder).rename(folder)


def resume(folder: Path) -> None:
    """Go on with the successor that failed: the opposite of `restore` that kept it."""
    folder.rename(aside(folder))
    unfinished(folder).rename(folder)


def discard(folder: Path) -> None:
    """Delete what was set aside or failed: the successor is finished."""
    _remove(folder, aside(folder))
    _remove(folder, unfinished(folder))


def left_over(folder: Path) -> list[Path]:
    """What killed processes had not finished deleting."""
    return sorted(folder.parent.glob(f".{folder.name}.*.removed"))


def clear(folder: Path) -> None:
    """Finish the deletions of killed processes."""
    for left in left_over(folder):
        shutil.rmtree(left)


def _remove(folder: Path, place: Path) -> None:
    """Delete one of the states of `folder`, if it is there; its name is free at once."""
    clear(folder)
    if place.exists():
        doomed = folder.with_name(f".{folder.name}.{os.getpid()}.removed")
        place.rename(doomed)
        shutil.rmtree(doomed)
