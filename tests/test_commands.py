"""The program from the outside: one smoke run, looked at from all sides, and its refusals."""

import csv
import json
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command import ALONE, BRIEFLY, CONF, FEW_FRAMES, composed, error_line, run, start
from waiting import HANG_SECONDS, wait_for

from worldmodels.agents.folder import read_agent
from worldmodels.data.episodes import EpisodeSet
from worldmodels.data.latents import LatentSet
from worldmodels.reporting.progress import search_curve

STAGES = ("rollouts", "vae", "rnn", "controller", "evaluate", "report")


def manifest(data: Path, stage: str, name: str = "smoke") -> dict[str, Any]:
    record: dict[str, Any] = json.loads((data / name / stage / "manifest.json").read_text())
    return record


def options(group: str) -> list[str]:
    return [f"{group}={path.stem}" for path in sorted((CONF / group).glob("*.yaml"))]


GROUPS = [path.name for path in sorted(CONF.iterdir()) if path.is_dir()]


@pytest.mark.parametrize("override", [option for group in GROUPS for option in options(group)])
def test_every_configuration_composes(override: str) -> None:
    assert composed(override)


def test_the_paper_preset_is_the_papers() -> None:
    config = composed("preset=paper")
    assert (config.rollouts.episodes, config.rollouts.max_steps) == (10_000, 1000)
    assert (config.vae.latent_size, config.vae.epochs, config.vae.batch_size) == (32, 10, 100)
    rnn = config.rnn
    assert (rnn.hidden_size, rnn.mixtures, rnn.epochs, rnn.batch_size) == (256, 5, 40, 100)
    controller = config.controller
    assert (controller.population, controller.episodes, controller.generations) == (64, 16, 1800)


def test_a_smoke_run_leaves_every_artifact(smoke: Path) -> None:
    for stage in STAGES:
        record = manifest(smoke, stage)
        assert record["state"] == "complete"
        assert record["versions"]["torch"]
    scores = json.loads((smoke / "smoke/evaluate/scores.json").read_text())
    assert set(scores) == {"agent", "random policy"}
    for score in scores.values():
        assert score["seeds"] == [0, 1]
        assert len(score["returns"]) == 2
        assert score["mean"] == pytest.approx(np.mean(score["returns"]))
        assert score["interval"][0] <= score["mean"] <= score["interval"][1]
    assert (smoke / "smoke/evaluate/median.mp4").stat().st_size > 1000
    report = smoke / "smoke/report"
    page = (report / "index.html").read_text()
    loaded = re.findall(r'(?:src|href|url)\s*[=(]\s*["\']?([^"\')\s>]+)', page)
    assert len(loaded) > 5
    files = {source for source in loaded if not source.startswith(("data:", "#"))}
    others = {str(path.relative_to(report)) for path in report.rglob("*.*")}
    assert files == others - {"index.html", "manifest.json"}, "the page links to its figures"
    assert "is not finished" not in page
    episodes = EpisodeSet.open([smoke / "smoke/rollouts"])
    assert (episodes.num_episodes, episodes.num_frames) == (8, 8 * 41)
    assert LatentSet(smoke / "smoke/rnn/latents.h5").lengths.tolist() == [40] * 8


def test_a_learning_curve_has_a_point_for_each_selection(smoke: Path) -> None:
    folder = smoke / "smoke/controller"
    (point,) = search_curve(folder)
    records = [json.loads(line) for line in (folder / "generations.jsonl").open()]
    assert len(records) == 2
    assert point.steps == sum(record["steps"] for record in records)
    searched = sum(record["seconds"] for record in records)
    controller = manifest(smoke, "controller")
    assert searched < point.seconds <= controller["wall_s"], "with the evaluation"
    mean = controller["summary"]["selection_mean"]
    assert point.score == pytest.approx(mean, abs=0.01)


def test_latents_are_what_the_saved_vae_makes_of_the_frames(smoke: Path) -> None:

    from worldmodels.models.encoder import to_input

    agent = read_agent(smoke / "smoke/controller/agent")
    latents = LatentSet(smoke / "smoke/rnn/latents.h5")
    frames = EpisodeSet.open([smoke / "smoke/rollouts"]).episode(3).frames
    with torch.inference_mode():
        mean = agent.encoder.encode(to_input(torch.from_numpy(frames))).mean.numpy()
    # bfloat16 has eight bits of mantissa.
    np.testing.assert_allclose(latents.episode(3).mean, mean, atol=0.1 * np.abs(mean).max())


def test_run_again_does_nothing(copy: Path) -> None:
    before = {stage: manifest(copy, stage) for stage in STAGES[:-1]}
    done = run(copy, "stage=all", "preset=smoke", "rollouts.noise=0.5")  # of no controller
    assert done.returncode == 0
    assert {stage: manifest(copy, stage) for stage in STAGES[:-1]} == before


