"""The probability of termination that stage=watch and the graphs of stage=export give."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from command import composed

from worldmodels.agents.folder import Agent, read_agent
from worldmodels.agents.model_files import load_first_latents
from worldmodels.config.choices import Format
from worldmodels.envs.engines import EnvSpec
from worldmodels.export.graphs import DynamicsGraph
from worldmodels.models.dynamics import DynamicsModel, termination_threshold, unweighted
from worldmodels.models.mdnrnn import MDNRNN
from worldmodels.runs.artifacts import Run
from worldmodels.stages.context import Context
from worldmodels.stages.export import export
from worldmodels.watching.game import Game
from worldmodels.worlds.dream import MIXTURE_STREAM, NORMAL_STREAM, DreamWorld
from worldmodels.worlds.noise import EpisodeNoise
from worldmodels.worlds.specs import RealWorldSpec

PRETRAINED = Path(__file__).resolve().parent.parent / "pretrained"
WEIGHT = 10.0
"""Of terminations in the training of the shipped Take Cover agent."""


def weighted(agent: Agent, weight: float) -> Agent:
    """The agent with a dynamics model that says it was trained with this weight."""
    sizes = {**agent.dynamics.sizes, "termination_pos_weight": weight}
    dynamics = MDNRNN(**sizes)
    dynamics.load_state_dict(agent.dynamics.state_dict())
    return replace(agent, dynamics=dynamics)


def shown_in_a_game(agent: Agent) -> np.ndarray:
    """The probabilities that are shown beside the steps of a game."""
    folder, found = PRETRAINED / "carracing", []
    models = folder / "vae.safetensors", folder / "rnn.safetensors"
    spec = RealWorldSpec(EnvSpec(engine="native"), 1, *models, agent.config.features)
    game = Game(spec, agent)
    with closing(game):
        game.begin(3)
        for _ in range(6):
            action = game.choose()
            insight = game.insight(action)
            assert insight is not None
            found.append(insight.termination)
            game.step(action)
    return np.array(found)


def test_a_watched_moment_shows_the_probability_without_the_weight_of_training() -> None:
    agent = read_agent(PRETRAINED / "carracing")
    plain, found = (shown_in_a_game(weighted(agent, weight)) for weight in (1.0, WEIGHT))
    assert plain.min() > 0
    np.testing.assert_allclose(found, plain / (plain + WEIGHT * (1 - plain)), rtol=1e-4)


@torch.inference_mode()
def test_a_graph_has_the_probability_and_ends_episodes_where_the_learned_model_does() -> None:
    agent = read_agent(PRETRAINED / "takecover")
    assert agent.dynamics.termination_pos_weight == WEIGHT
    threshold = termination_threshold(agent.dynamics)
    assert threshold == pytest.approx(1 / 11)
    graph = DynamicsGraph(agent)
    first = load_first_latents(PRETRAINED / "takecover" / "rnn.safetensors")
    seeds = list(range(16))
    latents = torch.from_numpy(first.mean[: len(seeds)])
    temperature = 1.15
    world = DreamWorld(agent.dynamics, first, temperature, agent.config.features)
    world.begin(latents, seeds)
    uniform, normal = (
        EpisodeNoise(seeds, stream, torch.device("cpu"))
        for stream in (MIXTURE_STREAM, NORMAL_STREAM)
    )
    state = agent.dynamics.initial_state(len(seeds))
    time = torch.zeros(len(seeds), dtype=torch.int64)
    between = ended = 0
    size, actions = latents.shape[1], torch.full((len(seeds), 1), -1.0)  # into a wall
    for step in range(48):
        noise = uniform.uniform(time + step, size), normal.normal(time + step, size)
        told = graph(latents, actions, *noise, torch.tensor(temperature), *state)
        latents, _, termination, *state = told
        odds = agent.dynamics.predict(tuple(state)).termination.double().exp().numpy() / WEIGHT
        np.testing.assert_allclose(termination, odds / (1 + odds), rtol=1e-4, atol=1e-12)
        terminated = world.step(actions).terminated
        np.testing.assert_array_equal(termination.numpy() > threshold, terminated)
        np.testing.assert_allclose(world.latents, latents, atol=1e-4)
        latents = world.latents
        ended += int(terminated.sum())
        between += int((terminated & (termination.numpy() < 0.5)).sum())
    assert ended > between > 0


def test_a_model_of_another_package_without_a_weight_gives_its_own_probability() -> None:
    class Unweighted:
        """As a model whose loss has no weight of terminations."""

    model: DynamicsModel = Unweighted()  # type: ignore[assignment]
    assert unweighted(model, torch.tensor(1.5)) == 1.5
    assert termination_threshold(model) == 0.5


def test_graphs_of_an_older_version_are_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def write(folder: Path, *_: object) -> list[str]:
        made.append(folder)
        (folder / "export.json").write_text("{}")
        return ["export.json"]

    monkeypatch.setattr("worldmodels.export.folder.write_onnx", write)
    config = composed("stage=export", "run=r", f"model={PRETRAINED / 'carracing'}")
    for number, count in ((1, 1), (1, 1), (2, 2)):
        monkeypatch.setattr("worldmodels.stages.export.FORMAT", number)
        export(Context(config, Run(tmp_path / "r")), Format.onnx)
        assert len(made) == count
