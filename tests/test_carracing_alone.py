"""The simulator's package depends on nothing else of the project."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import worldmodels

ROOM = Path(worldmodels.__file__).parent / "envs" / "carracing"
PACKAGE = "worldmodels.envs.carracing"
FOR_A_GPU = {"cuda"}
"""Modules that are imported only where a GPU is asked for."""


def imported(path: Path) -> set[str]:
    """The modules that a file imports anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            assert node.module is not None
            names.add(node.module)
    return names


@pytest.mark.parametrize("path", sorted(ROOM.rglob("*.py")), ids=lambda path: path.stem)
def test_it_imports_nothing_of_ours_but_errors(path: Path) -> None:
    ours = {name for name in imported(path) if name.split(".")[0] == "worldmodels"}
    outside = {name for name in ours if name != PACKAGE and not name.startswith(f"{PACKAGE}.")}
    assert outside <= {"worldmodels.errors"}


@pytest.mark.parametrize("path", sorted(ROOM.rglob("*.py")), ids=lambda path: path.stem)
def test_torch_is_imported_for_a_gpu_only(path: Path) -> None:
    if path.stem not in FOR_A_GPU:
        assert not {name for name in imported(path) if name.split(".")[0] == "torch"}


@pytest.mark.system
def test_importing_it_loads_no_other_part_of_the_project() -> None:
    program = (
        f"import {PACKAGE}.vector, {PACKAGE}.single, json, sys; print(json.dumps([*sys.modules]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = json.loads(done.stdout)
    foreign = {"torch", "hydra", "omegaconf", "lightning_fabric", "h5py", "matplotlib", "cma"}
    assert not foreign & {name.split(".")[0] for name in loaded}
    ours = [name for name in loaded if name.startswith("worldmodels.")]
    inside = [name for name in ours if name == PACKAGE or name.startswith(f"{PACKAGE}.")]
    # The packages that contain it, and what these import.
    parents = {"worldmodels.envs", "worldmodels.errors", "worldmodels.threads"}
    assert set(ours) - set(inside) <= parents
