"""A folder and its successor: the old one is kept aside until the new one is finished.

    vae                    what is there
    .vae.replaced          what was there, while its successor is being made
    .vae.<pid>.removed     what is being deleted, under a name that nothing reads

Each step is one rename, so that a process killed anywhere leaves one of these states.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def aside(folder: Path) -> Path:
    """Where the predecessor of `folder` is kept."""
    return folder.with_name(f".{folder.name}.replaced")


def set_aside(folder: Path) -> None:
    """Make room for a successor of what is in `folder`.

    Where something is kept aside already, an earlier successor was not finished: that one goes.
    """
    if aside(folder).exists():
        remove(folder)
    elif folder.exists():
        folder.rename(aside(folder))


def restore(folder: Path) -> None:
    """Put back what was set aside, in the place of a successor that is not wanted any more."""
    remove(folder)
    aside(folder).rename(folder)


def discard(folder: Path) -> None:
    """Delete what was set aside: its successor is finished."""
    remove(aside(folder))


def remove(folder: Path) -> None:
    """Delete a folder, if it is there; killed half way, it is gone under its name."""
    for left in folder.parent.glob(f".{folder.name}.*.removed"):
        shutil.rmtree(left)
    if folder.exists():
        doomed = folder.with_name(f".{folder.name}.{os.getpid()}.removed")
        folder.rename(doomed)
        shutil.rmtree(doomed)
