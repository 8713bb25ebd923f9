"""What a reader is shown: scores, pictures, the film, the page."""

import json
import re
from pathlib import Path

import imageio_ffmpeg
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from worldmodels import tracking
from worldmodels.data.episodes import EpisodeSet
from worldmodels.data.shards import Episode, write_shard
from worldmodels.envs.engines import EnvSpec, make_lanes
from worldmodels.models.controller import ControllerSpec
from worldmodels.models.mdnrnn import MDNRNN
from worldmodels.models.vae import ConvVAE, to_input
from worldmodels.reporting.charts import Chart, draw
from worldmodels.reporting.parting import part
from worldmodels.reporting.pictures import contact_sheet, dream_strip, rows_of
from worldmodels.reporting.scores import (
    IN_ITS_DREAM,
    PAPER_ROWS,
    Score,
    exploited,
    score_table,
    summarise,
    temperature_rows,
)
from worldmodels.reporting.video import PANEL, SEPARATOR, EpisodeFilm
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


def test_a_score_is_what_numpy_says_of_its_returns() -> None:
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
def test_any_returns_have_a_score_that_survives_json(returns: list[float]) -> None:
    score = summarise("agent", np.array(returns), range(len(returns)))
    low, high = score.interval
    assert min(returns) - 1e-6 <= low <= high <= max(returns) + 1e-6
    assert Score.from_record("agent", json.loads(json.dumps(score.record()))) == score


def test_few_or_equal_returns_are_not_given_an_interval() -> None:
    for returns in ([5.0], [1.0, 9.0], [7.0, 7.0, 7.0, 7.0]):
        score = summarise("agent", np.array(returns), range(len(returns)))
        assert not score.has_interval
        console = Console(width=200)
        with console.capture() as capture:
            console.print(score_table([score], []))
        assert " to " not in capture.get().replace("(seeds 0 to", "(seeds 0-")


def test_a_wrong_number_of_seeds_is_refused() -> None:
    with pytest.raises(ValueError, match="2 returns for 3 seeds"):
        summarise("agent", np.array([1.0, 2.0]), [1, 2, 3])


@pytest.mark.parametrize(
    ("game", "dream", "said"),
    [(180, 2000, True), (800, 1600, False), (180, 190, False), (800, 190, False)],
)
def test_an_agent_that_is_good_in_its_dream_alone_is_named(
    game: float, dream: float, said: bool
) -> None:
    spread = np.linspace(-40.0, 40.0, 20)
    means = {"agent": game, "random policy": 230.0, IN_ITS_DREAM: dream}
    scores = [summarise(name, mean + spread, range(20)) for name, mean in means.items()]
    line = exploited(scores)
    assert (line is not None) == said
    assert line is None or "2000 there, 180 in the game" in line
    assert exploited(scores[:2]) is None, "it has not dreamt"
    assert exploited([summarise(s.name, np.array(s.returns[:2]), range(2)) for s in scores]) is None


def test_the_paper_stands_beside_car_racing() -> None:
    full = PAPER_ROWS["CarRacing-v3"][0]
    assert (full.mean, full.std) == (906, 21)


# --- progress


def test_a_log_file_is_told_of_progress_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "console", Console(width=120, force_terminal=False))
    clock = iter(range(0, 1000, 25))
    monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))
    bar = tracking.Progress("driving", 8, "episodes", start=2)
    with tracking.console.capture() as capture, bar:
        for number in range(6):
            bar.advance(note=f"lap {number}")
    lines = capture.get().splitlines()
    assert [line.split(",")[0] for line in lines] == [
        "driving: 5 of 8 episodes",
        "driving: 8 of 8 episodes",
    ]
    assert lines[-1].endswith("lap 5")


# --- pictures


def test_rows_keep_every_pixel_and_leave_clear_gaps() -> None:
    strips = np.random.default_rng(0).integers(0, 256, (2, 3, 8, 8, 3), np.uint8)
    image = rows_of(*strips)
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


def test_a_dream_strip_begins_where_the_episode_does(tmp_path: Path) -> None:
    torch.manual_seed(0)
    data = episodes(tmp_path)
    strip = dream_strip(ConvVAE().eval(), MDNRNN(32, 3, 16).eval(), data, 1)
    assert strip.image.shape == (4 * 66, 12 * 66, 4)
    assert (strip.seed, strip.times[0], strip.times[-1]) == (1, 0, 30)
    recorded, reconstructed, foretold, dreamt = np.split(strip.image, 4)
    assert (recorded[1:65, 1:65, :3] == data.episode(1).frames[0]).all()
    assert not foretold[:, :66].any(), "nothing foretold the first frame"
    assert (dreamt[:, :66] == reconstructed[:, :66]).all(), "the dream starts from what V saw"


# --- the film


