"""Makes constraints.txt and the files beside this one from pyproject.toml; run it as `make lock`.

    constraints.txt    a version for every distribution that an extra or a build needs
    locks/torch.txt    torch and its libraries for GPUs
    locks/base.txt     what else every installation has
    locks/<extra>.txt  what an extra adds to those two
    locks/build.txt    what building from source needs

The files in ``locks/`` hold the SHA-256 of every file of a release as well, for all systems and
Python versions, as pip's ``--require-hashes`` needs them. Versions stay as they are unless
pyproject.toml requires others; ``--upgrade`` takes the newest.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
TORCH = re.compile(r"(torch|triton|nvidia-.*|cuda-.*)==")
"""Releases that differ between builds of torch; another build comes from an index of its own."""

HEAD = "# Made by make lock."

BUILDING = ("editables", "setuptools")
"""Beside the requirements of pyproject.toml: of an editable installation; of hydra-core's
antlr4-python3-runtime, which is released as source alone."""

Lock = dict[str, str]
"""Requirement, with its marker -> the lines of the lock."""


def main() -> None:
    """Resolve, and write every file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--upgrade", action="store_true", help="take the newest releases")
    upgrade = parser.parse_args().upgrade
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    building = [*project["build-system"]["requires"], *BUILDING]
    with tempfile.TemporaryDirectory() as name:
        wanted, versions = Path(name, "building.in"), Path(name, "versions.txt")
        wanted.write_text("\n".join(building))
        if not upgrade:
            versions.write_text(CONSTRAINTS.read_text())  # uv keeps the versions of its output file
        everything = resolve(versions, "pyproject.toml", "--all-extras", str(wanted))
        agreed = ("--constraint", str(versions))
        base = resolve(Path(name, "base.txt"), "pyproject.toml", *agreed)
        torch = {line: hashes for line, hashes in base.items() if TORCH.match(line)}
        rest = {line: hashes for line, hashes in base.items() if line not in torch}
        parts = {"torch": torch, "base": rest}
        parts["build"] = resolve(Path(name, "build.txt"), str(wanted), *agreed)
        for extra in project["project"]["optional-dependencies"]:
            out = Path(name, f"{extra}.txt")
            both = resolve(out, "pyproject.toml", "--extra", extra, *agreed)
            parts[extra] = {line: hashes for line, hashes in both.items() if line not in base}
    CONSTRAINTS.write_text("\n".join([HEAD, *everything, ""]))
    for part, lock in parts.items():
        (ROOT / "locks" / f"{part}.txt").write_text("\n".join([HEAD, *lock.values(), ""]))


def resolve(out: Path, *sources: str) -> Lock:
    """Resolve requirements for every system into the file `out`, by name."""
    options = ("--universal", "--python-version", "3.11", "--generate-hashes", "--no-annotate")
    plain = ("--no-header", "--no-emit-index-url", "--no-emit-find-links", "--quiet")
    uv = (sys.executable, "-m", "uv", "pip", "compile")
    command = (*uv, *options, *plain, "--output-file", str(out), *sources)
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    blocks = re.split(r"\n(?=\S)", out.read_text().strip())
    return {block.partition(" \\\n")[0]: block for block in blocks}


if __name__ == "__main__":
    main()
