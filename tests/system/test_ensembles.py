"""Every stage with an ensemble of dynamics models."""

from pathlib import Path

import numpy as np
import pytest
import torch
from command import ALONE, error_line, run

import worldmodels
from worldmodels.agents.folder import read_agent
from worldmodels.agents.model_files import load_members
from worldmodels.errors import ConfigError
from worldmodels.files.atomic import read_json
from worldmodels.runs.tracking import read_metrics

pytestmark = [pytest.mark.system, pytest.mark.timeout(1800)]

WORDS = ("preset=smoke", "evaluate.engine=native", "env.num_envs=2", ALONE)


def test_every_stage_uses_the_ensemble(copy: Path) -> None:
    chosen = ("run=ensemble", "base=smoke", "rnn.members=2", "controller.world=dream")
    drawn = ("controller.member_sampling=episode", "controller.pessimism=0.5")
    done = run(copy, "stage=all", *WORDS, *chosen, *drawn)
    assert done.returncode == 0, done.stdout + done.stderr
    made = copy / "ensemble"
    nll = read_json(made / "rnn/manifest.json")["summary"]["validation_nll"]
    assert nll.keys() == {"mdn_rnn", "mdn_rnn, member 2", "single_gaussian", "copy_last"}
    first, second = load_members(made / "rnn/rnn.safetensors")
    (alone,) = load_members(copy / "smoke/rnn/rnn.safetensors")
    for name, tensor in alone.state_dict().items():
        assert torch.equal(first.state_dict()[name], tensor)
        assert not torch.equal(second.state_dict()[name], tensor)

    agent = read_agent(made / "controller/agent")
    assert len(agent.others) == 1
    rows = read_metrics(made / "controller/metrics.csv")
    disagreement = {step: value for step, name, value, _ in rows if name == "dream/disagreement"}
    assert disagreement.keys() == {1, 2}
    assert all(value > 0 for value in disagreement.values())
    assert "agent in the dream" in read_json(made / "evaluate/scores.json")
    page = (made / "report/index.html").read_text()
    assert "disagreement of the members" in page
    assert '<th scope="row">MDN-RNN, member 2</th>' in page
    assert "is not finished" not in page

    frames = np.random.default_rng(0).integers(256, size=(3, 96, 96, 3), dtype=np.uint8)
    assert np.shape(worldmodels.load_agent(made / "controller").act(frames)) == (3, 3)
    rewards = []
    for pessimism in (0.0, 2.0):
        env = worldmodels.make_dream(made / "controller", 4, pessimism=pessimism)
        env.reset(seed=0)
        rewards.append(env.step(np.zeros((4, 3), np.float32))[1])
    assert (rewards[1] < rewards[0]).all()
    done = run(copy, "stage=export", "run=ensemble")
    assert done.returncode == 0, done.stderr
    assert "the first of 2 members" in done.stdout


def test_pessimism_without_an_ensemble_is_refused(copy: Path) -> None:
    search = ("stage=controller", *WORDS, "run=alone", "base=smoke", "controller.world=dream")
    line = error_line(run(copy, *search, "controller.pessimism=1"))
    assert "controller.pessimism=1.0: the dynamics model has one member; give 0" in line
    with pytest.raises(ConfigError, match="pessimism=1: the dynamics model has one"):
        worldmodels.make_dream(copy / "smoke/controller", pessimism=1)
    with pytest.raises(ConfigError, match="member_sampling=both: choose one of step"):
        worldmodels.make_dream(copy / "smoke/controller", member_sampling="both")