def test_help_and_configuration_are_shown(tmp_path: Path) -> None:
    done = run(tmp_path, "--help")
    assert done.returncode == 0
    assert "python -m worldmodels stage=all" in done.stdout
    done = run(tmp_path, "--cfg", "job", "vae.latent_size=64")
    assert "latent_size: 64" in done.stdout


def test_a_dream_of_other_latents_than_the_games_is_refused(copy: Path) -> None:
    dream = ("controller.world=dream", "controller.latent=mean", "run=other", "base=smoke")
    line = error_line(run(copy, "stage=controller", "preset=smoke", *dream))
    assert "controller.latent=sampled" in line
    assert not (copy / "other/controller").exists()  # nothing was made, nothing is in the way


@pytest.mark.system
def test_a_sweep_makes_a_run_for_each_value_on_a_common_base(copy: Path) -> None:
    done = run(
        copy,
        "--multirun",
        "stage=controller",
        "preset=smoke",
        "base=smoke",
        "controller.world=dream",
        "controller.temperature=0.5,1.0",
        ALONE,
        "run=dream-${controller.temperature}",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for temperature in (0.5, 1.0):
        record = manifest(copy, "controller", f"dream-{temperature}")
        assert record["config"]["controller.temperature"] == temperature


@pytest.mark.system
def test_rounds_collect_with_the_agent_before_and_learn_from_all_episodes(tmp_path: Path) -> None:
    few = ("preset=smoke", *BRIEFLY, *FEW_FRAMES, "run=rounds", ALONE)
    done = run(tmp_path, "stage=iterate", *few)
    assert done.returncode == 0, done.stdout + done.stderr
    first, second = (
        {stage: manifest(tmp_path, stage, f"rounds/round-{number}") for stage in STAGES[:-1]}
        for number in (1, 2)
    )
    assert second["rollouts"]["inputs"] == {"controller": first["controller"]["fingerprint"]}
    assert second["rollouts"]["config"]["rollouts.policy"] == "controller"
    assert second["vae"]["inputs"] == {
        "rollouts-1": first["rollouts"]["fingerprint"],
        "rollouts": second["rollouts"]["fingerprint"],
        "previous vae": first["vae"]["fingerprint"],
    }
    latents = LatentSet(tmp_path / "rounds/round-2/rnn/latents.h5")
    assert len(latents.lengths) == 16
    written = json.loads((tmp_path / "rounds/rounds.json").read_text())
    before, after = (entry["frames"] for entry in written["rounds"])
    assert after["total"] == before["total"] + after["recorded"] + after["search"]
    scores = written["scores"]
    for number in (1, 2):
        path = tmp_path / f"rounds/round-{number}/evaluate/scores.json"
        assert scores[f"agent of round-{number}"] == json.loads(path.read_text())["agent"]


@pytest.mark.system
def test_a_chain_makes_only_what_its_base_does_not_have(copy: Path) -> None:
    wider = ("preset=smoke", "base=smoke", "run=wider", "controller.population=6", ALONE)
    done = run(copy, "stage=all", *wider, *BRIEFLY[1:])
    assert done.returncode == 0, done.stderr
    assert f"rnn: done before ({copy}/smoke/rnn, " in done.stdout
    assert f"{copy}/smoke/controller was made with controller.population=" in done.stdout
    assert not any((copy / "wider" / stage).exists() for stage in ("rollouts", "vae", "rnn"))
    inputs = manifest(copy, "controller", "wider")["inputs"]
    assert inputs["rnn"] == manifest(copy, "rnn")["fingerprint"]
    judged = manifest(copy, "evaluate", "wider")["inputs"]
    assert judged != manifest(copy, "evaluate")["inputs"]
    # Asked for by its name, a stage is this run's own.
    assert run(copy, "stage=rollouts", *wider).returncode == 0
    again, first = (manifest(copy, "rollouts", name) for name in ("wider", "smoke"))
    assert again["fingerprint"] == first["fingerprint"]


@pytest.mark.system
def test_a_bootstrap_run_gives_its_controller_episodes_and_encoder_and_nothing_else(
    tmp_path: Path,
) -> None:
    few = ("preset=smoke", "run=bootstrapped", *BRIEFLY, *FEW_FRAMES, ALONE)
    bootstrapped = (*few, "+bootstrap={rollouts:{episodes:4,policy:brownian},rnn:{hidden_size:16}}")
    drive = ("rollouts.policy=controller", "rollouts.noise=0.1")
    early = run(tmp_path, "stage=rollouts", *bootstrapped, *drive)
    assert "bootstrapped/bootstrap/controller is missing: first run stage=bootstrap" in error_line(
        early
    )
    done = run(tmp_path, "stage=all", *bootstrapped, *drive)
    assert done.returncode == 0, done.stdout + done.stderr
    bootstrap, main = (
        {stage: manifest(tmp_path, stage, name) for stage in STAGES[:4]}
        for name in ("bootstrapped/bootstrap", "bootstrapped")
    )
    assert bootstrap["rollouts"]["config"]["rollouts.policy"] == "brownian"
    assert main["rollouts"]["inputs"] == {"controller": bootstrap["controller"]["fingerprint"]}
    assert main["vae"]["inputs"] == {
        "rollouts-1": bootstrap["rollouts"]["fingerprint"],
        "rollouts": main["rollouts"]["fingerprint"],
        "previous vae": bootstrap["vae"]["fingerprint"],
    }
    assert "previous rnn" not in main["rnn"]["inputs"]
    assert bootstrap["rnn"]["config"]["rnn.hidden_size"] == 16
    assert main["rnn"]["config"]["rnn.hidden_size"] == 32
    assert len(LatentSet(tmp_path / "bootstrapped/rnn/latents.h5").lengths) == 4 + 8
    page = (tmp_path / "bootstrapped/report/index.html").read_text()
    assert '<th scope="row">bootstrap/controller</th>' in page
    other = run(tmp_path, "stage=vae", *bootstrapped, *drive, "vae.latent_size=8", "overwrite=true")
    assert "its sizes differ" in error_line(other)
    agent = tmp_path / "bootstrapped/controller/agent"
    two = run(tmp_path, "stage=rollouts", *bootstrapped, *drive, f"model={agent}", "overwrite=true")
    assert "model: conflicts with the controller of the run before" in error_line(two)


@pytest.mark.system
def test_a_search_ends_with_its_total_steps_and_goes_on_with_a_larger_one(copy: Path) -> None:
    search = ("stage=controller", "preset=smoke", "run=spent", "base=smoke", ALONE)
    done = run(copy, *search, "controller.total_steps=1")
    assert done.returncode == 0, done.stderr
    spent = manifest(copy, "controller", "spent")
    assert spent["summary"]["generations"] == 1
    done = run(copy, *search, "controller.total_steps=null")
    assert done.returncode == 0, done.stderr
    whole, reference = manifest(copy, "controller", "spent"), manifest(copy, "controller")
    assert whole["summary"]["generations"] == 2
    assert whole["summary"]["steps"] == reference["summary"]["steps"] > spent["summary"]["steps"]


def test_step_sizes_fall_as_its_total_steps_is_used_up(copy: Path) -> None:
    narrowing = (
        "controller.total_steps=250",
        "controller.sigma=0.2",
        "controller.final_sigma=0.05",
    )
    search = ("stage=controller", "preset=smoke", "run=fall", "base=smoke", ALONE)
    done = run(copy, *search, *narrowing)
    assert done.returncode == 0, done.stderr
    folder = copy / "fall/controller"
    with (folder / "metrics.csv").open() as lines:
        told = [float(r["value"]) for r in csv.DictReader(lines) if r["name"] == "fitness/sigma"]
    played = [json.loads(line)["steps"] for line in (folder / "generations.jsonl").open()]
    spent = np.minimum(np.cumsum(played) / 250, 1)
    np.testing.assert_allclose(told, 0.2 * 0.25**spent)
    assert told[-1] == pytest.approx(0.05)
    assert told[0] > 0.05


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["vae.latnt_size=3"], "vae.latnt_size: no such key, perhaps vae.latent_size"),
        (["stage=fly"], "stage: Invalid value 'fly', expected one of [bootstrap, rollouts,"),
        (["vae.latent_size=many"], "vae.latent_size: Value 'many'"),
        (
            ["preset=huge"],
            "preset=huge: choose one of dream-rounds, fine-tune, laptop, paper, quick, smoke",
        ),
        (
            ["stage=vae", "run=a/b"],
            "a/b/rollouts is missing: first run stage=rollouts with the same run",
        ),
        (["stage=vae", "base=nowhere"], "base=nowhere: neither a run"),
        (["stage=report"], "nothing to report"),
        (["stage=rollouts", "env.engine=warp"], "engine"),
        (["stage=evaluate", "model=nowhere"], "nowhere"),
        (["device=cuda"], "device=cuda"),
        (["stage=rollouts", "device=mps"], "device=mps: torch finds no Metal here"),
        (["stage=bootstrap"], "no bootstrap run"),
        (["+bootstrap={vae:{latnt_size:3}}"], "vae.latnt_size: no such key"),
        (["controller.stall_steps=0"], "controller.stall_steps=0: choose 1 to 100000"),
        (["vae=5"], "vae: takes no value of its own; give one of its keys (vae.<key>=<value>), or"),
        (["env=[1]"], "env=[1]: give env=<name>, and choose one of breakout, carracing,"),
        (
            ["stage=evaluate", "model=pretrained/takecover"],
            "model=pretrained/takecover: trained for vizdoom.gymnasium_wrapper:VizdoomTakeCover-v1,"
            " env is CarRacing-v3; add env=takecover",
        ),
        (["run=."], "run=.: give the name of a folder"),
        (["run=../other"], "run=../other: give the name of a folder"),
    ],
)
def test_mistakes_are_one_line_that_names_them(
    tmp_path: Path, overrides: list[str], said: str
) -> None:
    if overrides == ["device=cuda"]:
        if torch.cuda.is_available():
            pytest.skip("there is a GPU here")
        overrides = ["stage=rollouts", "device=cuda"]
    if "device=mps" in overrides and torch.backends.mps.is_available():
        pytest.skip("there is Metal here")
    assert said in error_line(run(tmp_path, "preset=smoke", *overrides))
    assert not list(tmp_path.iterdir())


