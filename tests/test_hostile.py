"""benchmarks/hostile: the matrix in small; `make hostile` runs all of it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SEED = "seed=1"


def hostile(*words: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, str(ROOT / "benchmarks/hostile/run.py"), *words]
    return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_topic_that_is_not_there_is_one_line() -> None:
    done = hostile("fire")
    assert done.returncode == 1
    assert done.stderr.startswith("error: fire: no such topic; choose from kills, workers, ")
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_topic_holds_in_small(tmp_path: Path) -> None:
    out = tmp_path / "hostile.json"
    done = hostile(SEED, "kills=14", "cases=15", "--out", str(out))
    assert done.returncode == 0, done.stdout
    assert done.stdout.startswith(f"{SEED}\n")
    topics = json.loads(out.read_text())["topics"]
    assert len(topics) == 9
    assert all(row["tried"] > 0 for row in topics)
