"""benchmarks/model_comparison.py: its commands, and the tables of what it writes. The script itself
runs in ``test_model_comparison_runs.py``."""

import importlib
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from markdown_cells import cells

from worldmodels.data.episodes import EpisodeSet
from worldmodels.data.shards import Episode, write_shard
from worldmodels.errors import ConfigError
from worldmodels.files.atomic import read_json, write_json
from worldmodels.models.mdnrnn import MDNRNN
from worldmodels.models.vae import ConvVAE
from worldmodels.planning.timing import FitRate
from worldmodels.reporting.open_loop import open_loop
from worldmodels.reporting.scores import AGENT_IN_DREAM, summarise

ROOT = Path(__file__).resolve().parent.parent
MODELS = ("conv_vae", "resnet", "conv3d", "mdn_rnn", "gru", "transformer")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("model_comparison")


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "docs")
    return importlib.import_module("comparisons")


def words_of(command: list[str]) -> dict[str, str]:
    assert command[:3] == ["python", "-m", "worldmodels"]
    return dict(word.split("=", 1) for word in command[3:])


@pytest.mark.parametrize(("env", "name"), [("carracing", "resnet"), ("takecover", "transformer")])
def test_the_commands_of_a_row_compose_and_share_what_they_can(
    script: ModuleType, tmp_path: Path, env: str, name: str
) -> None:
    given: dict[str, dict[str, Any]] = {
        model: {"epochs": number} for number, model in enumerate(MODELS, start=3)
    }
    own = {"resnet": "vae", "transformer": "rnn"}
    given[name]["learning_rate"] = "1e-3"
    comparison = script.Comparison(env, tmp_path, script.FULL, given)
    (row,) = (row for row in script.ROWS if row.name == name)
    commands = comparison.commands(row, 2)
    for command in commands:
        config = importlib.import_module("comparison_data").config_of(command[3:])
        assert (config.seed, config.workers.processes) == (2, 0)
        assert config.env.frame_skip == 4
        assert config.env.crop_rows == (200 if env == "takecover" else None)
    vae, rnn, *controllers = map(words_of, commands)
    for stage, words in (("vae", vae), ("rnn", rnn)):
        rate = "1e-3" if own[name] == stage else None  # None: that of the preset
        assert words.get(f"{stage}.learning_rate") == rate
    paper = f"model_comparison/{env}/paper-2"
    run = f"model_comparison/{env}/{name}-2"
    assert vae["run"] == (run if name == "resnet" else paper)
    assert (rnn["run"], rnn["base"]) == (run, paper)
    assert vae["vae.epochs"] == str(given[row.encoder]["epochs"])
    assert rnn["rnn.epochs"] == str(given[row.dynamics]["epochs"])
    worlds = [words["controller.world"] for words in controllers]
    assert worlds == ["dream", "dream", *["real", "real"] * (env == "carracing")]
    if env == "carracing":
        assert controllers[-1]["base"] == str(tmp_path / run / "controller" / "agent")
    steps = {"dream": "2_000_000", "real": "600_000"}
    assert [words["controller.total_steps"] for words in controllers] == [steps[w] for w in worlds]


