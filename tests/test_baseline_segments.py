"""What a segment of a baseline's training takes over from the one before."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from baseline_training import BRIEF, BUFFER, DISCRETE, SMALL
from command import composed

from worldmodels.files import weights
from worldmodels.runs.artifacts import Run
from worldmodels.stages import baseline
from worldmodels.stages.context import Context
from worldmodels.worlds.rollout import Outcome

pytest.importorskip("stable_baselines3", reason="Stable-Baselines3 is not installed")

DQN = ("baseline.algorithm=dqn", DISCRETE, "env.engine=gymnasium")


def states(
    folder: Path, monkeypatch: pytest.MonkeyPatch, options: str, read: Callable[[Path], Any]
) -> list[Any]:
    """What `read` finds in the folder of each segment of a DQN, which has 32 steps of two
    environments."""
    found = []

    def evaluated(_: Any, __: Any, policy: Any) -> Outcome:
        found.append(read(policy.path.parent))
        return Outcome(np.zeros(2), np.ones(2, np.int64), np.zeros(2, bool))

    monkeypatch.setattr(baseline, "_evaluate", evaluated)
    words = (*BRIEF, *DQN, f"baseline.options={{{SMALL}, {BUFFER}, {options}}}")
    baseline.run(Context(composed(*words), Run(folder / "it")))
    return found


def target(segment: Path) -> torch.Tensor:
    """The weights of the target network of a DQN, as one vector."""
    policy = weights.load(segment / "state.safetensors")["parameters"]["policy"]
    parts = [policy[name].flatten() for name in sorted(policy) if name.startswith("q_net_target")]
    return torch.cat(parts)


def test_the_target_network_is_updated_after_steps_of_several_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After 40 of 64 steps, of which a segment has 32."""
    first, second = states(tmp_path, monkeypatch, "target_update_interval: 40", target)
    assert not torch.equal(first, second)


def test_random_actions_of_a_segment_begin_with_the_share_that_the_schedule_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import stable_baselines3

    rates, predict = [], stable_baselines3.DQN.predict

    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        rates.append(self.exploration_rate)
        return predict(self, *args, **kwargs)

    monkeypatch.setattr(stable_baselines3.DQN, "predict", noted)
    states(tmp_path, monkeypatch, "exploration_fraction: 1", target)
    # Until step 16 all actions are random (learning_starts).
    assert rates == pytest.approx([1 - 0.95 * step / 64 for step in range(16, 64, 2)])


def test_returns_of_several_steps_end_where_a_segment_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def recorded(segment: Path) -> tuple[np.ndarray, np.ndarray]:
        return np.load(segment / "dones.npy"), np.load(segment / "timeouts.npy")

    (dones, before), (_, after) = states(tmp_path, monkeypatch, "n_steps: 3", recorded)
    assert not dones[-1].any()
    assert not before[-1].any()
    np.testing.assert_array_equal(after[: len(before) - 1], before[:-1])
    assert after[len(before) - 1].all()


def test_a_finished_training_keeps_no_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, options = tmp_path / "it/baseline", "gamma: 0.98"
    assert states(tmp_path, monkeypatch, options, lambda path: path.name) == [
        "segment-00000",
        "segment-00001",
    ]
    assert (folder / "policy.safetensors").exists()
    assert not list(folder.glob("segment-*"))
    # A command that was killed before it had removed the last one.
    (folder / "segment-00001").mkdir()
    (folder / "segment-00001/observations.npy").touch()
    assert states(tmp_path, monkeypatch, options, lambda path: path.name) == []
    assert not list(folder.glob("segment-*"))
