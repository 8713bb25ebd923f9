"""benchmarks/round_variants.py: its commands, and the tables of rounds."""

import importlib
import math
import statistics
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from markdown_cells import cells

from worldmodels.config.schema import Config, flat, round_config
from worldmodels.files.atomic import read_json, write_json
from worldmodels.runs.locks import FolderLock

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("round_variants")


@pytest.fixture
def config_of(script: ModuleType) -> Any:
    return importlib.import_module("comparison_data").config_of


def values(config: Config, number: int) -> dict[str, Any]:
    kept = flat(**vars(round_config(config, number)))
    return {key: value for key, value in kept.items() if not key.startswith("iterate.")}


def overridden(script: ModuleType, row: Any) -> dict[str, Any]:
    pairs = (word.split("=") for word in script.BEGINNINGS[row.beginning])
    return {key: yaml.safe_load(value) for key, value in pairs}


@pytest.mark.system
def test_the_rows_of_a_seed_differ_in_their_changes_from_the_first_own_round_on(
    script: ModuleType, config_of: Any, tmp_path: Path
) -> None:
    preset = config_of(script.command(script.ROWS[0], 2, tmp_path)[3:])
    for row in script.ROWS:
        config = config_of(script.command(row, 2, tmp_path)[3:])
        assert (config.seed, config.iterate.rounds) == (2, script.LAST)
        always = overridden(script, row)
        changes = always | {
            f"{section}.{key}": value
            for section, keys in row.changes.items()
            for key, value in keys.items()
        }
        for number in (1, script.COMMON, script.COMMON + 1, script.LAST):
            expected = values(preset, number)
            own = values(config, number)
            changed = {key for key in own if own[key] != expected[key]} - {"run"}
            if number <= script.COMMON:
                assert changed == always.keys()
            else:
                assert changed == changes.keys()
                assert all(own[key] == value for key, value in changes.items())
                assert own["evaluate.episodes"] == script.EVALUATION["episodes"]


@pytest.mark.system
def test_the_first_rounds_of_a_row_are_those_that_rows_have_in_common(
    script: ModuleType, config_of: Any, tmp_path: Path
) -> None:
    one_of_each = {row.beginning: row for row in script.ROWS}
    for name, row in one_of_each.items():
        words = script.first_rounds(name, 3, tmp_path)
        common, own = config_of(words[3:]), config_of(script.command(row, 3, tmp_path)[3:])
        assert (common.run, common.iterate.rounds) == (f"round-variants/{name}-3", script.COMMON)
        for number in range(1, script.COMMON + 1):
            assert values(common, number) | {"run": own.run} == values(own, number)
    assert one_of_each.keys() == script.BEGINNINGS.keys()


def test_rows_of_runs_that_are_gone_stay_in_the_file(script: ModuleType, tmp_path: Path) -> None:
    earlier = {"row": "preset", "seed": 3, "earned": [1.0]}
    write_json(tmp_path / "round_variants.json", {"rows": [earlier]})
    script.keep(tmp_path)
    written = read_json(tmp_path / "round_variants.json")
    assert written["rows"] == [earlier]
    assert (written["rounds"], written["first_seed"]) == ([9, 12], 43_000)


def test_rows_that_continue_the_same_rounds_share_files_and_no_locks(
    script: ModuleType, tmp_path: Path
) -> None:
    common = tmp_path / script.run_name("common", 1)
    for number in range(1, script.COMMON + 1):
        write_json(common / f"round-{number}/vae/manifest.json", {"round": number})
        FolderLock(common / f"round-{number}/report", "report").release()
    held = []
    for row in script.ROWS[:2]:
        script.begin(row, 1, tmp_path)
        own = tmp_path / script.run_name(row.name, 1) / "round-8"
        assert (own / "vae/manifest.json").samefile(common / "round-8/vae/manifest.json")
        held.append(FolderLock(own / "report", "report"))
    for lock in held:
        lock.release()


def result(row: str, seed: int, earned: list[float], predicted: float) -> dict[str, Any]:
    horizon = {"steps": 100, "predicted": predicted, "earned": 300.0}
    horizons = [[{"steps": 10, "predicted": 0.0, "earned": 0.0}, horizon]] * len(earned)
    parts = {"row": row, "what": f"the {row}", "seed": seed, "cpu_s": 600.0}
    parts |= {"frames": 130_000 + seed if row == "preset" else 120_000}
    return {**parts, "earned": earned, "by_horizon": horizons}


def test_the_table_compares_each_seed_with_the_preset_of_that_seed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    of_preset = {1: [700.0, 800.0], 2: [500.0, 560.0], 3: [600.0, 640.0]}
    own = {1: [720.0, 820.0], 2: [540.0, 580.0], 3: [610.0, 650.0]}
    record = {
        "rounds": [9, 10],
        "rows": [
            *(result("preset", seed, earned, 350.0 + seed) for seed, earned in of_preset.items()),
            *(result("other", seed, earned, 310.0) for seed, earned in own.items()),
            *(result("pair", seed, own[seed], 310.0) for seed in (1, 2)),
        ],
    }
    preset, other, pair = cells(importlib.import_module("rounds").variants(record))
    assert (preset["rounds 9 to 10"], preset["seeds"]) == ("the preset", "3")
    assert preset["mean return"] == "633 (530 to 750)"
    assert preset["difference from the preset"] == ""
    assert preset["round 10"] == "667 (560 to 800)"
    assert preset["predicted minus real return, 100 steps"] == "52 (51 to 53)"
    assert preset["frames, rounds 1 to 10"] == "130,002 (130,001 to 130,003)"
    assert other["frames, rounds 1 to 10"] == "120,000"
    assert preset["CPU minutes"] == "10"
    gains = [20.0, 30.0, 10.0]
    # 4.303 is the 97.5 % quantile of Student's t with two degrees of freedom.
    half = 4.303 * statistics.stdev(gains) / math.sqrt(3)
    assert other["difference from the preset"] == f"+20 ({20 - half:+.0f} to {20 + half:+.0f})"
    # With two seeds the half width would be six times their distance.
    assert (pair["seeds"], pair["difference from the preset"]) == ("2", "+25")


def test_the_table_by_round_has_the_frames_of_all_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")

    def run(seed: int, totals: list[int]) -> dict[str, Any]:
        one: dict[str, Any] = {"earned": {"mean": seed}, "predicted": {"mean": 10.0 * seed}}
        return {"seed": seed, "rounds": [one | {"frames": {"total": total}} for total in totals]}

    runs = [run(1, [9_400, 19_900]), run(2, [9_200, 18_400]), run(3, [9_300])]
    first, second = cells(importlib.import_module("rounds").by_round(runs))
    assert [row["frames so far"] for row in (first, second)] == ["9,000", "18,000 to 20,000"]
    assert [second[f"seed {seed}"] for seed in (1, 2, 3)] == ["1 (10)", "2 (20)", ""]
