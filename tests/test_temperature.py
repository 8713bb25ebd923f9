"""controller.final_temperature: the temperature of the learned model changes over a search."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command import ALONE, error_line, run

from worldmodels import seeds
from worldmodels.agents.folder import read_agent
from worldmodels.agents.model_files import load_first_latents
from worldmodels.runs.tracking import read_metrics
from worldmodels.worlds.dream import DreamWorld
from worldmodels.worlds.rollout import PopulationPolicy, rollout

MODEL = ("preset=smoke", "base=pretrained/carracing", "controller.world=dream")
SEARCH = ("stage=controller", *MODEL, "controller.latent=sampled", "controller.pca_components=8")
SHORT = ("controller.generations=4", "controller.eval_interval=1", "controller.max_steps=15")
ANNEALED = ("controller.temperature=0.5", "controller.final_temperature=3")


def searched(folder: Path, name: str, *words: str) -> Path:
    """The folder of a search that the program has run."""
    done = run(folder, *SEARCH, *SHORT, f"run={name}", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / name / "controller"


def lines(path: Path) -> list[dict[str, Any]]:
    """The records of a log, without the time that they took and the checksum over it."""
    return [json.loads(line) | {"seconds": 0, "crc32": 0} for line in path.read_text().splitlines()]


def earned(folder: Path, parameters: Any, drawn: Sequence[int], temperature: float) -> np.ndarray:
    """The returns of a controller in the learned model, an episode for each seed."""
    agent = read_agent(folder / "agent")
    starts = load_first_latents(folder / "agent/rnn.safetensors")
    world = DreamWorld(agent.dynamics, starts, temperature, agent.config.features)
    candidates = np.array([parameters], np.float32)
    policy = PopulationPolicy(
        candidates, len(drawn), world.feature_size, agent.config.controller, torch.device("cpu")
    )
    return rollout(world, policy, drawn, 15).returns


def temperatures(folder: Path) -> list[float]:
    rows = read_metrics(folder / "metrics.csv")
    return [value for _, name, value, _ in rows if name == "dream/temperature"]


def test_candidates_are_trained_at_a_changing_temperature_and_chosen_at_the_final_one(
    tmp_path: Path,
) -> None:
    annealed = searched(tmp_path, "annealed", *ANNEALED, ALONE)
    assert temperatures(annealed) == [0.5, 1.125, 1.75, 2.375]
    # The first generation is that of a search at the first temperature, the second is not.
    constant = searched(tmp_path, "constant", ANNEALED[0], ALONE)
    assert not temperatures(constant)
    first, second, *_ = lines(annealed / "generations.jsonl")
    known, other, *_ = lines(constant / "generations.jsonl")
    assert first["fitness"] == known["fitness"]
    assert second["fitness"] != other["fitness"]
    # Returns on the selection seeds are those at the final temperature, in every generation.
    drawn = seeds.draw(seeds.Purpose.SELECTION, 1, count=2)
    selected = lines(annealed / "selection.jsonl")
    assert len(selected) == 4
    for record in selected:
        returns = earned(annealed, record["parameters"], drawn, 3.0)
        assert record["score"] == pytest.approx(returns.mean(), rel=0.02)
    # So are those of the evaluation.
    words = ("stage=evaluate", *MODEL, "run=annealed", *ANNEALED, "evaluate.engine=native")
    done = run(tmp_path, *words, "evaluate.video=false", ALONE)
    assert done.returncode == 0, done.stdout + done.stderr
    (played,) = lines(tmp_path / "annealed/evaluate/dreams.jsonl")
    chosen = read_agent(annealed / "agent").parameters
    returns = earned(annealed, chosen, seeds.evaluation(0, 2), 3.0)
    np.testing.assert_allclose(played["returns"], returns, rtol=0.02)
    line = error_line(run(tmp_path, *SEARCH, *SHORT, "run=annealed", *ANNEALED, SHORT[0] + "0"))
    assert "was made with controller.generations=4, now 40" in line


@pytest.mark.system
def test_an_annealed_search_is_the_same_after_kills_and_with_workers(tmp_path: Path) -> None:
    words = (*ANNEALED, "controller.total_steps=250", "controller.overlap=true")
    alone = searched(tmp_path, "alone", *words, ALONE)
    played = [record["steps"] for record in lines(alone / "generations.jsonl")]
    assert len(played) > 2
    # A generation is asked for before the one before it is told: two of them before any steps.
    before = np.cumsum([0, 0, *played])[: len(played)]
    np.testing.assert_allclose(temperatures(alone), 0.5 + 2.5 * np.minimum(before / 250, 1))
    killed = (*SEARCH, *SHORT, "run=killed", *words, "workers.processes=2")
    done = run(tmp_path, *killed, kill_at_write=6)
    assert done.returncode == -9, done.stdout + done.stderr
    assert not (tmp_path / "killed/controller/agent/controller.safetensors").exists()
    again = searched(tmp_path, "killed", *words, "workers.processes=2")
    for log in ("generations.jsonl", "selection.jsonl"):
        assert lines(again / log) == lines(alone / log)
    assert temperatures(again) == temperatures(alone)


def test_of_generations_that_overlap_the_last_one_alone_is_evaluated(tmp_path: Path) -> None:
    words = ("controller.total_steps=250", "controller.overlap=true", "controller.generations=20")
    folder = searched(tmp_path, "overlapping", *words, "controller.eval_interval=20", ALONE)
    used = np.cumsum([record["steps"] for record in lines(folder / "generations.jsonl")])
    assert used[-3] < 250 <= used[-2]  # one had been asked for when the budget was used up
    (selected,) = lines(folder / "selection.jsonl")
    assert selected["generation"] == len(used) - 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("controller.world=real",),
            "final_temperature=3.0: needs controller.world=dream; give that, or null",
        ),
        (
            ("controller.optimizer=actor_critic",),
            "final_temperature=3.0: needs controller.optimizer=cma_es",
        ),
        (("stage=baseline",), "final_temperature=3.0: a baseline trains at one temperature"),
        (("controller.final_temperature=0",), "final_temperature=0.0: choose 0.001 to 1000"),
    ],
)
def test_a_schedule_that_nothing_follows_is_one_line(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    assert said in error_line(run(tmp_path, *SEARCH, *SHORT, *ANNEALED, *words))