def test_the_learning_rate_is_the_better_one_over_all_seeds(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the first seed alone 3e-3 is the better one, and with two of three seeds."""
    losses = {"1e-3": [89.0, 82.0, 81.0], "3e-3": [65.0, 2078.0, 80.0]}
    comparison = script.Comparison("carracing", tmp_path, script.FULL, {})
    comparison.keep("resnet", {"epochs": 1})
    (row,) = (row for row in script.ROWS if row.name == "resnet")

    def loss(self: Any, row: Any, stage: str, rate: str, seed: int) -> float:
        folder = self.trial("resnet", rate, seed, stage)
        folder.mkdir(parents=True)
        (folder / "trial").write_text(f"{rate} {seed}")
        return losses[rate][seed - 1]

    monkeypatch.setattr(script.Comparison, "loss", loss)
    comparison.choose_rates(row)
    chosen = {"epochs": 1, "learning_rate": "1e-3", "losses": losses}
    assert comparison.settings()["resnet"] == chosen
    for seed in (1, 2, 3):
        own = tmp_path / comparison.run("resnet", seed) / "vae" / "trial"
        assert own.read_text() == f"1e-3 {seed}"
    comparison.choose_rates(row)  # It is known: no trial, whose folders are there already.


@pytest.mark.parametrize("diverge", [{"3e-3"}, {"1e-3", "3e-3"}])
def test_a_learning_rate_with_which_a_loss_is_not_finite_is_out(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, diverge: set[str]
) -> None:
    """Where the second seed diverges; the first one has the lower loss."""
    comparison = script.Comparison("carracing", tmp_path, script.FULL, {})
    comparison.keep("gru", {"epochs": 1})
    (row,) = (row for row in script.ROWS if row.name == "gru")

    def loss(self: Any, row: Any, stage: str, rate: str, seed: int) -> float:
        if seed == 2 and rate in diverge:
            raise script.Diverged("the loss is inf")
        self.trial("gru", rate, seed, stage).mkdir(parents=True)
        return 1.0 if rate in diverge else 5.0

    monkeypatch.setattr(script.Comparison, "loss", loss)
    if len(diverge) == 2:
        with pytest.raises(SystemExit, match="carracing: gru trains with none of 1e-3, 3e-3"):
            comparison.choose_rates(row)
        return
    comparison.choose_rates(row)
    losses = {"1e-3": [5.0, 5.0, 5.0], "3e-3": None}
    chosen = {"epochs": 1, "learning_rate": "1e-3", "losses": losses}
    assert comparison.settings()["gru"] == chosen


@pytest.mark.system
def test_a_stage_whose_loss_is_not_finite_is_told_from_one_that_fails(
    script: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    comparison = script.Comparison("carracing", tmp_path, script.TINY, {})
    comparison.keep("resnet", {"epochs": 1})
    (row,) = (row for row in script.ROWS if row.name == "resnet")
    with pytest.raises(script.Diverged, match=r"the loss is (inf|nan)"):
        comparison.loss(row, "vae", "1", 1)
    with pytest.raises(SystemExit):
        comparison.loss(row, "vae", "-1", 1)
    assert "vae.learning_rate=-1" in capfd.readouterr().err


def test_settings_that_are_not_chosen_yet_are_a_question_mark(
    script: ModuleType, tmp_path: Path
) -> None:
    comparison = script.Comparison("carracing", tmp_path, script.FULL, {})
    vae, rnn, *_ = map(words_of, comparison.commands(script.ROWS[2], 1))
    assert (vae["vae.epochs"], rnn["rnn.epochs"], rnn["rnn.learning_rate"]) == ("?", "?", "?")
    assert "vae.learning_rate" not in vae


def test_the_time_of_an_epoch_has_the_padding_of_short_episodes(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = (20, 30, 50, 70)
    write_shard(tmp_path / "shard-00000.h5", [blank_episode(number) for number in steps], {})
    measures = importlib.import_module("comparison_measures")
    monkeypatch.setattr(measures.models, "rnn", lambda *_: FitRate(100.0, 100.0, 0, 0))
    words = ["preset=smoke", "rnn.sequence_length=40", "rnn.validation_fraction=0.25"]
    config = script.config_of([*words, f"data={tmp_path}"])
    found = measures.budget(config, EpisodeSet.open([tmp_path]), "rnn", 300.0, 0.1)
    # Both are divided by the share of processor time, which the product is without.
    computed = found["epoch_s"] * found["transitions/s"]
    assert computed == pytest.approx(sum(-(-number // 40) * 40 for number in steps))


def test_open_loop_errors_are_those_of_the_frames_in_the_picture(
    script: ModuleType, tmp_path: Path
) -> None:
    """Of one episode of eleven steps, whose picture has a column for each of its frames."""
    rng, episode = np.random.default_rng(1), blank_episode(11)
    frames = rng.integers(0, 256, (12, 1, 1, 3), np.uint8) + np.zeros((12, 64, 64, 3), np.uint8)
    write_shard(tmp_path / "shard-00000.h5", [replace(episode, frames=frames)], {})
    torch.manual_seed(0)
    encoder, dynamics, episodes = ConvVAE(8), MDNRNN(8, 1, 16), EpisodeSet.open([tmp_path])
    measures = importlib.import_module("comparison_measures")
    found = measures.open_loop_errors(encoder, dynamics, episodes)

    image = open_loop(encoder, dynamics, episodes, 1, (1.0,)).image[..., :3]
    rows = image.reshape(3, 66, 12, 66, 3)[:, 1:-1, :, 1:-1].transpose(0, 2, 1, 3, 4)
    recorded, reconstructed, predicted = rows.astype(np.float64)
    order = np.random.default_rng(0).permutation(12)
    unrelated = rms(recorded[order[:6]] - recorded[order[6:]])
    expected = rms(reconstructed[order[:6]] - recorded[order[:6]]) / unrelated
    assert found["reconstruction"] == pytest.approx(expected, rel=1e-5)
    assert [(one["steps"], one["episodes"]) for one in found["errors"]] == [(1, 1), (3, 1), (10, 1)]
    for one in found["errors"]:
        steps = one["steps"]
        expected = rms(predicted[steps] - recorded[steps]) / unrelated
        assert one["error"] == pytest.approx(expected, rel=1e-5)


def rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.square(values).mean()))


def blank_episode(steps: int) -> Episode:
    frames = np.zeros((steps + 1, 64, 64, 3), np.uint8)
    actions, rewards = np.zeros((steps, 1), np.float32), np.zeros(steps, np.float32)
    return Episode(frames, actions, rewards, np.zeros(steps, bool), np.zeros(steps, bool), steps)


def test_settings_of_an_earlier_result_serve_the_rows_whose_models_it_has(
    script: ModuleType, tmp_path: Path
) -> None:
    path = tmp_path / "model_comparison.json"
    measured = {
        "conv_vae": {"epochs": 3},
        "gru": {"epochs": 40, "learning_rate": "1e-3"},
        "transformer": {"epochs": 20},  # its learning rate was not chosen yet
    }
    write_json(path, {"settings": {"carracing": measured}, "rows": []})
    paper, gru, transformer, *_ = script.ROWS
    assert script.earlier_settings(path, "carracing", [gru]) == measured
    assert script.earlier_settings(None, "carracing", [gru]) == {}
    with pytest.raises(ConfigError, match="none of transformer for carracing"):
        script.earlier_settings(path, "carracing", [gru, transformer])
    with pytest.raises(ConfigError, match="none of mdn_rnn for carracing"):
        script.earlier_settings(path, "carracing", [paper, gru])
    with pytest.raises(ConfigError, match="none of conv_vae for takecover"):
        script.earlier_settings(path, "takecover", [gru])


def test_results_of_other_settings_leave_the_file(script: ModuleType, tmp_path: Path) -> None:
    def trained(epochs: int, rate: float) -> dict[str, Any]:
        return {"epochs": epochs, "learning_rate": rate}

    def made(row: str, seed: int, dynamics: dict[str, Any]) -> dict[str, Any]:
        names = {"encoder_name": "conv_vae", "dynamics_name": "gru" if row == "gru" else "mdn_rnn"}
        key = {"env": "takecover", "row": row, "seed": seed}
        return {**key, **names, "encoder": trained(2, 1e-3), "dynamics": dynamics}

    rows = [
        made("paper", 1, trained(9, 3e-3)),
        made("paper", 2, trained(8, 3e-3)),  # other epochs
        made("gru", 1, trained(7, 1e-3)),
        made("gru", 2, trained(7, 3e-3)),  # another learning rate
        made("gru", 3, trained(6, 3e-3)) | {"env": "carracing"},
    ]
    path = tmp_path / f"{script.FULL.folder}.json"
    write_json(path, {"settings": {}, "rows": rows})
    comparison = script.Comparison("takecover", tmp_path, script.FULL, {})
    comparison.keep("conv_vae", {"epochs": 2})
    comparison.keep("mdn_rnn", {"epochs": 9})
    # What another process chose stays.
    other = script.Comparison("takecover", tmp_path, script.FULL, {})
    other.keep("gru", {"epochs": 7, "learning_rate": "1e-3"})
    script.collect(comparison)
    found = [(one["env"], one["row"], one["seed"]) for one in read_json(path)["rows"]]
    assert found == [("carracing", "gru", 3), ("takecover", "paper", 1), ("takecover", "gru", 1)]
    assert read_json(path)["settings"]["takecover"].keys() == {"conv_vae", "mdn_rnn", "gru"}


def result(row: str, seed: int, nll: float, returns: list[float], recall: float | None) -> Any:
    """What the script writes for a row and a seed, as far as the tables read it."""
    score = summarise("agent", np.array(returns), range(len(returns))).record()
    part = {"parameters": 1_500_000, "epochs": 2, "training_s": 290.4, "peak_bytes": 1_250_000_000}
    horizons = [{"steps": 10, "difference": -0.25}, {"steps": 100, "difference": 0.5}]
    return {
        **{"env": "carracing", "row": row, "seed": seed, "nll": nll},
        "encoder_name": "resnet" if row == "resnet" else "conv_vae",
        "dynamics_name": "gru" if row == "gru" else "mdn_rnn",
        "encoder": {**part, "images/s": 500.0},
        "dynamics": {**part, "transitions/s": 20_000.0 + seed},
        "open_loop": {
            "reconstruction": 0.05,
            "errors": [{"steps": 1, "episodes": 4, "error": 0.1 * seed}],
        },
        "calibration": {
            "horizons": horizons,
            "failures": {"recall": recall, "precision": 0.5, "brier": 0.125},
        },
        "controllers": {
            "dream": {"steps/s": 1000.0, "scores": {"agent": score, AGENT_IN_DREAM: score}}
        },
    }


def record() -> dict[str, Any]:
    returns = {1: [10.0, 20.0, 60.0], 2: [30.0, 40.0, 50.0]}
    return {
        "rows": [
            *(result("paper", seed, 0.5 + seed / 100, returns[seed], None) for seed in (1, 2)),
            *(result("gru", seed, 0.6 + seed / 100, returns[1], 0.5) for seed in (1, 2)),
            result("resnet", 1, 0.1, [900.0, 901.0, 902.0], 0.75),
        ]
    }


def test_tables_have_means_ranges_and_scores_of_seeds(pages: ModuleType) -> None:
    found = {row.pop(""): row for row in cells(pages.predictions(record(), "carracing"))}
    assert found["seeds"] == {"paper": "2", "gru": "2", "resnet": "1"}
    paper = {name: row["paper"] for name, row in found.items()}
    assert paper["validation, nats per dimension"] == "0.515 (0.510 to 0.520)"
    assert paper["open-loop error, 1 step"] == "0.15 (0.10 to 0.20)"
    assert paper["open-loop error, 100 steps"] == "–"
    assert paper["return error, 10 steps"] == "0.250"
    assert (paper["failures: recall"], found["failures: recall"]["gru"]) == ("–", "0.50")
    costs = {row[""]: row["paper"] for row in cells(pages.costs(record(), "carracing"))}
    assert costs["seeds"] == "2"
    assert costs["encoder, M parameters"] == "1.50"
    assert costs["transitions/s"] == "20,002 (20,001 to 20,002)"
    scores = cells(pages.scores(record(), "carracing"))
    assert scores[0]["trained in the learned model: score"] == "35; 30, 40"  # two: no interval
    assert "trained in the environment: score" not in scores[0]
    assert pages.costs(record(), "takecover") == ""


def test_the_verdict_names_rows_whose_difference_by_seed_has_an_interval_without_zero(
    pages: ModuleType,
) -> None:
    """`near` is worse with every seed, by less than seeds differ; `far` on average only."""
    values = {
        "paper": (0.50, 0.60, 0.70),
        "near": (0.51, 0.61, 0.712),
        "far": (0.55, 0.95, 0.69),
        "few": (0.80, 0.90),
    }
    rows = [
        result(name, seed, value, [1.0, 2.0 + 100 * value], None if name == "paper" else 0.5)
        for name, of_seeds in values.items()
        for seed, value in enumerate(of_seeds, start=1)
    ]
    found = {row[""]: row for row in cells(pages.verdict({"rows": rows}, "carracing"))}
    low, high = scipy.stats.ttest_1samp([0.01, 0.01, 0.012], 0.0).confidence_interval(0.95)
    expected = f"near: 0.611, +0.0107 ({low:+.4f} to {high:+.4f})"
    likelihood = found["validation, nats per dimension"]
    assert (likelihood["better"], likelihood["worse"]) == ("–", expected)
    # More is better here.
    score = found["trained in the learned model: score"]
    assert (score["better"].partition(":")[0], score["worse"]) == ("near", "–")
    assert "failures: recall" not in found  # the paper's row has none
    assert "Of 14 differences of predictions and scores 2 are shown;" in pages.verdict(
        {"rows": rows}, "carracing"
    )
    low, high = scipy.stats.ttest_1samp([26.5, 31.5, 36.5], 0.0).confidence_interval(0.95)
    paper, *_ = cells(pages.scores({"rows": rows}, "carracing"))
    expected = f"{31.5:.0f} ({low:.0f} to {high:.0f}); 26, 32, 36"
    assert paper["trained in the learned model: score"] == expected


def test_the_verdict_compares_what_two_rows_have_different_models_for(pages: ModuleType) -> None:
    """All figures of the others are better; each has one of its two models from the paper's row."""
    rows = [result("paper", seed, 0.5, [1.0, 2.0], 0.5) for seed in (1, 2, 3)]
    for name in ("gru", "resnet"):
        for seed in (1, 2, 3):
            rows.append(one := result(name, seed, 0.4, [8.0, 9.0], 0.6))
            for part in ("encoder", "dynamics"):
                one[part] = one[part] | {"parameters": 1_000_000, "peak_bytes": 1_000_000_000}
            one["encoder"]["images/s"] = 600.0
            one["dynamics"]["transitions/s"] = 30_000.0
            one["open_loop"]["reconstruction"] = 0.04
    found = {row[""]: row["better"] for row in cells(pages.verdict({"rows": rows}, "carracing"))}
    named = {
        measure: [name for name in ("gru", "resnet") if name in better]
        for measure, better in found.items()
    }
    encoder = ("reconstruction error", "encoder, M parameters", "images/s", "encoder, GB")
    dynamics = ("dynamics, M parameters", "transitions/s", "dynamics, GB")
    assert all(named[measure] == ["resnet"] for measure in encoder)
    assert all(named[measure] == ["gru"] for measure in dynamics)
    # The latents of another encoder have another likelihood.
    assert named["validation, nats per dimension"] == ["gru"]
    assert named["trained in the learned model: score"] == ["gru", "resnet"]
