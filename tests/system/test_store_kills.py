"""SIGKILL in each stage, and the run continued in an empty folder from the store alone."""

from pathlib import Path

import pytest
from command import run
from lost_machines import WORDS, killed_in_each_stage, made

pytestmark = pytest.mark.system


def test_killed_in_each_stage_and_resumed_from_the_store_alone(tmp_path: Path) -> None:
    done = run(tmp_path / "whole", "stage=all", *WORDS)
    assert done.returncode == 0, done.stdout + done.stderr
    last = killed_in_each_stage(tmp_path, *WORDS)
    assert made(last) == made(tmp_path / "whole" / "smoke")
