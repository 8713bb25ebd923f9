"""benchmarks/baselines.py: its commands, the choice of a learning rate, and its tables."""

import importlib
import subprocess
import sys
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
    """The manifests of runs that a learning rate is chosen from."""
    for rate, mean in means.items():
        folder = data / "baselines" / "tuning" / f"{row}-{rate.replace('_', '-')}" / "baseline"
        folder.mkdir(parents=True)
        write_json(folder / "manifest.json", {"summary": {"selection_mean": mean}})


@pytest.mark.system
def test_the_commands_of_the_benchmark_compose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmark = module("benchmarks", "baselines", monkeypatch)
    plan = benchmark.Plan(tmp_path)
    for row in benchmark.ROWS:
        tuned(tmp_path, row.name, **{"1e_4": 1.0, "3e_4": 2.0, "1e_3": 3.0})
        tuning = list(plan.tuning(row))
        assert len(tuning) == (3 if row.table == "environment" else 0)
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
            assert config.baseline.algorithm.name == row.name


def test_the_learning_rate_has_the_highest_mean_once_all_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmark = module("benchmarks", "baselines", monkeypatch)
    plan, ppo = benchmark.Plan(tmp_path), benchmark.ROWS[0]
    tuned(tmp_path, "ppo", **{"1e_4": 5.0, "3e_4": 7.0})
    assert plan.rate(ppo) == "?"
    tuned(tmp_path, "ppo", **{"1e_3": 6.0})
    assert plan.rate(ppo) == "3e-4"
    assert plan.tuned(ppo) == {"1e-4": 5.0, "3e-4": 7.0, "1e-3": 6.0}


def test_the_tables_have_means_and_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = module("docs", "model_free", monkeypatch)
    run: dict[str, Any] = {
        "table": "environment",
        "name": "ppo",
        "what": "PPO",
        "tuning": {"1e-4": 5.0, "3e-4": 7.4},
        "learning_rate": 3e-4,
        "steps": 1_200_000,
        "wall_s": 1800,
        "cpu_s": 5400,
    }
    runs = [
        run | {"seed": n, "returns": {"agent": [n * 10.0] * 2, "random": [-3.0, -4.0]}}
        for n in (1, 2, 3)
    ]
    learned = run | {"table": "learned", "what": "in the model", "tuning": {}, "seed": 1}
    learned["returns"] = {"agent": [1.0], "random": [2.0], "predicted": [4.0, 8.0]}
    record = {"runs": [*runs, learned]}
    (row,) = tables.baselines(record, "environment").splitlines()[2:]
    # 20, with a standard deviation of 10: 4.303 of its error on either side.
    assert row == "| PPO | 3 | 20 (-5 to 45) | -4 | 0.0003 | 1e-4: 5, 3e-4: 7 | 1.20 | 0.5 | 1.5 |"
    (row,) = tables.baselines(record, "learned").splitlines()[2:]
    assert row == "| in the model | 1 | 1 | 2 | 6 | 1.20 | 0.5 | 1.5 |"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_benchmark_runs_in_small_and_can_be_stopped(tmp_path: Path) -> None:
    rows = ["environment/ppo", "learned/carracing-cma-es"]
    line = [sys.executable, str(BENCHMARK), *rows, "--smoke", "--seed=1", f"--data={tmp_path}"]
    for repeated in (False, True):
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        ppo, search = read_json(tmp_path / "baselines.json")["runs"]
        assert ("steps in the real world" in done.stdout) != repeated
    assert ppo["learning_rate"] in map(float, ppo["tuning"])
    assert len(ppo["tuning"]) == 3
    assert [point[0] for point in ppo["points"]] == [4 * 32, 4 * 64]  # of the simulator
    assert ppo["returns"].keys() == {"agent", "random"}
    assert search["returns"].keys() == {"agent", "random", "predicted"}
    assert all(len(one) == 2 for one in search["returns"].values())
