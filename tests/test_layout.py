"""The layout of the code: directions of imports, sizes, arguments in docstrings."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "worldmodels"
SIMULATOR = PACKAGE / "envs" / "carracing"
FOR_A_GPU = {"cuda"}
"""Modules of the simulator that are imported only where a GPU is asked for."""
FOLDERS = ("worldmodels", "benchmarks", "docs", "examples", "locks", "tests", "tools")
FILE_LINES, FUNCTION_LINES, POSITIONAL_ARGUMENTS = 400, 60, 9
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def layers() -> list[list[str]]:
    """The parts of the package from the top down, as CONTRIBUTING.md lists them."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    block = re.search(r"from the lines below it:\n\n((?: {4}.+\n)+)", text)
    assert block is not None
    return [line.split() for line in block[1].splitlines()]


def imports(path: Path) -> Iterator[str]:
    """The full names of what a file imports anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            assert node.module is not None
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imported_parts(path: Path, parts: set[str]) -> set[str]:
    """The parts of the package that a file imports; a name of the package itself is `__init__`."""
    ours = (name.split(".")[1:] for name in imports(path) if name.split(".")[0] == "worldmodels")
    return {name[0] if name and name[0] in parts else "__init__" for name in ours}


def test_every_part_imports_only_from_the_layers_below_it() -> None:
    order = layers()
    parts = {part for layer in order for part in layer}
    assert len(parts) == sum(map(len, order)), "a part is listed twice"
    files = {path.stem: [path] for path in PACKAGE.glob("*.py")}
    for path in PACKAGE.glob("*/__init__.py"):
        files[path.parent.name] = [*path.parent.rglob("*.py")]
    assert files.keys() == parts
    wrong = []
    for number, layer in enumerate(order):
        below = {part for lower in order[number + 1 :] for part in lower}
        for part in layer:
            for path in files[part]:
                others = imported_parts(path, parts) - below - {part}
                wrong += [f"{path.relative_to(ROOT)} imports {other}" for other in others]
    assert not wrong


BUILT_FROM = {"r3d18": {"torchvision"}, "timesformer": {"transformers"}}
"""Optional modules, imported where a model of that file is built."""


def test_models_import_torch_alone() -> None:
    for path in (PACKAGE / "models").glob("*.py"):
        found = {name.split(".")[0] for name in imports(path)} - sys.stdlib_module_names
        assert found <= {"torch", "worldmodels"} | BUILT_FROM.get(path.stem, set()), path


def test_the_simulator_imports_nothing_of_ours_but_errors_and_torch_for_a_gpu_only() -> None:
    for path in SIMULATOR.rglob("*.py"):
        found = set(imports(path))
        ours = {name for name in found if name.split(".")[0] == "worldmodels"}
        outside = {name for name in ours if not name.startswith("worldmodels.envs.carracing")}
        assert all(name.startswith("worldmodels.errors.") for name in outside), path
        assert path.stem in FOR_A_GPU or "torch" not in {name.split(".")[0] for name in found}, path


@pytest.mark.system
def test_importing_the_simulator_loads_no_other_part_of_the_project() -> None:
    package = "worldmodels.envs.carracing"
    program = (
        f"import {package}.vector, {package}.single, json, sys; print(json.dumps([*sys.modules]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = json.loads(done.stdout)
    foreign = {"torch", "hydra", "omegaconf", "lightning_fabric", "h5py", "matplotlib", "cma"}
    assert not foreign & {name.split(".")[0] for name in loaded}
    ours = [name for name in loaded if name.startswith("worldmodels.")]
    inside = [name for name in ours if name == package or name.startswith(f"{package}.")]
    # The packages that contain it, and what these import.
    parents = {
        f"worldmodels.{name}" for name in ("envs", "errors", "system", "system.threads", "version")
    }
    assert set(ours) - set(inside) <= parents


def test_files_functions_and_signatures_are_short() -> None:
    long = []
    for path in (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))):
        text, name = path.read_text(), path.relative_to(ROOT)
        if (count := len(text.splitlines())) > FILE_LINES:
            long.append(f"{name}: {count} lines")
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, FUNCTIONS):
                continue
            assert node.end_lineno is not None
            if (count := node.end_lineno - node.lineno + 1) > FUNCTION_LINES:
                long.append(f"{name}: {node.name} has {count} lines")
            arguments = [*node.args.posonlyargs, *node.args.args]
            count = len(arguments) - bool(arguments and arguments[0].arg in ("self", "cls"))
            if count > POSITIONAL_ARGUMENTS:
                long.append(f"{name}: {node.name} has {count} positional arguments")
    assert not long


def documented(docstring: str) -> list[str]:
    """The names below ``Args:`` of a docstring in Google style."""
    block = re.search(r"^Args:\n((?: {4}.*\n?|\n)*)", docstring, re.MULTILINE)
    entries = re.findall(r"^ {4}(\w[\w, ]*):", block[1], re.MULTILINE) if block else []
    return [name.strip() for entry in entries for name in entry.split(",")]


def parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """The names of a function's parameters, without ``self`` and ``cls``."""
    arguments = node.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    named += [argument for argument in (arguments.vararg, arguments.kwarg) if argument is not None]
    return {argument.arg for argument in named} - {"self", "cls"}


def attributes(node: ast.ClassDef) -> set[str]:
    """The fields and properties of a class, and the parameters of its constructor."""
    found: set[str] = set()
    for part in node.body:
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            found.add(part.target.id)
        elif isinstance(part, FUNCTIONS):
            found |= parameters(part) if part.name == "__init__" else {part.name}
    return found


def test_docstrings_describe_the_arguments_that_there_are() -> None:
    """Of a function that describes arguments, all of them; of a class, none that it lacks."""
    wrong, described = [], 0
    for path in (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text())):
            required: set[str] = set()
            if isinstance(node, ast.ClassDef):
                known = attributes(node)
            elif isinstance(node, FUNCTIONS):
                known = required = parameters(node)
            else:
                continue
            names = set(documented(ast.get_docstring(node) or ""))
            if names and (names - known or required - names):
                different = ", ".join(sorted((names - known) | (required - names)))
                wrong.append(f"{path.relative_to(ROOT)}: {node.name}: {different}")
            described += len(names)
    assert not wrong
    assert described > 100, "the pattern finds no arguments"
