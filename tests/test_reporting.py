"""Scores, pictures, videos, charts and open-loop predictions."""

import json
import tracemalloc
from pathlib import Path

import imageio_ffmpeg
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from rich.console import Console
from scipy import stats

from worldmodels.data.episodes import EpisodeSet
from worldmodels.data.shards import Episode, write_shard
from worldmodels.envs.engines import EnvSpec, make_vector_env
from worldmodels.models.controller import ControllerSpec
from worldmodels.models.encoder import to_input
from worldmodels.models.features import FeatureSpec
from worldmodels.models.mdnrnn import MDNRNN
from worldmodels.models.vae import ConvVAE
from worldmodels.reporting.open_loop import open_loop
from worldmodels.reporting.pictures import compare_episode, contact_sheet, image_grid
from worldmodels.reporting.records import read_scores
from worldmodels.reporting.scores import (
    AGENT_IN_DREAM,
    PAPER_SCORES,
    DreamTrained,
    exploitation_warning,
    score_table,
    summarise,
    temperature_rows,
    video_episodes,
)
from worldmodels.reporting.video import PANEL, SEPARATOR, EpisodeVideo
from worldmodels.runs import tracking
from worldmodels.worlds.real import Perception, RealWorld
from worldmodels.worlds.rollout import PopulationPolicy, rollout


def episodes(folder: Path, count: int = 3, steps: int = 30) -> EpisodeSet:
    rng = np.random.default_rng(0)
    made = [
        Episode(
            frames=rng.integers(0, 256, (steps + 1, 64, 64, 3), np.uint8),
            actions=rng.uniform(-1, 1, (steps, 3)).astype(np.float32),
            rewards=np.ones(steps, np.float32),
            terminated=np.zeros(steps, bool),
            truncated=np.arange(steps) == steps - 1,
            seed=seed,
        )
        for seed in range(count)
    ]
    write_shard(folder / "shard-00000.h5", made, {})
    return EpisodeSet.open([folder], "refuse")


# --- scores


def test_a_score_equals_the_statistics_of_its_returns() -> None:
    returns = np.random.default_rng(1).normal(500, 120, 40)
    score = summarise("agent", returns, range(40))
    assert score.mean == pytest.approx(returns.mean())
    assert score.std == pytest.approx(returns.std(ddof=1))
    middle = np.sort(returns)[10:30]
    assert score.interquartile_mean == pytest.approx(middle.mean())


def test_the_interval_is_near_that_of_a_plain_bootstrap_and_of_student() -> None:
    returns = np.random.default_rng(2).normal(300, 50, 100)
    low, high = summarise("agent", returns, range(100)).interval
    rng = np.random.default_rng(3)
    means = returns[rng.integers(0, 100, (20_000, 100))].mean(axis=1)
    assert (low, high) == pytest.approx(np.quantile(means, [0.025, 0.975]), abs=1.5)
    half = 1.984 * returns.std(ddof=1) / 10  # t of 99 degrees of freedom
    assert (low, high) == pytest.approx((returns.mean() - half, returns.mean() + half), abs=2.5)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=12))
def test_any_returns_have_a_score_that_survives_json(
    tmp_path_factory: pytest.TempPathFactory, returns: list[float]
) -> None:
    score = summarise("agent", np.array(returns), range(len(returns)))
    low, high = score.interval
    assert min(returns) - 1e-6 <= low <= high <= max(returns) + 1e-6
    path = tmp_path_factory.getbasetemp() / "scores.json"
    path.write_text(json.dumps({"agent": score.record()}))
    assert read_scores(path) == {"agent": score}


def test_the_interval_of_many_episodes_is_computed_in_bounded_memory() -> None:
    returns = np.random.default_rng(0).normal(700, 200, 2000)
    whole = stats.bootstrap((returns,), np.mean, rng=np.random.default_rng(0)).confidence_interval
    tracemalloc.start()
    interval = summarise("agent", returns, range(len(returns))).interval
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert interval == tuple(whole)
    assert peak < 160e6, "all resamples together are 320 MB"


