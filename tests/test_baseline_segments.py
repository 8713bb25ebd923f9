"""What a segment of a baseline's training takes over from the one before."""

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

stable_baselines3 = pytest.importorskip(
    "stable_baselines3", reason="Stable-Baselines3 is not installed"
)

DQN = ("baseline.algorithm=dqn", DISCRETE, "env.engine=gymnasium")


WORDS = (
    *(*BRIEF, *DQN),
    f"baseline.options={{{SMALL}, {BUFFER}, target_update_interval: 40, exploration_fraction: 1,"
    " n_steps: 3}",
)
"""Two segments of 32 steps of two environments. Until step 16 all actions are random."""


class Training:
    """A training of a DQN.

    Attributes:
        targets: weights of its target network after each segment, as one vector.
        dones: in its replay buffer, after each segment.
        timeouts: the same.
        rates: share of random actions in each step with a policy.
    """

    def __init__(self, folder: Path) -> None:
        self.run = Run(folder / "it")
        self.targets: list[torch.Tensor] = []
        self.dones: list[np.ndarray] = []
        self.timeouts: list[np.ndarray] = []
        self.rates: list[float] = []
        predict = stable_baselines3.DQN.predict

        def noted(model: Any, *args: Any, **kwargs: Any) -> Any:
            self.rates.append(model.exploration_rate)
            return predict(model, *args, **kwargs)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(baseline, "_evaluate", self._evaluated)
            patched.setattr(stable_baselines3.DQN, "predict", noted)
            baseline.run(Context(composed(*WORDS), self.run))

    def _evaluated(self, _: Any, __: Any, policy: Any) -> Outcome:
        segment = policy.path.parent
        parameters = weights.load(segment / "state.safetensors")["parameters"]["policy"]
        target = sorted(name for name in parameters if name.startswith("q_net_target"))
        self.targets.append(torch.cat([parameters[name].flatten() for name in target]))
        self.dones.append(np.load(segment / "dones.npy"))
        self.timeouts.append(np.load(segment / "timeouts.npy"))
        return Outcome(np.zeros(2), np.ones(2, np.int64), np.zeros(2, bool))


def test_a_segment_goes_on_from_the_one_before(tmp_path: Path) -> None:
    training = Training(tmp_path)
    # The target network is updated after 40 steps.
    first, second = training.targets
    assert not torch.equal(first, second)
    # The share of random actions falls over both segments.
    assert training.rates == pytest.approx([1 - 0.95 * step / 64 for step in range(16, 64, 2)])
    # Returns of several steps end where the first segment does.
    (before, after), (dones, _) = training.timeouts, training.dones
    assert not dones[-1].any()
    assert not before[-1].any()
    np.testing.assert_array_equal(after[: len(before) - 1], before[:-1])
    assert after[len(before) - 1].all()
    # A finished training keeps no segment, also if it was killed before it had removed the last.
    folder = tmp_path / "it/baseline"
    assert (folder / "policy.safetensors").exists()
    assert not list(folder.glob("segment-*"))
    (folder / "segment-00001").mkdir()
    (folder / "segment-00001/observations.npy").touch()
    assert Training(tmp_path).targets == []
    assert not list(folder.glob("segment-*"))
