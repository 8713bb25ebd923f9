"""What makes an artifact: the code, the packages and the machine."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
from functools import cache
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_info

from worldmodels.config import shipped
from worldmodels.errors import DISTRIBUTION
from worldmodels.system.cores import cores_in_words
from worldmodels.version import __version__

PACKAGES = (
    *("torch", "gymnasium", "envpool", "Box2D", "vizdoom", "ale-py"),
    *("cma", "h5py", "numpy", "hydra-core"),
)


@cache
def provenance() -> dict[str, Any]:
    """What made an artifact: package versions, git commit, machine.

    The commit is None where this package is not files of a git repository, as in a wheel.
    """
    versions = {DISTRIBUTION: __version__}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    versions |= _blas()
    return {
        "python": platform.python_version(),
        "versions": versions,
        # An image of a container has the package but not its history.
        "commit": _commit() or os.environ.get("WORLDMODELS_COMMIT"),
        "machine": f"{_processor()}, {cores_in_words()}",
    }


def _blas() -> dict[str, str]:
    """NumPy's OpenBLAS with the kernels that it uses; nothing where NumPy has another library.

    OpenBLAS chooses kernels by the processor, or by ``OPENBLAS_CORETYPE``, and they round
    differently, which changes a search from its second generation on.
    """
    import_module("numpy")  # which loads it
    found = [part for part in threadpool_info() if part["internal_api"] == "openblas"]
    if not found:
        return {}
    used = max(found, key=lambda part: "numpy" in part["filepath"])  # SciPy has one of its own
    return {"OpenBLAS": f"{used['version']} {used['architecture']}"}


def _commit() -> str | None:
    """The commit of the repository that tracks this file; None if there is none.

    A wheel may be installed below another repository, whose commit is unrelated to it.
    """
    if shipped.INSTALLED or _git("ls-files", "--", Path(__file__).name) is None:
        return None
    return _git("describe", "--always", "--dirty", "--abbrev=12")


def _git(*words: str) -> str | None:
    """What git prints about the repository around this file; None if it prints nothing."""
    command = ["git", "-C", str(Path(__file__).parent), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def _processor() -> str:
    """The architecture, and the kind of processor where Linux reports it.

    Virtual machines often hide the name, but not the family and model, on which rounding depends.
    """
    reported: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines():
            key, _, value = line.partition(":")
            reported[key.strip()] = value.strip()
    family = [f"{key} {reported[key]}" for key in ("cpu family", "model") if key in reported]
    return ", ".join(filter(None, [platform.machine(), reported.get("model name"), *family]))
