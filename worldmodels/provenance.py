"""What makes an artifact: the code, the packages and the machine."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from worldmodels.cores import cores_in_words

PACKAGES = (
    *("torch", "gymnasium", "envpool", "Box2D", "vizdoom", "ale-py"),
    *("cma", "h5py", "numpy", "hydra-core"),
)


@cache
def provenance() -> dict[str, Any]:
    """What made an artifact: package versions, git commit, machine."""
    versions = {}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    source = Path(__file__).parent
    git = ["git", "-C", str(source), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(git, capture_output=True, text=True, timeout=10, check=False)
        commit = done.stdout.strip() or None
    except (OSError, subprocess.TimeoutExpired):
        commit = None
    # An image of a container has the package but not its history.
    commit = commit or os.environ.get("WORLDMODELS_COMMIT")
    return {
        "python": platform.python_version(),
        "versions": versions,
        "commit": commit,
        "machine": f"{_processor()}, {cores_in_words()}",
    }


def _processor() -> str:
    """The architecture, and the kind of processor where Linux tells it.

    Virtual machines often hide the name, but not the family and model, on which rounding depends.
    """
    told: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines():
            key, _, value = line.partition(":")
            told[key.strip()] = value.strip()
    family = [f"{key} {told[key]}" for key in ("cpu family", "model") if key in told]
    return ", ".join(filter(None, [platform.machine(), told.get("model name"), *family]))
