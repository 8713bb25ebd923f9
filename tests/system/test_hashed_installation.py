"""The locks: what they pin installs into an empty environment, and nothing else does."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.system, pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ("--requirement", "build.txt", "--requirement", "atari.txt")


def install(folder: Path, locks: Path) -> subprocess.CompletedProcess[str]:
    """Install the smallest locks into a new environment."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip: list[str | Path] = [
        folder / "bin/python",
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
    ]
    line = [*pip, "--quiet", "--no-deps", "--require-hashes", *LOCKS]
    return subprocess.run(line, cwd=locks, capture_output=True, text=True, check=False)


def test_an_extra_installs_by_its_hashes(tmp_path: Path) -> None:
    done = install(tmp_path, ROOT / "locks")
    assert done.returncode == 0, done.stderr
    line: list[str | Path] = [tmp_path / "bin/python", "-m", "pip", "freeze", "--all"]
    frozen = subprocess.run(line, capture_output=True, text=True, check=True).stdout.lower()
    pins = [
        line.partition(" ")[0]
        for name in LOCKS[1::2]
        for line in (ROOT / "locks" / name).read_text().splitlines()
        if line[0].isalpha()
    ]
    assert {pin.replace("-", "_") for pin in pins} <= {*frozen.replace("-", "_").split()}


def test_a_file_of_another_hash_is_refused(tmp_path: Path) -> None:
    for name in LOCKS[1::2]:
        text = (ROOT / "locks" / name).read_text()
        (tmp_path / name).write_text(re.sub(r"(?<=sha256:)\w+", "0" * 64, text))
    done = install(tmp_path / "env", tmp_path)
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr
