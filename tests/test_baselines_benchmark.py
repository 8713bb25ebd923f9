"""benchmarks/baselines.py: its commands, the choice of a learning rate, and its tables."""

import importlib
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from command import composed

from worldmodels.config import limits
from worldmodels.files.atomic import read_json, write_json

ROOT = Path(__file__).resolve().parent.parent
BENCHMARK = ROOT / "benchmarks" / "baselines.py"


def module(folder: str, name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / folder)
    return importlib.import_module(name)


def tuned(data: Path, row: str, **means: float) -> None:
    """What the runs gave that a learning rate is chosen from."""
    known = {rate.replace("_", "-"): mean for rate, mean in means.items()}
    write_json(data / "baselines.json", {"tuning": {row: known}})


@pytest.mark.system
def test_the_commands_of_the_benchmark_compose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmark = module("benchmarks", "baselines", monkeypatch)
    plan = benchmark.Plan(tmp_path)
    for row in benchmark.ROWS:
        tuned(tmp_path, row.rate_of or row.name, **{"1e_4": 1.0, "3e_4": 2.0, "1e_3": 3.0})
        tuning = list(plan.tuning(row))
        assert len(tuning) == (3 if row.name in ("ppo", "dqn", "sac") else 0)
        for command in (*tuning, *plan.commands(row, 2)):
            config = composed(*command[3:])
            limits.check(config)
            assert config.seed == (100 if command in tuning else 2)
            assert config.env.frame_skip == 4
            assert (config.controller.world.name == "dream") == (row.table == "learned")
            steps = getattr(config, row.stage).total_steps
            assert steps == (row.tuning_steps if command in tuning else row.budget[1])
        if row.table == "environment":
            assert config.baseline.learning_rate == 1e-3
            assert config.baseline.final_learning_rate == pytest.approx(1e-4)
            assert config.baseline.algorithm.name == row.name.removesuffix("-raw")
            assert config.baseline.normalise_reward == (row.name != "ppo-raw")


def test_the_learning_rate_has_the_highest_mean_once_all_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmark = module("benchmarks", "baselines", monkeypatch)
    plan, ppo = benchmark.Plan(tmp_path), benchmark.ROWS[0]
    tuned(tmp_path, "ppo", **{"1e_4": 5.0, "3e_4": 7.0})
    assert plan.rate(ppo) == "?"
    tuned(tmp_path, "ppo", **{"1e_4": 5.0, "3e_4": 7.0, "1e_3": 6.0})
    assert plan.rate(ppo) == "3e-4"
    raw = next(row for row in benchmark.ROWS if row.name == "ppo-raw")
    assert plan.rate(raw) == "3e-4"
    assert list(plan.tuning(benchmark.tuned_row(raw))) == list(plan.tuning(ppo))
    assert plan.tuned(ppo) == {"1e-4": 5.0, "3e-4": 7.0, "1e-3": 6.0}


def test_a_run_that_is_added_meanwhile_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmark = module("benchmarks", "baselines", monkeypatch)
    plan = benchmark.Plan(tmp_path)
    write_json(plan.path, {"runs": []})

    def result(*_: Any) -> dict[str, Any]:
        write_json(plan.path, {"runs": [{"table": "environment", "name": "other"}]})
        return {"name": "own"}

    monkeypatch.setattr(benchmark.Plan, "result", result)
    benchmark.keep(plan, benchmark.ROWS[0], 1)
    assert [run["name"] for run in read_json(plan.path)["runs"]] == ["other", "own"]


@pytest.mark.parametrize("name", ["baselines", "exploration"])
def test_processes_that_end_together_lose_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    benchmark = module("benchmarks", name, monkeypatch)
    plan = benchmark.Plan(*([benchmark.SMOKE] if name == "exploration" else []), tmp_path)

    def provenance() -> dict[str, Any]:
        time.sleep(0.1)  # as git takes
        return {}

    def result(_: Any, row: Any, seed: int) -> dict[str, Any]:
        return {"table": row.table, "name": row.name, "seed": seed}

    monkeypatch.setattr(benchmark, "provenance", provenance)
    monkeypatch.setattr(benchmark.Plan, "result", result)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda seed: benchmark.keep(plan, benchmark.ROWS[0], seed), range(8)))
    assert {run["seed"] for run in read_json(plan.path)["runs"]} == set(range(8))


def test_figures_of_other_settings_are_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmark = module("benchmarks", "baselines", monkeypatch)
    plan, ppo = benchmark.Plan(tmp_path), benchmark.ROWS[0]
    made: list[list[str]] = []

    def run_all(commands: Any) -> None:
        made.extend(commands)
        for rate in benchmark.RATES:
            folder = tmp_path / plan.tuning_run(ppo, rate) / "baseline"
            write_json(folder / "manifest.json", {"summary": {"selection_mean": 1.0}})

    def result(_: Any, row: Any, seed: int) -> dict[str, Any]:
        return {"table": row.table, "name": row.name, "seed": seed, **row.settings}

    def commands(row: Any, seed: int) -> int:
        """How many commands the script runs for a row and a seed."""
        made.clear()
        words = ["environment/ppo", f"--seed={seed}", f"--data={tmp_path}"]
        monkeypatch.setattr(sys, "argv", ["baselines", *words])
        monkeypatch.setattr(benchmark, "ROWS", (row,))
        benchmark.main()
        return len(made)

    monkeypatch.setattr(benchmark, "run_all", run_all)
    monkeypatch.setattr(benchmark.Plan, "result", result)
    # A run or a rate without settings, of an older version, is taken.
    old = {"table": "environment", "name": "ppo", "seed": 1}
    other = {"table": "environment", "name": "dqn", "seed": 1, "budget": ["any", 1]}
    write_json(plan.path, {"tuning": {"ppo": {"1e-4": 9.0}}, "runs": [old, other]})
    assert commands(ppo, 1) == 0
    assert commands(ppo, 2) == 2 + 2  # the other two rates, training and evaluation
    assert plan.tuned(ppo) == {"1e-4": 9.0, "3e-4": 1.0, "1e-3": 1.0}
    assert commands(ppo, 2) == 0
    longer = replace(ppo, budget=(ppo.budget[0], 2 * ppo.budget[1]))
    assert commands(longer, 2) == 2
    runs = read_json(plan.path)["runs"]
    assert [run.get("budget") for run in runs] == [None, ["any", 1], [*longer.budget]]
    assert commands(replace(longer, tuning_steps=10), 3) == 3 + 2
    assert set(plan.record["tuning"]["ppo"].values()) == {1.0}
    assert commands(replace(longer, words=("seed=1",)), 2) == 3 + 2


def test_the_tables_have_means_and_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = module("docs", "model_free", monkeypatch)
    run: dict[str, Any] = {
        "table": "environment",
        "name": "ppo",
        "what": "PPO",
        "learning_rate": 3e-4,
        "steps": 1_200_000,
        "wall_s": 1800,
        "cpu_s": 5400,
    }
    runs = [
        run | {"seed": n, "returns": {"agent": [n * 10.0] * 2, "random": [-3.0, -4.0]}}
        for n in (1, 2, 3)
    ]
    learned = run | {"table": "learned", "what": "in the model", "seed": 1}
    learned["returns"] = {"agent": [1.0], "random": [2.0], "predicted": [4.0, 8.0]}
    raw = runs[0] | {"name": "ppo-raw", "what": "PPO, not tuned"}
    record = {"runs": [*runs, learned, raw], "tuning": {"ppo": {"3e-4": 7.4, "1e-4": 5.0}}}
    row, other = tables.baselines(record, "environment").splitlines()[2:]
    assert other == "| PPO, not tuned | 1 | 10 | -4 | 0.0003 | – | 1.20 | 0.50 | 1.50 |"
    # 20, with a standard deviation of 10: 4.303 of its error on either side.
    assert (
        row
        == "| PPO | 3 | 20 (-5 to 45) | -4 | 0.0003 | 0.0001: 5, 0.0003: 7 | 1.20 | 0.50 | 1.50 |"
    )
    (row,) = tables.baselines(record, "learned").splitlines()[2:]
    assert row == "| in the model | 1 | 1 | 2 | 6 | 1.20 | 0.50 | 1.50 |"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_benchmark_runs_in_small_and_continues_with_its_file_alone(tmp_path: Path) -> None:
    ppo_row, search_row = "environment/ppo", "learned/carracing-cma-es"

    def result(data: Path, *words: str) -> tuple[dict[str, Any], str]:
        line = [sys.executable, str(BENCHMARK), "--smoke", f"--data={data}", *words]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return read_json(data / "baselines.json"), done.stdout

    first, said = result(tmp_path / "first", ppo_row, search_row, "--seed=1")
    assert "steps in the real world" in said
    assert first["tuning"].keys() == {"ppo"}
    tuning, (ppo, search) = first["tuning"]["ppo"], first["runs"]
    assert tuning.keys() == {"1e-4", "3e-4", "1e-3"}
    assert ppo["learning_rate"] == float(max(tuning, key=tuning.__getitem__))
    assert [point[0] for point in ppo["points"]] == [4 * 32, 4 * 64]  # of the simulator
    assert ppo["returns"].keys() == {"agent", "random"}
    assert search["returns"].keys() == {"agent", "random", "predicted"}
    assert all(len(one) == 2 for one in search["returns"].values())

    # Elsewhere the runs and the learning rate of the file are not made again.
    other = tmp_path / "other"
    write_json(other / "baselines.json", first)
    assert result(other, ppo_row, search_row, "--seed=1") == (first, "")
    second, _ = result(other, ppo_row, "--seed=2")
    assert second["runs"][:2] == first["runs"]
    assert [(run["name"], run["seed"]) for run in second["runs"][2:]] == [("ppo", 2)]
    assert second["tuning"] == first["tuning"]
    assert not (other / "baselines" / "tuning").exists()

    # A row with the learning rate of another has that one's trials made.
    third, _ = result(tmp_path / "third", "environment/ppo-raw", "--seed=1")
    assert third["tuning"] == first["tuning"]
    (raw,) = third["runs"]
    assert (raw["name"], raw["learning_rate"]) == ("ppo-raw", ppo["learning_rate"])
