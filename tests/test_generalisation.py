"""benchmarks/generalisation.py: which columns of an earlier file stay."""

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from markdown_cells import cells

import worldmodels
from worldmodels.files.atomic import read_json

ROOT = Path(__file__).resolve().parent.parent


def test_columns_of_other_names_stay_and_those_on_other_tracks_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    script, path = importlib.import_module("generalisation"), tmp_path / "generalisation.json"

    def measured(agents: list[str], score: float, first_seed: int = 20_000) -> dict[str, float]:
        def evaluate(*_: Any, **__: Any) -> Any:
            returns = np.full(2, score)
            return SimpleNamespace(mean=score, std=0.0, interval=(score, score), returns=returns)

        monkeypatch.setattr(worldmodels, "evaluate", evaluate)
        words = [*agents, f"--first-seed={first_seed}", f"--out={path}"]
        monkeypatch.setattr(sys, "argv", ["generalisation", *words])
        monkeypatch.setattr(script, "provenance", lambda: {"commit": f"of {score}"})
        script.main()
        figures = read_json(path)["figures"]
        assert all(one["commit"] == f"of {one['rows'][0]['mean']}" for one in figures)
        return {one["agent"]: one["rows"][0]["mean"] for one in figures}

    measured(["quick=a", "quick=b", "sticky=c"], 1.0)
    assert measured(["quick=d"], 2.0) == {"c": 1.0, "d": 2.0}
    assert measured(["other=e"], 3.0) == {"c": 1.0, "d": 2.0, "e": 3.0}
    assert measured(["other=f"], 4.0, first_seed=30_000) == {"f": 4.0}

    # Nor do those in other conditions; the same ones in another order are found by name.
    monkeypatch.setattr(script, "CONDITIONS", script.CONDITIONS[::-1])
    assert measured(["new=g"], 5.0, first_seed=30_000) == {"f": 4.0, "g": 5.0}
    more = script.Condition("in rain", {})
    monkeypatch.setattr(script, "CONDITIONS", (more, *script.CONDITIONS[1:]))
    assert measured(["rain=h"], 6.0, first_seed=30_000) == {"h": 6.0}


def test_the_table_finds_scores_by_condition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    means = {"dry": 900.0, "rain": 300.0}

    def figure(name: str, *conditions: str) -> dict[str, Any]:
        rows = [
            {"condition": one, "mean": means[one], "interval": [0, 1000], "failed": 0.0}
            for one in conditions
        ]
        return {"name": name, "rows": rows}

    figures = [figure("old", "dry"), figure("a", "rain", "dry"), figure("b", "dry", "rain")]
    dry, rain = cells(importlib.import_module("models").generalisation({"figures": figures}))
    assert (dry["condition"], rain["condition"]) == ("dry", "rain")
    assert dry["`a`"] == dry["`b`"] == "900 (0 to 1000)"
    assert rain["`a`"] == rain["`b`"] == "300 (0 to 1000)"
    assert "`old`" not in dry
