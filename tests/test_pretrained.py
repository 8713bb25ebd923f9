"""The agent that the repository ships."""

from pathlib import Path

import numpy as np
import pytest

from worldmodels.agent import load_agent
from worldmodels.artifacts import fingerprint_file, read_json
from worldmodels.envs.engines import EnvSpec
from worldmodels.evolution.fitness import Packet
from worldmodels.worlds.recipes import RealRecipe

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "pretrained" / "carracing"


def test_it_is_the_agent_that_was_judged() -> None:
    judged = read_json(ROOT / "docs" / "results" / "laptop.json")["stages"]["evaluate"]
    files = [*sorted(FOLDER.glob("*.safetensors")), FOLDER / "agent.json"]
    assert "-".join(fingerprint_file(path)[:8] for path in files) == judged["inputs"]["agent"]


def test_it_is_small_enough_for_git() -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= 12e6


@pytest.mark.parametrize(("engine", "count"), [("native", 16), ("gymnasium", 1)])
def test_it_drives_as_its_card_says(engine: str, count: int) -> None:
    judged = read_json(ROOT / "docs" / "results" / "laptop.json")["scores"]["agent"]
    agent = load_agent(FOLDER)
    world = RealRecipe(
        EnvSpec(engine=engine),
        vision=FOLDER / "vae.safetensors",
        memory=FOLDER / "rnn.safetensors",
        sampled=agent.wiring.sampled,
        hidden_after=agent.wiring.hidden_after,
    ).build()
    seeds = tuple(judged["seeds"][:count])
    packet = Packet(agent.parameters[None], seeds, 1000, agent.wiring.head)
    try:
        outcome = packet(world, lambda steps: None)
    finally:
        world.close()
    expected = np.asarray(judged["returns"][:count])
    error = judged["std"] / np.sqrt(count)
    assert abs(outcome.returns.mean() - expected.mean()) < 4 * error