def test_few_or_equal_returns_have_no_interval() -> None:
    for returns in ([5.0], [1.0, 9.0], [7.0, 7.0, 7.0, 7.0]):
        score = summarise("agent", np.array(returns), range(len(returns)))
        assert not score.has_interval
        console = Console(width=200)
        with console.capture() as capture:
            console.print(score_table([score], []))
        assert " to " not in capture.get().replace("(seeds 0 to", "(seeds 0-")


def test_a_wrong_number_of_seeds_is_an_error() -> None:
    with pytest.raises(ValueError, match="2 returns for 3 seeds"):
        summarise("agent", np.array([1.0, 2.0]), [1, 2, 3])


@pytest.mark.parametrize(
    ("environment", "dream", "warned"),
    [(180, 2000, True), (800, 1600, False), (180, 190, False), (800, 190, False)],
)
def test_a_controller_that_exploits_the_dynamics_model_gives_a_warning(
    environment: float, dream: float, warned: bool
) -> None:
    spread = np.linspace(-40.0, 40.0, 20)
    means = {"agent": environment, "random policy": 230.0, AGENT_IN_DREAM: dream}
    scores = [summarise(name, mean + spread, range(20)) for name, mean in means.items()]
    line = exploitation_warning(scores)
    assert (line is not None) == warned
    assert line is None or "2000 in the dream, 180 in the environment" in line
    assert exploitation_warning(scores[:2]) is None, "there is no score in the dream"
    few = [summarise(s.name, np.array(s.returns[:2]), range(2)) for s in scores]
    assert exploitation_warning(few) is None


def test_a_score_table_ends_with_the_papers_scores() -> None:
    score = summarise("agent", np.array([900.0, 910.0, 920.0]), range(3))
    console = Console(width=200)
    with console.capture() as capture:
        console.print(score_table([score], PAPER_SCORES["CarRacing-v3"]))
    lines = [line.split("│") for line in capture.get().splitlines() if line.startswith("│")]
    assert [cell.strip() for cell in lines[0][1:3]] == ["agent", "910.0 ± 10.0"]
    assert [cell.strip() for cell in lines[1][1:3]] == ["paper: full world model", "906 ± 21"]


@pytest.mark.parametrize(
    ("returns", "videos"),
    [
        ([5.0], {"median": 0}),
        ([5.0, 1.0], {"median": 1}),
        ([5.0, 1.0, 3.0], {"median": 2, "worst": 1}),
        ([5.0, 1.0, 3.0, 4.0], {"median": 2, "worst": 1}),
        ([5.0, 1.0, 3.0, 4.0, 2.0], {"median": 2, "worst": 1, "worst-2": 4}),
        (
            [9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0],
            {"median": 4, "worst": 8, "worst-2": 7, "worst-3": 6},
        ),
    ],
)
def test_the_median_and_the_worst_episodes_are_recorded_as_videos(
    returns: list[float], videos: dict[str, int]
) -> None:
    assert video_episodes(returns) == videos


# --- progress


def test_progress_is_written_to_a_log_file_at_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "console", Console(width=120, force_terminal=False))
    clock = iter(range(0, 1000, 25))
    monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))
    bar = tracking.Progress("collecting", 8, "episodes", start=2)
    with tracking.console.capture() as capture, bar:
        for number in range(6):
            bar.advance(note=f"lap {number}")
    lines = capture.get().splitlines()
    assert [line.split(",")[0] for line in lines] == [
        "collecting: 5 of 8 episodes",
        "collecting: 8 of 8 episodes",
    ]
    assert lines[-1].endswith("lap 5")


# --- pictures