def test_an_artifact_made_from_another_upstream_is_refused(copy: Path) -> None:
    done = run(copy, "stage=vae", "preset=smoke", "vae.learning_rate=2e-3", "overwrite=true")
    assert done.returncode == 0, done.stderr
    line = error_line(run(copy, "stage=rnn", "preset=smoke"))
    assert "made from another vae" in line
    assert "overwrite=true" in line


def test_a_page_that_cannot_be_made_costs_none(copy: Path) -> None:
    page = copy / "smoke/report/index.html"
    before = page.read_bytes()
    (copy / "smoke/rollouts/shard-00001.h5").write_bytes(b"")
    assert "shard-00001.h5" in error_line(run(copy, "stage=report", "preset=smoke"))
    assert page.read_bytes() == before


def test_a_truncated_shard_is_named_and_collected_again(copy: Path) -> None:
    path = copy / "smoke/rollouts/shard-00001.h5"
    fingerprint = manifest(copy, "rollouts")["fingerprint"]
    path.write_bytes(path.read_bytes()[:-5000])
    line = error_line(run(copy, "stage=vae", "preset=smoke", "overwrite=true"))
    assert "shard-00001.h5 is damaged" in line
    assert "stage=rollouts" in line
    done = run(copy, "stage=rollouts", "preset=smoke", ALONE)
    assert done.returncode == 0, done.stderr
    assert manifest(copy, "rollouts")["fingerprint"] == fingerprint


