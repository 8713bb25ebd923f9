"""The examples, which need other learning libraries."""

import runpy
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from worldmodels.envs.carracing.vector import CarRacingVectorEnv

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"

pytestmark = pytest.mark.system


@pytest.fixture
def sb3_ppo() -> dict[str, Any]:
    pytest.importorskip("stable_baselines3", reason="needs pip install stable-baselines3")
    return runpy.run_path(str(EXAMPLES / "sb3_ppo.py"))


def test_the_adapter_gives_ended_episodes_as_stable_baselines_takes_them(
    sb3_ppo: dict[str, Any],
) -> None:
    env = CarRacingVectorEnv(2, 2, size=64, autoreset_mode="SameStep")
    actions = np.tile(np.array([0, 1, 0], np.float32), (2, 1))
    with closing(sb3_ppo["VectorEnvAdapter"](env)) as adapter:
        adapter.seed(3)
        first = adapter.reset()
        _, rewards, dones, infos = adapter.step(actions)
        assert rewards.dtype == np.float32
        assert (dones.tolist(), infos) == ([False, False], [{}, {}])
        observations, _, dones, infos = adapter.step(actions)
        assert dones.all()
        for i, info in enumerate(infos):
            assert info["TimeLimit.truncated"]
            assert (info["terminal_observation"] != observations[i]).any()
        adapter.seed(3)
        np.testing.assert_array_equal(adapter.reset(), first)


def test_ppo_of_stable_baselines_trains(
    sb3_ppo: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["sb3_ppo.py", "--steps", "512", "--num-envs", "4"]
    monkeypatch.setattr(sys, "argv", words)
    sb3_ppo["main"]()
    assert "n_updates" in capsys.readouterr().out
