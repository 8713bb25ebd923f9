"""Baselines evaluated, reported and compared, in the environment of their training."""

import csv
import html
import shutil
from pathlib import Path
from typing import Any

import pytest
from baseline_training import DISCRETE, PPO, trained
from command import ALONE, composed, run
from pages import headings

from worldmodels.agents.folder import load_config
from worldmodels.baselines.policy import load_policy
from worldmodels.errors import ArtifactError, ConfigError
from worldmodels.files.atomic import read_json, write_json
from worldmodels.runs.artifacts import Run
from worldmodels.stages.context import Context
from worldmodels.stages.players import player_of

pytest.importorskip("stable_baselines3", reason="Stable-Baselines3 is not installed")


def test_frames_and_actions_are_those_of_the_training_or_an_error_says_so(tmp_path: Path) -> None:
    trained(tmp_path, PPO, "baseline.total_steps=32")
    run_folder, whole = tmp_path / "it", tmp_path / "whole-frames"
    shutil.copytree(run_folder, whole)
    record = read_json(whole / "baseline/manifest.json")
    del record["crc32"]
    record["config"] |= {"env.crop_rows": None, "env.frame_skip": 2}
    write_json(whole / "baseline/manifest.json", record)
    context = Context(composed("stage=evaluate", "run=it", ALONE), Run(whole))
    assert (context.observation().crop_rows, context.frame_skip()) == (None, 2)
    cropped = Context(composed("stage=evaluate", "run=it", "env.crop_rows=80"), Run(whole))
    with pytest.raises(ConfigError, match=r"run=it: trained with env\.crop_rows=null"):
        cropped.check()
    choosing = Context(composed("stage=evaluate", "run=it", ALONE, DISCRETE), Run(run_folder))
    job: Any = player_of(choosing)[0].jobs([0], 1, 5)[0]
    with pytest.raises(ArtifactError, match=r"give the keys env\.\* of its training"):
        load_policy(job.source.path, job.source.spec)