def test_an_image_grid_keeps_every_pixel_and_has_transparent_gaps() -> None:
    strips = np.random.default_rng(0).integers(0, 256, (2, 3, 8, 8, 3), np.uint8)
    image = image_grid(*strips)
    assert image.shape == (20, 30, 4)
    for row in range(2):
        for column in range(3):
            cell = image[10 * row : 10 * row + 10, 10 * column : 10 * column + 10]
            assert (cell[1:-1, 1:-1, :3] == strips[row, column]).all()
            assert (cell[1:-1, 1:-1, 3] == 255).all()
            assert not cell[0].any()
            assert not cell[:, -1].any()


def test_the_contact_sheet_runs_from_first_to_last_frame(tmp_path: Path) -> None:
    data = episodes(tmp_path)
    sheet = contact_sheet(data, rows=3)
    assert sheet.shape == (3 * 66, 12 * 66, 4)
    assert (sheet[1:65, 1:65, :3] == data.episode(0).frames[0]).all()
    assert (sheet[-65:-1, -65:-1, :3] == data.episode(2).frames[-1]).all()


def test_an_episode_comparison_begins_with_the_first_frame(tmp_path: Path) -> None:
    torch.manual_seed(0)
    data = episodes(tmp_path)
    compared = compare_episode(ConvVAE().eval(), MDNRNN(32, 3, 16).eval(), data, 1)
    assert compared.image.shape == (4 * 66, 12 * 66, 4)
    assert (compared.seed, compared.times[0], compared.times[-1]) == (1, 0, 30)
    recorded, reconstructed, one_step, predicted = np.split(compared.image, 4)
    assert (recorded[1:65, 1:65, :3] == data.episode(1).frames[0]).all()
    assert not one_step[:, :66].any(), "the first frame has no prediction"
    assert (predicted[:, :66] == reconstructed[:, :66]).all()


# --- the video


def countdown() -> tuple[RealWorld, ConvVAE, MDNRNN]:
    """An environment whose frames show the step number, and random networks."""
    torch.manual_seed(0)
    encoder, dynamics = ConvVAE().eval(), MDNRNN(32, 2, 8).eval()
    spec = EnvSpec("picture_env:Countdown-v0", "gymnasium", 500, None, 64)
    perception = Perception(encoder, dynamics, FeatureSpec())
    return (
        RealWorld(lambda num_envs: make_vector_env(spec, num_envs), perception),
        encoder,
        dynamics,
    )


@pytest.mark.parametrize(("frame_skip", "rate", "shown"), [(1, 50, 60), (4, 12.5, 25)])
def test_a_video_has_a_frame_for_every_step_and_panels_in_order(
    tmp_path: Path, frame_skip: int, rate: float, shown: int
) -> None:
    world, encoder, dynamics = countdown()
    video = EpisodeVideo(1, encoder, dynamics, frame_skip)
    head = ControllerSpec(("tanh", "tanh"))
    parameters = np.zeros((1, head.size(32 + 8)), np.float32)
    policy = PopulationPolicy(parameters, 3, world.feature_size, head, torch.device("cpu"))
    outcome = rollout(world, policy, [90, 120, 70], 500, video)
    path = tmp_path / "video.mp4"
    video.write(path)
    world.close()
    assert outcome.lengths.tolist() == [90, 120, 70]
    reader = imageio_ffmpeg.read_frames(str(path))
    meta = next(reader)
    width, height = meta["size"]
    assert (width, height) == (3 * PANEL + 2 * SEPARATOR, PANEL)
    assert meta["fps"] == rate
    frames = [np.frombuffer(frame, np.uint8).reshape(height, width, 3) for frame in reader]
    assert len(frames) == 121
    for number, frame in enumerate(frames):
        # Every pixel of this environment is the step number, which H.264 keeps within a few levels.
        assert abs(frame[8:-8, 8 : PANEL - 8].mean() - number) < 4
    # The first frame has no prediction: its panel is grey.
    assert abs(frames[0][8:-8, 8 - PANEL :].astype(int) - 128).max() < 6
    poster = np.asarray(Image.open(path.with_suffix(".png")))
    assert poster.shape == (height, width, 3)
    # After two seconds; of a short episode, from its middle.
    assert (poster[:, :PANEL] == shown).all()


