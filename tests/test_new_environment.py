"""Environments that this project knows nothing of, by configuration alone."""

import json
import re
from pathlib import Path

import pytest
from command import ALONE, run

from worldmodels.agents.folder import read_agent
from worldmodels.data.episodes import EpisodeSet
from worldmodels.errors import install

pytestmark = pytest.mark.system
GUIDE = Path(__file__).resolve().parent.parent / "docs" / "new-environment.md"


def test_every_stage_runs_on_an_atari_game(tmp_path: Path) -> None:
    pytest.importorskip("ale_py", reason=f"ale-py is not installed: {install('atari')}")
    done = run(tmp_path, "stage=all", "preset=smoke", "env=breakout", ALONE)
    assert done.returncode == 0, done.stdout + done.stderr
    folder = tmp_path / "breakout-smoke"
    actions = EpisodeSet.open([folder / "rollouts"]).episode(0).actions
    assert actions.shape == (40, 4)
    assert ((actions == 1).sum(axis=1) == 1).all()
    assert (actions.sum(axis=1) == 1).all()
    agent = read_agent(folder / "controller/agent")
    assert agent.dynamics.action_size == 4
    scores = json.loads((folder / "evaluate/scores.json").read_text())
    assert set(scores) == {"agent", "random policy"}


def test_the_guides_environment_runs(tmp_path: Path) -> None:
    pytest.importorskip("vizdoom", reason=f"ViZDoom is not installed: {install('doom')}")
    found = re.search(r"```yaml\n(.*?)```", GUIDE.read_text(), flags=re.DOTALL)
    assert found is not None
    (tmp_path / "env").mkdir()
    (tmp_path / "env/gather.yaml").write_text(found[1])
    words = ("--config-dir", str(tmp_path), "stage=rollouts", "env=gather", "preset=smoke", ALONE)
    done = run(tmp_path, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    episodes = EpisodeSet.open([tmp_path / "gather-smoke/rollouts"])
    assert episodes.num_episodes == 8
    assert episodes.frames(0, 0, 1).shape == (1, 64, 64, 3)
