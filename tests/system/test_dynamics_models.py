"""Every stage with the dynamics models that are not the default."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from command import ALONE, run

import worldmodels
from worldmodels.agents.folder import read_agent
from worldmodels.files.atomic import read_json

pytestmark = [pytest.mark.system, pytest.mark.timeout(1800)]


@pytest.mark.parametrize(("model", "name"), [("gru", "GRU"), ("transformer", "Transformer")])
def test_every_stage_uses_the_dynamics_model(copy: Path, model: str, name: str) -> None:
    words = ("preset=smoke", "evaluate.engine=native", "env.num_envs=2", ALONE)
    chosen = ("run=other", "base=smoke", f"rnn.model={model}", "controller.world=dream")
    done = run(copy, "stage=all", *words, *chosen)
    assert done.returncode == 0, done.stdout + done.stderr
    made = copy / "other"
    assert model in read_json(made / "rnn/manifest.json")["summary"]["validation_nll"]
    scores = read_json(made / "evaluate/scores.json")
    assert {"agent", "random policy", "agent in the dream"} <= scores.keys()
    page = (made / "report/index.html").read_text()
    assert f'<th scope="row">{name}</th>' in page
    assert "is not finished" not in page
    named = page.replace("paper: VAE without MDN-RNN", "")  # a score of the paper's
    assert "MDN-RNN" not in named

    agent = made / "controller/agent"
    assert read_agent(agent).dynamics.sizes["hidden_size"] == 32
    frames = np.random.default_rng(0).integers(256, size=(3, 96, 96, 3), dtype=np.uint8)
    policy = worldmodels.load_agent(agent)
    assert np.shape(policy.act(frames)) == (3, 3)
    shutil.rmtree(made / "evaluate")
    done = run(copy, "stage=evaluate", *words, "run=other", f"model={agent}", f"rnn.model={model}")
    assert done.returncode == 0, done.stderr
    assert read_json(made / "evaluate/scores.json")["agent"] == scores["agent"]