def test_the_film_has_a_frame_for_every_step_and_panels_in_order(tmp_path: Path) -> None:
    torch.manual_seed(0)
    vision, memory = ConvVAE().eval(), MDNRNN(32, 2, 8).eval()
    spec = EnvSpec("picture_env:Countdown-v0", "gymnasium", 500, None, 64)
    world = RealWorld(lambda lanes: make_lanes(spec, lanes), Perception(vision, memory))
    film = EpisodeFilm(1, vision, memory)
    head = ControllerSpec(("tanh", "tanh"))
    parameters = np.zeros((1, head.size(32 + 8)), np.float32)
    policy = PopulationPolicy(parameters, 3, world.feature_size, head, torch.device("cpu"))
    outcome = rollout(world, policy, [90, 120, 70], 500, film)
    path = tmp_path / "film.mp4"
    film.write(path)
    world.close()
    assert outcome.lengths.tolist() == [90, 120, 70]
    reader = imageio_ffmpeg.read_frames(str(path))
    width, height = next(reader)["size"]
    assert (width, height) == (3 * PANEL + 2 * SEPARATOR, PANEL)
    frames = [np.frombuffer(frame, np.uint8).reshape(height, width, 3) for frame in reader]
    assert len(frames) == 121
    for number, frame in enumerate(frames):
        # Every pixel of this game is the number of steps; H.264 keeps it within a few levels.
        assert abs(frame[8:-8, 8 : PANEL - 8].mean() - number) < 4
    # Nothing foretold the first frame: its panel is grey.
    assert abs(frames[0][8:-8, 8 - PANEL :].astype(int) - 128).max() < 6


# --- charts


def test_a_chart_takes_the_colour_of_the_page_and_is_the_same_each_time() -> None:
    rows = [(step, "train/loss", 1.0 / step, 0.1 * step) for step in range(1, 50)]
    chart = Chart({"train/loss": "training"}, "step", "loss", log=True)
    svg = draw(chart, rows)
    assert svg is not None
    assert svg == draw(chart, rows)
    assert "currentColor" in svg
    assert "#010203" not in svg
    assert "training" in re.sub(r"<!--.*?-->", "", svg)
    assert draw(Chart({"absent": "absent"}, "step", "loss"), rows) is None


# --- game and dream


def memory_that_ends(logit: float) -> MDNRNN:
    torch.manual_seed(0)
    memory = MDNRNN(8, 3, 12, 3, reward_weight=0).eval()
    with torch.no_grad():
        memory.head.bias[-1] = logit
    return memory


def test_a_dream_that_goes_on_where_the_game_ended_is_told_apart(tmp_path: Path) -> None:
    torch.manual_seed(1)
    vision, played = ConvVAE(8).eval(), episodes(tmp_path)
    for logit, ended in ((-50.0, 0.0), (50.0, 1.0)):
        parting = part(vision, memory_that_ends(logit), played, (0.5, 1.0))
        assert [dream.temperature for dream in parting.dreams] == [0.5, 1.0]
        for dream in parting.dreams:
            assert dream.course.ended.shape == (3, 30)
            assert (dream.course.share_ended() == ended).all()
            assert dream.course.mean_return()[-1] == 30 * (1 - ended)
    assert parting.lengths.tolist() == [30] * 3
    assert (parting.game.ended == 0).all()
    assert parting.game.mean_return().tolist() == list(range(1, 31))


def test_distance_is_that_of_a_dream_of_the_recorded_actions(tmp_path: Path) -> None:
    torch.manual_seed(1)
    vision, played, memory = ConvVAE(8).eval(), episodes(tmp_path), memory_that_ends(-50.0)
    parting = part(vision, memory, played, (1e-8,))  # all but certain: each step is the mode
    episode = played.episode(1)
    with torch.inference_mode():
        game = vision.encode(to_input(torch.from_numpy(episode.frames))).mean
        z, state = game[:1], memory.initial(1)
        distance = []
        for time, action in enumerate(torch.from_numpy(episode.actions)):
            state = memory.advance(z, action[None], state)
            z = memory.predict(state.h).latent.mode()
            distance.append((z - game[time + 1]).square().mean().sqrt().item())
    np.testing.assert_allclose(parting.dreams[0].distance[1], distance, rtol=1e-2)


def test_scores_by_temperature_stand_beside_the_papers() -> None:
    dream, game, random = (
        summarise(name, np.array([low, low + 2.0, low + 1.0]), range(3))
        for name, low in (("dream", 900), ("game", 800), ("random", 200))
    )
    runs = [(1.15, "b", dream, game), (0.1, "a", dream, game), (2.0, "c", dream, game)]
    rows = temperature_rows("vizdoom.gymnasium_wrapper:VizdoomTakeCover-v1", runs, random)
    assert [row[0] for row in rows] == ["0.1", "1.15", "2", "–"]
    assert rows[1][2:4] == ("901 ± 1", "801 ± 1")
    assert rows[1][5:] == ("918 ± 546", "1092 ± 556")
    assert rows[2][5:] == ("–", "–")
    assert rows[3][3] == "201 ± 1"
