"""Shell scripts, linted and run for real against stand-ins for the commands that they call.

A stand-in is an executable on PATH that writes down how it was called. They behave as the real ones
were seen to behave where it matters: srun answers SIGTERM by killing its task, scancel signals the
task alone.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import HANG_SECONDS

ROOT = Path(__file__).resolve().parent.parent
RECORD = 'printf "%s\\n" "$(basename "$0") $*" >> "$CALLS"\n'


def linter(name: str) -> str:
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if not found:
        pytest.skip(f"{name} is not installed (pip install -e .[dev])")
    return found


def lint(name: str, *arguments: str) -> None:
    """Fail with what a linter finds."""
    done = subprocess.run(
        [linter(name), *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


class Commands:
    """Stand-ins in a folder that comes first on PATH, and the calls they received."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.calls_file = folder / "calls"
        self.calls_file.touch()
        self.env = {
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "HOME": str(folder),
            "CALLS": str(self.calls_file),
            "FOLDER": str(folder),
        }

    def add(self, name: str, body: str) -> None:
        path = self.bin / name
        path.write_text(f"#!/usr/bin/env bash\n{RECORD}{body}\n")
        path.chmod(0o755)

    def calls(self, name: str) -> list[str]:
        """The arguments of each call of `name`."""
        lines = self.calls_file.read_text().splitlines()
        return [line.removeprefix(f"{name} ") for line in lines if line.startswith(f"{name} ")]

    def run(self, *command: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=cwd,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
            check=False,
        )
