"""Checkpoints of a training: a state with its digest, and the origin of what is trained."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from worldmodels.errors import ArtifactError
from worldmodels.files import weights
from worldmodels.runs.integrity import require_made_by, require_regular


def write(path: Path, state: Mapping[str, Any], made_by: str) -> None:
    """Write a state with the hash `made_by` of configuration and inputs."""
    content = {**state, "made_by": made_by}
    weights.save(path, content | {"sha256": weights.digest(content)})


def read(path: Path, made_by: str | None) -> dict[str, Any]:
    """The state in a file.

    Args:
        path: of the file.
        made_by: what it has to be made by; None for anything.

    Raises:
        ArtifactError: it is damaged, or has another `made_by`.
    """
    require_regular(path)
    state = weights.load(path)
    found = state.pop("sha256", None)  # older versions wrote none
    if found is not None and found != weights.digest(state):
        raise ArtifactError(
            f"{path} is damaged (its content is not that of its SHA-256); make its stage again with"
            " overwrite=true"
        )
    if made_by is not None:
        require_made_by(path, [state.get("made_by")], made_by)
    return state
