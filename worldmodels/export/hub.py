"""An agent as a folder for the Hugging Face Hub: the files of the agent, described for its page."""

from __future__ import annotations

from pathlib import Path

from worldmodels.agents.folder import PART_BYTES, PARTS, RECORD
from worldmodels.files.atomic import atomic_path
from worldmodels.files.untrusted import MEGABYTE, open_regular

CONFIG, CARD, PICTURE = "config.json", "README.md", "dream.png"
"""Beside the files of the agent. The Hub counts the downloads of `CONFIG`."""
_BLOCK = 16 * MEGABYTE


def copy_agent(source: Path, folder: Path) -> list[str]:
    """Copy the files of an agent, which was read before, so that it is known to be whole.

    Args:
        source: folder of the agent.
        folder: to write to; made if it is missing.

    Returns:
        the names of the files.

    Raises:
        ArtifactError: a file cannot be read or written.
    """
    names = [RECORD, *(name for name in PARTS if (source / name).exists())]
    for name in names:
        with (
            open_regular(source / name, PART_BYTES) as content,
            atomic_path(folder / name) as temporary,
            temporary.open("wb") as target,
        ):
            while block := content.read(_BLOCK):
                target.write(block)
    return names
