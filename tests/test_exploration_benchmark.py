"""benchmarks/exploration.py: its commands, its measures and its table."""

import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from command import composed
from encoded import latent_set

from worldmodels.config import limits, schema
from worldmodels.data.episodes import EpisodeSet
from worldmodels.files.atomic import read_json, write_json
from worldmodels.models.mdnrnn import MDNRNN

LATENT, ACTION = 4, 2
BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


def benchmark(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module(name)


@pytest.mark.system
def test_the_commands_of_the_benchmark_compose(monkeypatch: pytest.MonkeyPatch) -> None:
    module = benchmark("exploration", monkeypatch)
    plan = module.Plan(module.FULL, Path("data"))
    commands = [line for lines in plan.tests().values() for line in lines]
    for row in module.ROWS:
        collect, last, evaluate = plan.commands(row, 1)
        commands += [collect, last, evaluate]
        config = composed(*collect[3:])
        rounds = [schema.round_config(config, number) for number in range(1, 5)]
        later = {own.rollouts.policy.name for own in rounds[1:]}
        random = module.RANDOM.get(row.name)
        assert later == {"controller" if random is None else random[0]}
        assert {own.controller.objective.name for own in rounds} == {
            row.name if random is None else "reward"
        }
        assert (config.env.television == 2) == (row.table == "television")
        frames = sum(own.rollouts.episodes * own.rollouts.max_steps for own in rounds)
        assert frames == 24_000
        assert composed(*last[3:]).controller.objective.name == "reward"
    for line in commands:
        limits.check(composed(*line[3:]))


def test_a_run_that_is_added_meanwhile_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = benchmark("exploration", monkeypatch)
    plan = module.Plan(module.SMOKE, tmp_path)
    write_json(plan.path, {"runs": []})

    def result(*_: Any) -> dict[str, Any]:
        write_json(plan.path, {"runs": [{"name": "other"}]})
        return {"name": "own"}

    monkeypatch.setattr(module.Plan, "result", result)
    module.keep(plan, module.ROWS[0], 1)
    assert [run["name"] for run in read_json(plan.path)["runs"]] == ["other", "own"]


def test_tracks_are_covered_as_rewards_say(
    smoke: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    explored = benchmark("explored", monkeypatch)
    episodes = EpisodeSet.open([smoke / "smoke/rollouts"], "refuse")
    found = explored.track(episodes, 1)
    # Each tile pays 1000 / T once, each step costs 0.1: so the share is the sum over 1000.
    shares = [
        (e.rewards.sum() + 0.1 * len(e.rewards)) / 1000 for e in map(episodes.episode, range(8))
    ]
    assert found.tiles == pytest.approx(np.mean(shares), abs=1e-4)
    assert 8 <= found.cells <= 8 * 40
    tiles = np.array([[0, 0], [0, 4], [0, 8], [0, 12], [100, 100]], float)  # northwards
    hull = np.zeros(11)
    hull[[6, 7, 3, 4]] = -6.0, 8.5, 0.0, 25.0
    assert explored.cell(tiles, hull) == (0, 1, 2)  # to the left of the middle
    hull[6] = 7.0
    assert explored.cell(tiles, hull) == (0, -2, 2)


def test_latents_are_covered_as_numpy_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    explored = benchmark("explored", monkeypatch)
    rows = explored.means(latent_set(tmp_path / "latents.h5"))
    assert rows.shape == (77 + 8, 4)
    values = np.linalg.eigvalsh(np.cov(rows.T))
    assert explored.log_determinant(rows) == pytest.approx(np.log(values).mean(), rel=1e-6)
    others = rows[::3] + 0.3
    nearest = [min(np.linalg.norm(one - row) for row in rows) for one in others]
    assert explored.distance(others, rows) == pytest.approx(np.mean(nearest))


def test_the_likelihood_is_that_of_single_transitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    explored, latents = benchmark("explored", monkeypatch), latent_set(tmp_path / "latents.h5")
    torch.manual_seed(0)
    models = [MDNRNN(LATENT, ACTION, 12, mixtures=3, sampled=False) for _ in range(2)]
    found = []
    with torch.inference_mode():
        for model in models:
            for episode in map(latents.episode, range(8)):
                state = model.initial_state(1)
                for time, action in enumerate(episode.actions):
                    now = torch.from_numpy(episode.mean[time : time + 1])
                    state = model.advance(now, torch.from_numpy(action)[None], state)
                    mixture = model.predict(state).latent
                    share = mixture.logits.softmax(dim=-1)
                    normal = torch.distributions.Normal(mixture.mean, mixture.log_std.exp())
                    then = torch.from_numpy(episode.mean[time + 1]).view(1, LATENT, 1)
                    density = (share * normal.log_prob(then).exp()).sum(dim=-1)
                    found.append(-density.log().mean().item())
    assert explored.likelihood(models, [latents]) == pytest.approx(np.mean(found), rel=1e-4)


def test_the_table_has_means_and_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS.parent / "docs")
    explorations = importlib.import_module("explorations")
    run: dict[str, Any] = {
        "table": "plain",
        "name": "noise",
        "what": "uniform",
        "watched": None,
        "cells": 100,
        "frames": 9,
    }
    run |= {"tiles": 0.25, "log_determinant": -1.0, "distance": 2.0, "nll": 1.0}
    runs = [run | {"seed": n, "returns": [n * 10.0, n * 10.0]} for n in (1, 2, 3)]
    runs.append(run | {"name": "reward", "what": "a controller", "seed": 1, "returns": [7.0]})
    runs.append(run | {"table": "television", "seed": 1, "returns": [1.0], "watched": 0.4})
    plain = explorations.exploration({"runs": runs}, "plain").splitlines()
    assert len(plain) == 4
    assert "television" not in plain[0]
    # 20, with a standard deviation of 10: 4.303 of its error on either side.
    assert plain[2].endswith("| 20 (-5 to 45) |")
    assert plain[3].endswith("| 7 |")
    (row,) = explorations.exploration({"runs": runs}, "television").splitlines()[2:]
    assert row.endswith("| 1 | 40% |")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_benchmark_runs_in_small_and_skips_the_runs_of_its_file(tmp_path: Path) -> None:
    line = [sys.executable, str(BENCHMARKS / "exploration.py"), "television/disagreement"]
    line += ["--smoke", "--seed", "1", "--data"]

    def result(data: Path) -> tuple[dict[str, Any], str]:
        done = subprocess.run([*line, str(data)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return read_json(data / "exploration.json"), done.stdout

    record, said = result(tmp_path / "first")
    assert "iterate: round 1 of 2" in said
    (found,) = record["runs"]
    assert found["frames"] == 2 * 4 * 11  # env.max_steps=40, four steps at a time
    assert found["cells"] >= 8
    assert 0 <= found["watched"] <= 1
    assert np.isfinite([found["nll"], found["distance"], found["log_determinant"]]).all()
    assert len(found["returns"]) == 2

    write_json(tmp_path / "other" / "exploration.json", record)
    assert result(tmp_path / "other") == (record, "")
