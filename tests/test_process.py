"""The process around the program: standard streams that take nothing, signals while it starts."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SHELL = 'exec "$0" -m worldmodels "$@"'


@pytest.mark.parametrize(
    ("redirection", "word", "code", "said"),
    [
        (">&-", "--help", 0, []),
        ("2>&-", "vae=5", 1, []),
        (">&- 2>&-", "vae=5", 1, []),
        (">/dev/full", "--help", 1, ["No space left on device"]),
    ],
)
def test_closed_and_full_streams(redirection: str, word: str, code: int, said: list[str]) -> None:
    line = ["bash", "-c", f"{SHELL} {redirection}", sys.executable, word]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == code
    lines = done.stderr.splitlines()
    assert len(lines) == len(said), done.stderr
    assert all(part in line for part, line in zip(said, lines, strict=True))


@pytest.mark.parametrize("words", [("--help",), ("stage=inspect", "preset=smoke")])
def test_output_that_nobody_reads_is_one_line(smoke: Path, words: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    line = [sys.executable, "-m", "worldmodels", *words, f"data={smoke}"]
    done = subprocess.run(line, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert done.returncode == 1
    assert done.stderr.startswith("error: standard output: Broken pipe; ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_signal_during_the_imports_is_one_line(
    tmp_path: Path, number: signal.Signals
) -> None:
    """It is sent while the first module that takes long is looked for."""
    (tmp_path / "omegaconf.py").write_text(
        f"""
import os, sys
os.kill(os.getpid(), {int(number)})
sys.path.remove({str(tmp_path)!r})
del sys.modules["omegaconf"]
import omegaconf
"""
    )
    variables = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    line = [sys.executable, "-m", "worldmodels", "stage=rollouts", f"data={tmp_path}/data"]
    done = subprocess.run(line, capture_output=True, text=True, env=variables, check=False)
    assert done.returncode == 75, done.stderr
    assert done.stderr.startswith(f"stopped by {number.name}: ")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "data").exists()
