"""benchmarks/generalisation.py: which columns of an earlier file stay."""

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

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
