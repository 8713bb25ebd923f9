"""Collection until there are enough frames, and with actions that are noise."""

import json
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
from command import ALONE, composed, error_line, run

from worldmodels.config.limits import check
from worldmodels.data.episodes import EpisodeSet
from worldmodels.errors import ConfigError

WORDS = ("stage=rollouts", "preset=smoke", "run=r", "env.num_envs=2", "rollouts.episodes=100")
BUDGET = (*WORDS, "rollouts.frames=100", "rollouts.max_steps=14", "rollouts.stall_steps=6")


def collected(data: Path, *words: str) -> dict[str, Any]:
    """The manifest of rollouts that are collected to their end."""
    done = run(data, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads((data / "r/rollouts/manifest.json").read_text())
    return found


@pytest.mark.system
def test_episodes_are_added_until_there_are_enough_frames(tmp_path: Path) -> None:
    manifest = collected(tmp_path / "one", *BUDGET, ALONE)
    episodes = EpisodeSet.open([tmp_path / "one/r/rollouts"])
    sizes = [shard.num_frames for shard in episodes.shards]
    assert sum(sizes[:-1]) < 100 <= sum(sizes)
    assert all(len(shard.lengths) == 2 for shard in episodes.shards)
    assert manifest["summary"]["frames"] == sum(sizes)
    # With more workers than are needed, and killed in the middle, they are the same.
    folder = tmp_path / "killed/r/rollouts"
    done = run(tmp_path / "killed", *BUDGET, ALONE, kill_at_write=3)
    assert done.returncode == -9, done.stdout + done.stderr
    again = collected(tmp_path / "killed", *BUDGET, "workers.processes=3")
    assert again["fingerprint"] == manifest["fingerprint"]
    assert {p.name for p in folder.glob("shard-*")} == set(manifest["files"])
    # A shard that was lost later is collected again, and no other.
    (folder / "shard-00001.h5").unlink()
    others = {path: path.stat().st_mtime_ns for path in folder.glob("shard-*")}
    healed = collected(tmp_path / "killed", *BUDGET, ALONE)
    assert healed["files"] == manifest["files"]
    assert (folder / "shard-00001.h5").exists()
    assert others == {path: path.stat().st_mtime_ns for path in others}
    # More frames extend what is there.
    copytree(tmp_path / "one", tmp_path / "more")
    more = collected(tmp_path / "more", *BUDGET, "rollouts.frames=150", ALONE)
    assert manifest["files"].items() < more["files"].items()
    assert more["summary"]["frames"] >= 150


def test_no_more_episodes_than_rollouts_episodes_are_collected(tmp_path: Path) -> None:
    manifest = collected(tmp_path, *BUDGET, "rollouts.episodes=4", "rollouts.frames=9999", ALONE)
    assert manifest["summary"]["episodes"] == 4


def test_actions_of_noise_are_those_of_a_controller_whose_outputs_are_noise(
    tmp_path: Path,
) -> None:
    noise = (*WORDS, "rollouts.policy=action_noise", "rollouts.action_noise=0.6")
    collected(tmp_path, *noise, "env.num_envs=50", "rollouts.max_steps=40", ALONE)
    episodes = EpisodeSet.open([tmp_path / "r/rollouts"])
    actions = np.stack([episodes.episode(i).actions for i in range(episodes.num_episodes)])
    steer, gas, brake = np.moveaxis(actions, -1, 0)  # (episodes, steps) each
    outputs = np.arctanh(np.clip(steer, -0.999999, 0.999999))
    assert outputs.std() == pytest.approx(0.6, abs=0.03)
    assert np.arctanh(2 * gas - 1).std() == pytest.approx(0.6, abs=0.03)
    following = np.corrcoef(outputs[:, :-1].ravel(), outputs[:, 1:].ravel())[0, 1]
    assert following == pytest.approx(0.8, abs=0.03)
    assert np.mean(brake == 0) == pytest.approx(0.5, abs=0.05)
    assert np.corrcoef(steer.ravel(), gas.ravel())[0, 1] == pytest.approx(0, abs=0.08)
    said = error_line(run(tmp_path, *WORDS, "run=no", "rollouts.policy=action_noise"))
    assert "give rollouts.action_noise above 0" in said
    with pytest.raises(ConfigError, match="its actions would be constant"):
        check(composed("preset=smoke", "rollouts.policy=action_noise"))


def test_a_reward_that_is_not_finite_ends_the_stage_with_the_environments_name(
    tmp_path: Path,
) -> None:
    (tmp_path / "open").touch()
    game = ("env.name=gate", "env.id=gate_env:Boundless-v0", "env.crop_rows=null")
    options = (f"env.kwargs.folder={tmp_path}", "env.kwargs.since=5", "env.squash=null")
    done = run(tmp_path, *WORDS, *game, *options, "rollouts.policy=uniform", ALONE)
    said = "error: env.id=gate_env:Boundless-v0: the reward of environment 0 is nan; correct the"
    assert error_line(done).startswith(said)
    assert not list(tmp_path.rglob("shard-*"))