def test_without_an_encoder_a_video_has_the_frames_alone(tmp_path: Path) -> None:
    world, _, dynamics = countdown()
    video, head = EpisodeVideo(0, None, dynamics), ControllerSpec(("tanh", "tanh"))
    parameters = np.zeros((1, head.size(32 + 8)), np.float32)
    policy = PopulationPolicy(parameters, 1, world.feature_size, head, torch.device("cpu"))
    rollout(world, policy, [20], 500, video)
    world.close()
    video.write(tmp_path / "video.mp4")
    reader = imageio_ffmpeg.read_frames(str(tmp_path / "video.mp4"))
    assert next(reader)["size"] == (PANEL, PANEL)
    assert len(list(reader)) == 21


# --- open-loop predictions


def dynamics_with_termination(logit: float) -> MDNRNN:
    """An untrained model whose predicted logit of a termination is about `logit`."""
    torch.manual_seed(0)
    dynamics = MDNRNN(8, 3, 12, 3, reward_weight=0).eval()
    with torch.no_grad():
        dynamics.head.bias[-1] = logit
    return dynamics


@pytest.mark.parametrize("skip", [1, 4])
def test_predicted_terminations_are_kept_apart_from_recorded_ones(
    tmp_path: Path, skip: int
) -> None:
    torch.manual_seed(1)
    encoder, recorded = ConvVAE(8).eval(), episodes(tmp_path)
    for logit, fraction in ((-50.0, 0.0), (50.0, 1.0)):
        result = open_loop(encoder, dynamics_with_termination(logit), recorded, skip, (0.5, 1.0))
        assert [one.temperature for one in result.rollouts] == [0.5, 1.0]
        for predicted in result.rollouts:
            assert predicted.trajectories.terminated.shape == (3, 30)
            assert (predicted.trajectories.fraction_terminated() == fraction).all()
            assert predicted.trajectories.mean_return()[-1] == skip * 30 * (1 - fraction)
    assert result.lengths.tolist() == [30] * 3
    assert (result.recorded.terminated == 0).all()
    assert result.recorded.mean_return().tolist() == list(range(1, 31))


def test_latent_error_is_that_of_the_mode_under_the_recorded_actions(tmp_path: Path) -> None:
    torch.manual_seed(1)
    encoder, recorded = ConvVAE(8).eval(), episodes(tmp_path)
    dynamics = dynamics_with_termination(-50.0)
    # At this temperature a sample is the mode of the mixture.
    result = open_loop(encoder, dynamics, recorded, 1, (1e-8,))
    episode = recorded.episode(1)
    with torch.inference_mode():
        encoded = encoder.encode(to_input(torch.from_numpy(episode.frames))).mean
        z, state = encoded[:1], dynamics.initial_state(1)
        error = []
        for time, action in enumerate(torch.from_numpy(episode.actions)):
            state = dynamics.advance(z, action[None], state)
            z = dynamics.predict(state).latent.mode()
            error.append((z - encoded[time + 1]).square().mean().sqrt().item())
    np.testing.assert_allclose(result.rollouts[0].latent_error[1], error, rtol=1e-2)


def test_scores_of_dream_trained_controllers_are_sorted_by_temperature() -> None:
    dream, environment, random = (
        summarise(name, np.array([low, low + 2.0, low + 1.0]), range(3))
        for name, low in (("dream", 900), ("environment", 800), ("random", 200))
    )
    trained = (((1.15,), "c"), ((1.0, 1.5), "b"), ((0.1,), "a"))
    runs = [DreamTrained(ends, name, dream, environment) for ends, name in trained]
    rows = temperature_rows(runs, random)
    names = [("0.1", "a"), ("1.5 to 1", "b"), ("1.15", "c"), ("–", "random policy")]
    assert [row[:2] for row in rows] == names
    assert rows[2][2:4] == ("901 ± 1", "801 ± 1")
    assert rows[3][3] == "201 ± 1"
