"""benchmarks/model_comparison.py at its smallest: stopped, continued, and row after row."""

import importlib
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import environment
from PIL import Image
from waiting import wait_for

from worldmodels.errors import EXIT_STOPPED
from worldmodels.files.atomic import read_json

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[1]


def start(data: Path, *words: str) -> subprocess.Popen[str]:
    script = str(ROOT / "benchmarks" / "model_comparison.py")
    line = [sys.executable, script, "carracing", "--tiny", "--seed=1", f"--data={data}", *words]
    return subprocess.Popen(
        line,
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(data: Path, *words: str) -> str:
    with start(data, *words) as process:
        output, _ = process.communicate()
    assert process.returncode == 0, output
    return output


@pytest.mark.timeout(1800)
def test_rows_accumulate_across_commands_and_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = tmp_path / "model_comparison-tiny" / "carracing"
    vae = runs / "paper-1" / "vae" / "manifest.json"
    with start(tmp_path, "paper", "--seconds=1") as process:
        wait_for(lambda: vae.exists() or process.poll() is not None)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate()
    assert process.returncode == EXIT_STOPPED, output
    path = tmp_path / "model_comparison-tiny.json"
    assert not path.exists()

    finish(tmp_path, "paper", "--seconds=1")
    (paper,) = read_json(path)["rows"]
    finish(tmp_path, "gru", "transformer", "--seconds=1")
    record = read_json(path)
    assert record["rows"][0] == paper
    assert [(row["row"], row["seed"]) for row in record["rows"]] == [
        ("paper", 1),
        ("gru", 1),
        ("transformer", 1),
    ]
    settings = record["settings"]["carracing"]
    assert settings.keys() == {"conv_vae", "mdn_rnn", "gru", "transformer"}
    check_rates(settings, runs)
    for row in record["rows"]:
        assert row["encoder"]["epochs"] == settings["conv_vae"]["epochs"]
        assert row["dynamics"]["epochs"] == settings[row["dynamics_name"]]["epochs"]
        for part in (row["encoder"], row["dynamics"]):
            assert 0 < part["training_s"] < part["stage_s"]
        errors = [one["error"] for one in row["open_loop"]["errors"]]
        assert np.isfinite([*errors, row["open_loop"]["reconstruction"]]).all()
        assert row["controllers"].keys() == {"dream", "real"}
        assert {"agent", "agent in the dream"} <= row["controllers"]["dream"]["scores"].keys()
    # One encoder: what it cost is in each row, and the networks of the rows differ.
    assert len({row["encoder"]["stage_s"] for row in record["rows"]}) == 1
    assert len({row["dynamics"]["parameters"] for row in record["rows"]}) == 3

    picture = np.asarray(Image.open(tmp_path / "dreams-carracing.png"))
    frames, reconstructions, *predictions = np.split(picture, 5)
    assert picture.shape == (5 * 66, 12 * 66, 4)
    # All predictions begin with the reconstruction of the first frame, and then part.
    for one in predictions:
        np.testing.assert_array_equal(one[:, :66], reconstructions[:, :66])
    assert not np.array_equal(predictions[0], predictions[1])
    assert not np.array_equal(predictions[1], predictions[2])
    assert not np.array_equal(frames, reconstructions)

    assert "done before" in finish(tmp_path, "paper")
    assert read_json(path)["rows"] == record["rows"]
    monkeypatch.syspath_prepend(ROOT / "docs")
    pages = importlib.import_module("comparisons")
    for table in (pages.costs, pages.predictions):
        head = table(record, "carracing").splitlines()[0]
        assert [cell.strip() for cell in head.split("|")[2:-1]] == ["paper", "gru", "transformer"]
    lines = pages.scores(record, "carracing").splitlines()[2:]
    assert [line.split("|")[1].strip() for line in lines] == ["paper", "gru", "transformer"]


def check_rates(settings: dict[str, Any], runs: Path) -> None:
    """The paper's models have the rates of the preset, others the better one over all seeds; the
    rows have the models of those trials and not others."""
    tuned = {model: chosen for model, chosen in settings.items() if "learning_rate" in chosen}
    assert tuned.keys() == {"gru", "transformer"}
    for model, chosen in tuned.items():
        losses, best = chosen["losses"], chosen["learning_rate"]
        assert losses.keys() == {"1e-3", "3e-3"}
        assert sum(losses[best]) == min(map(sum, losses.values()))
        for seed, loss in enumerate(losses[best], start=1):
            manifest = read_json(runs / f"{model}-{seed}" / "rnn" / "manifest.json")
            assert manifest["config"]["rnn.learning_rate"] == float(best)
            assert manifest["config"]["seed"] == seed
            assert manifest["summary"]["loss"] == loss
        (other,) = losses.keys() - {best}
        trials = {path.parent.name for path in runs.glob(f"rates/{model}-*/rnn")}
        assert trials == {f"{model}-{other}-{seed}" for seed in (1, 2, 3)}