@pytest.mark.system
def test_a_baseline_is_evaluated_reported_and_compared(smoke: Path, copy: Path) -> None:
    trained(copy, PPO, "run=it")
    words = ("preset=smoke", "run=it", "env.max_steps=12", "evaluate.engine=native")
    done = run(copy, "stage=evaluate", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    scores = read_json(copy / "it/evaluate/scores.json")
    assert scores.keys() == {"agent", "random policy"}
    assert scores["agent"]["seeds"] == scores["random policy"]["seeds"] == [0, 1]
    assert (copy / "it/evaluate/median.mp4").stat().st_size > 1000
    done = run(copy, "stage=report", *words, "compare=[smoke]")
    assert done.returncode == 0, done.stdout + done.stderr
    page = (copy / "it/report/index.html").read_text()
    found = headings(page)
    assert "Model-free baseline" in found
    assert "VAE encoder" not in found
    figures = copy / "it/report/figures"
    for axis in ("environment-steps", "hours"):
        name = f"comparison-return-over-{axis}-of-all-stages.csv"
        with (figures / name).open(newline="") as file:
            lines = {row["line"] for row in csv.DictReader(file)}
        assert {"it", "smoke", "random policy"} <= lines


@pytest.mark.system
def test_a_baseline_with_other_actions_than_env_squash_has_is_evaluated(tmp_path: Path) -> None:
    trained(tmp_path, PPO, DISCRETE, "baseline.total_steps=32")
    words = ("run=it", "env.max_steps=12", "evaluate.episodes=2", "evaluate.engine=native")
    done = run(tmp_path, "stage=evaluate", *words, DISCRETE, "evaluate.video=false", ALONE)
    assert done.returncode == 0, done.stdout + done.stderr
    scores = read_json(tmp_path / "it/evaluate/scores.json")
    assert [len(score["returns"]) for score in scores.values()] == [2, 2]


@pytest.mark.system
def test_a_baseline_is_trained_in_the_learned_model_and_judged_in_both(
    smoke: Path, tmp_path: Path
) -> None:
    agent = smoke / "smoke/controller/agent"
    features = load_config(agent).features
    words = (
        *(f"base={agent}", "preset=smoke", "controller.world=dream", "controller.max_steps=12"),
        "env.max_steps=12",
        f"controller.latent={'sampled' if features.sampled else 'mean'}",
    )
    manifest = trained(
        tmp_path,
        *words,
        "run=it",
        "baseline.options={policy_kwargs: {net_arch: [8]}, n_steps: 16, n_epochs: 1}",
    )
    assert manifest["summary"]["world"] == "dream"
    assert manifest["inputs"].keys() == {"base"}
    done = run(
        tmp_path,
        "stage=evaluate",
        "run=it",
        *words,
        "evaluate.engine=native",
        "evaluate.video=false",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    scores = read_json(tmp_path / "it/evaluate/scores.json")
    assert scores.keys() == {"agent", "random policy", "agent in the dream"}


@pytest.mark.system
def test_a_baseline_in_the_learned_model_of_a_run_is_judged_and_not_that_runs_controller(
    copy: Path,
) -> None:
    words = (
        *("base=smoke", "preset=smoke", "controller.world=dream", "controller.max_steps=12"),
        *("env.max_steps=12", "evaluate.engine=native", "evaluate.video=false", "run=it"),
    )
    options = "baseline.options={policy_kwargs: {net_arch: [8]}, n_steps: 16, n_epochs: 1}"
    made = trained(copy, *words, options)
    assert made["base"] == "smoke"
    report = run(copy, "stage=report", *words)
    assert report.returncode == 0, report.stdout + report.stderr
    page = (copy / "it/report/index.html").read_text()
    assert "Model-free baseline" in headings(page)
    assert "Controller" not in headings(page)
    assert "The stage 'evaluate' of this run is not finished." in html.unescape(page)
    done = run(copy, "stage=evaluate", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    evaluated = read_json(copy / "it/evaluate/manifest.json")
    assert evaluated["inputs"] == {"baseline": made["fingerprint"]}
    # A report of another run counts what the base cost, which only the manifest names.
    compared = run(copy, "stage=report", "preset=smoke", "run=smoke", "compare=[it]")
    assert compared.returncode == 0, compared.stdout + compared.stderr
    figures = copy / "smoke/report/figures"
    with (figures / "comparison-return-over-environment-steps-of-all-stages.csv").open() as file:
        (steps,) = [
            float(row["environment steps of all stages"])
            for row in csv.DictReader(file)
            if row["line"] == "it"
        ]
    assert steps == read_json(copy / "smoke/rollouts/manifest.json")["summary"]["frames"]


@pytest.mark.system
def test_a_baseline_of_the_learned_model_is_judged_with_the_frame_skip_of_its_training(
    tmp_path: Path,
) -> None:
    words = (
        *("env=takecover", "base=pretrained/takecover", "controller.world=dream"),
        *("env.max_steps=24", "controller.max_steps=6", "controller.latent=sampled"),
        "controller.temperature=0.5",
    )
    options = "baseline.options={policy_kwargs: {net_arch: [8]}, n_steps: 16, n_epochs: 1}"
    made = trained(tmp_path, *words, "env.frame_skip=4", options)
    assert made["config"]["env.frame_skip"] == 4
    evaluation = ("stage=evaluate", "run=it", "env.frame_skip=null", "evaluate.video=false")
    done = run(tmp_path, *words, *evaluation)
    assert done.returncode == 0, done.stdout + done.stderr
    scores = read_json(tmp_path / "it/evaluate/scores.json")
    assert read_json(tmp_path / "it/evaluate/manifest.json")["config"]["env.frame_skip"] == 4
    # No episode is over after so few steps: each counts the simulator's.
    assert set(scores["agent"]["returns"]) == {24}
    assert set(scores["agent in the dream"]["returns"]) == {24}