def test_a_damaged_shard_can_be_left_out_by_choice(copy: Path) -> None:
    path = copy / "smoke/rollouts/shard-00001.h5"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(bytes(content))
    done = run(copy, "stage=inspect", "preset=smoke", "rollouts.on_corrupt=skip")
    assert done.returncode == 0, done.stderr
    assert "shard-00001.h5" in done.stdout + done.stderr


def test_files_that_no_manifest_accounts_for_are_not_adopted(copy: Path) -> None:
    (copy / "smoke/rollouts/manifest.json").unlink()
    line = error_line(run(copy, "stage=rollouts", "preset=smoke", "rollouts.policy=uniform"))
    assert "smoke/rollouts has" in line
    assert "no manifest.json" in line
    assert "overwrite=true" in line


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_a_stop_signal_saves_and_exits_75(copy: Path, number: signal.Signals) -> None:
    path = copy / "smoke/vae/checkpoint.safetensors"
    path.unlink()
    arguments = (
        "stage=vae",
        "preset=smoke",
        "overwrite=true",
        "vae.epochs=400",
        "run=smoke",
        ALONE,
    )
    process = start(copy, *arguments, "trainer.log_every=1", "trainer.checkpoint_seconds=0.2")
    wait_for(lambda: path.exists() or process.poll() is not None)
    process.send_signal(number)
    output, errors = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 75, output + errors
    assert "progress is saved" in errors


@pytest.mark.parametrize(
    ("logger", "file"),
    [("tensorboard", "*tfevents*"), ("wandb", "*.wandb")],
)
def test_metrics_go_to_a_logger(copy: Path, logger: str, file: str) -> None:
    words = ("preset=smoke", "overwrite=true", "vae.batch_size=256", f"logger={logger}")
    done = run(copy, "stage=vae", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (copy / "smoke/vae/metrics.csv").exists()
    assert list((copy / "smoke/vae").rglob(file))


def test_nothing_is_drawn_where_there_is_no_terminal(copy: Path) -> None:
    done = run(copy, "stage=inspect", "preset=smoke")
    assert isinstance(done, subprocess.CompletedProcess)
    assert "\x1b" not in done.stdout


def test_a_file_where_a_folder_is_needed_is_one_line(copy: Path) -> None:
    file = copy / "file"
    file.touch()
    for data, name in ((file, "smoke"), (copy, "file")):
        line = error_line(run(data, "stage=rollouts", "preset=smoke", f"run={name}", ALONE))
        assert str(file) in line
        assert "Not a directory" in line
    assert file.read_bytes() == b""
