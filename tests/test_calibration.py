"""Calibration of the dynamics model, and exploitation of it by a search."""

import importlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from command import ALONE, error_line, run
from torch import Tensor, nn

from worldmodels.config.sections import CalibrationConfig
from worldmodels.data.latents import EncodedEpisode, LatentSet, write_latents
from worldmodels.errors import ArtifactError
from worldmodels.evolution.evolve import EvolveOptions, EvolveResult, evolve
from worldmodels.evolution.exploitation import Exploitation
from worldmodels.evolution.pca import PCASubspace
from worldmodels.evolution.search import Search
from worldmodels.files.atomic import read_json, write_json
from worldmodels.models.controller import ControllerSpec
from worldmodels.models.dynamics import Prediction, State
from worldmodels.reporting.calibration import Calibration, calibrate, largest_return
from worldmodels.reporting.failures import failing, failure_scores
from worldmodels.reporting.page import render
from worldmodels.reporting.records import Record
from worldmodels.reporting.rounds import settled
from worldmodels.reporting.verdict import (
    CALIBRATION,
    distrust,
    exploitation_begins,
    read_calibration,
)
from worldmodels.runs.tracking import MetricsLog, read_metrics
from worldmodels.workers.jobs import Heartbeat, Pool
from worldmodels.workers.local import LocalPool
from worldmodels.worlds.world import Step, World

# --- failures


def test_failures_are_those_of_a_plain_loop() -> None:
    rng = np.random.default_rng(0)
    for rewarded in (True, False):
        for _ in range(40):
            steps = int(rng.integers(1, 160))
            rewards = np.where(rng.random(steps) < rng.choice([0.01, 0.04, 0.3]), 3.2, -0.1)
            end = int(rng.integers(0, 2 * steps))
            terminated = np.arange(steps) >= end
            expected = []
            for time in range(steps):
                stalled = time + 50 <= min(steps, end) and rewards[time : time + 50].sum() < 0
                completed = rewarded and time == end and rewards[time] > 0
                expected.append(stalled or (time == end and not completed))
            assert failing(rewards, terminated, rewarded).tolist() == expected


def test_scores_of_forecasts_are_those_of_their_definitions() -> None:
    rng = np.random.default_rng(0)
    forecast, happened = rng.integers(0, 5, 200) / 4, rng.random(200) < 0.3
    found = failure_scores(forecast, happened)
    hits = sum(1 for f, h in zip(forecast, happened, strict=True) if f >= 0.5 and h)
    assert found.recall == hits / sum(happened)
    assert found.precision == hits / sum(1 for f in forecast if f >= 0.5)
    pairs = list(zip(forecast.tolist(), happened.tolist(), strict=True))
    assert found.brier == pytest.approx(sum((f - h) ** 2 for f, h in pairs) / 200)
    # Murphy's decomposition: reliability - resolution + uncertainty is the Brier score.
    base = np.mean(happened)
    parts = [
        one.windows / 200 * ((one.forecast - one.observed) ** 2 - (one.observed - base) ** 2)
        for one in found.reliability
    ]
    assert sum(parts) + base * (1 - base) == pytest.approx(found.brier)
    none = failure_scores(np.zeros(3), np.zeros(3, bool))
    assert (none.recall, none.precision, none.brier) == (None, None, 0.0)


# --- predictions


class Certain(NamedTuple):
    """A distribution of the next latent that has one value."""

    mean: Tensor

    def sample(self, uniform: Tensor, normal: Tensor, temperature: float | Tensor) -> Tensor:
        return self.mean

    def mode(self) -> Tensor:
        return self.mean


class Clock(nn.Module):
    """A dynamics model of episodes whose reward is the last action's first number plus a hundredth
    of the step's number, and which terminate where its second number is above one half.

    Its state is the number of steps and the last action, so that it predicts right only from the
    state of the moment at which it begins.
    """

    mixed_precision = False
    latent_size, action_size, sampled, predicts_reward = 2, 2, False, True
    state_features: dict[str, int] = {}  # noqa: RUF012  (of the protocol)

    def __init__(self, optimism: float = 0.0, immortal: bool = False) -> None:
        super().__init__()
        self.optimism, self.immortal = optimism, immortal

    def initial_state(self, num_envs: int, device: torch.device | None = None) -> State:
        return torch.zeros(num_envs), torch.zeros(num_envs, 2)

    def advance(self, latents: Tensor, actions: Tensor, state: State) -> State:
        return state[0] + 1, actions

    def predict(self, state: State) -> Prediction[Certain]:
        time, actions = state
        reward = actions[:, 0] + 0.01 * (time - 1) + self.optimism
        ends = torch.zeros_like(time) if self.immortal else actions[:, 1]
        return Prediction(Certain(torch.zeros(len(time), 2)), reward, ends - 0.5)


def recorded(folder: Path, lengths: Sequence[int], ends: Sequence[float | None]) -> LatentSet:
    """Episodes that `Clock` predicts; each earns 1 a step at first and falls from step 120 on.

    Args:
        folder: of the file.
        lengths: steps of each episode.
        ends: what the last action of an episode that terminates earns; None for a time limit.
    """
    episodes = []
    for seed, (steps, end) in enumerate(zip(lengths, ends, strict=True)):
        time = np.arange(steps)
        terminated = (time == steps - 1) & (end is not None)
        earned = np.where(terminated, end or 0.0, np.where(time < 120, 1.0, -9.0))
        actions = np.stack([earned, terminated], axis=1)
        latents = np.zeros((steps + 1, 2), np.float32)
        rewards = (actions[:, 0] + 0.01 * time).astype(np.float32)
        episodes.append(
            EncodedEpisode(latents, latents, actions.astype(np.float32), rewards, terminated, seed)
        )
    write_latents(folder / "latents.h5", episodes, {})
    return LatentSet(folder / "latents.h5")


LENGTHS, ENDS = (90, 260, 40, 130), (-9.0, None, None, 5.0)
"""A failure, a stall, an episode without either, and a completed task."""


def test_a_model_that_is_right_is_calibrated(tmp_path: Path) -> None:
    latents = recorded(tmp_path, LENGTHS, ENDS)
    found = calibrate(latents, np.arange(4), Clock())  # type: ignore[arg-type]  # of the protocol
    rewards = [episode.rewards for episode in map(latents.episode, range(4))]
    for horizon in found.horizons:
        sums = [
            one[at : at + horizon.steps].sum()
            for one, end in zip(rewards, ENDS, strict=True)
            for at in range(0, len(one), 50)
            if at + horizon.steps <= len(one) or end is not None
        ]
        assert horizon.starts == len(sums)
        assert horizon.earned == pytest.approx(np.mean(sums))
        assert horizon.predicted == pytest.approx(horizon.earned, rel=1e-5)
        assert abs(horizon.difference) < 1e-5
    assert [one.steps for one in found.horizons] == [10, 30, 100, 300]
    failures = found.failures
    assert failures is not None
    falls = next(at for at in range(211) if rewards[1][at : at + 50].sum() < 0)
    assert 50 <= falls < 100
    # Those that begin at steps 100, 150 and 200 of the second episode begin within its stall.
    assert failures.windows == 2 + 3 + 1 + 3
    assert failures.recorded == failures.predicted == 2
    assert (failures.recall, failures.precision, failures.brier) == (1.0, 1.0, 0.0)
    assert found.around is not None
    assert found.around.failures == 2
    assert found.around.predicted == pytest.approx(found.around.earned, rel=1e-4)
    first = rewards[0][90 - 1 - 25], rewards[1][falls - 25]
    assert found.around.earned[0] == pytest.approx(np.mean(first))
    assert distrust(found, CalibrationConfig()) == ()


def test_a_model_that_promises_too_much_is_not_calibrated(tmp_path: Path) -> None:
    latents = recorded(tmp_path, LENGTHS, ENDS)
    model = Clock(optimism=20.0, immortal=True)
    found = calibrate(latents, np.arange(4), model)  # type: ignore[arg-type]  # of the protocol
    assert found.failures is not None
    assert (found.failures.recorded, found.failures.predicted) == (2, 0)
    assert (found.failures.recall, found.failures.precision) == (0.0, None)
    assert found.horizons[0].predicted - found.horizons[0].earned == pytest.approx(200, rel=1e-4)
    limits = CalibrationConfig()
    returns, recall = distrust(found, limits)
    assert "calibration.return_error=0.25" in returns
    assert "recall of failures is 0.00 (2 recorded, 0 predicted)" in recall
    assert distrust(found, CalibrationConfig(return_error=1000, recall=0)) == ()
    assert "not measured" in distrust(None, limits)[0]


def test_a_calibration_is_read_as_it_was_written(tmp_path: Path) -> None:
    found = calibrate(recorded(tmp_path, LENGTHS, ENDS), np.arange(4), Clock())  # type: ignore[arg-type]  # of the protocol
    for written in (found, Calibration(1, (), None, None)):
        write_json(tmp_path / CALIBRATION, written.record())
        assert read_calibration(tmp_path) == written
    (tmp_path / CALIBRATION).unlink()
    assert read_calibration(tmp_path) is None
    damages: list[dict[str, Any]] = [
        {"episodes": 1.5},
        {"horizons": {}},
        {"horizons": [{"steps": "1"}]},
    ]
    for damage in damages:
        write_json(tmp_path / CALIBRATION, found.record() | damage)
        with pytest.raises(ArtifactError, match=r"calibration\.json: "):
            read_calibration(tmp_path)


def test_the_largest_return_is_over_as_many_steps_as_the_dream(tmp_path: Path) -> None:
    latents = recorded(tmp_path, (10, 40), (-9.0, None))
    returns = [latents.episode(number).rewards.sum() for number in range(2)]
    assert largest_return(latents, 1000, True) == pytest.approx(returns[1] * 1000 / 40, rel=1e-5)
    assert largest_return(latents, 20, True) == pytest.approx(latents.read(1, 0, 20).rewards.sum())
    assert largest_return(latents, 5, False) == 5  # steps survived
    (tmp_path / "other").mkdir()
    ended = recorded(tmp_path / "other", (10,), (-9.0,))
    assert largest_return(ended, 1000, True) == pytest.approx(returns[0], rel=1e-5)
    assert largest_return(ended, 1000, False) == 9


# --- exploitation


def test_exploitation_begins_with_the_first_return_above_the_largest_recorded_one() -> None:
    watch = Exploitation(recorded_best=10.0, patience=2)
    stops = []
    for generation, score in ((5, 9.0), (10, 10.0), (15, 10.1), (20, 8.0), (25, 11.0), (30, 12.0)):
        watch.judge(generation, score)
        stops.append(watch.stops)
    assert stops == [False] * 5 + [True]
    assert watch.began == 15
    assert "exploitation beginning at generation 15" in watch.in_words()
    unknown = Exploitation(None, None)
    unknown.judge(5, 1e9)
    assert (unknown.began, unknown.stops, unknown.in_words()) == (None, False, "")


class Promises:
    """A world that pays what the controller's only output says, for five steps."""

    feature_size = 1
    device = torch.device("cpu")

    def reset(self, seeds: Sequence[int]) -> Tensor:
        return torch.zeros(len(seeds), 1)

    def step(self, actions: Tensor) -> Step:
        none = np.zeros(len(actions), bool)
        return Step(torch.zeros(len(actions), 1), actions[:, 0].double().numpy(), none, none)

    def keep(self, mask: np.ndarray) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class PromisesSpec:
    def build(self) -> Promises:
        return Promises()


OPTIONS = EvolveOptions(
    generations=12,
    total_steps=None,
    sigma=0.05,
    final_sigma=None,
    episodes=1,
    first_episodes=None,
    max_steps=5,
    stall_steps=None,
    eval_interval=2,
    eval_episodes=1,
    num_envs=(4, 4),
    overlap=False,
    seed=1,
)


def searched(folder: Path, options: EvolveOptions) -> EvolveResult:
    """A search in `Promises`, continued from its logs in `folder`."""
    folder.mkdir(exist_ok=True)
    spec = ControllerSpec(("tanh",))
    subspace = PCASubspace(np.zeros(1), np.eye(1), spec)

    def pool(on_steps: Heartbeat) -> Pool[World]:
        return LocalPool(PromisesSpec(), 0, 60.0, on_steps)

    search = Search(subspace.size, 8, options.sigma, options.seed)
    with MetricsLog(folder / "metrics.csv") as tracker:
        return evolve(search, subspace, spec, pool, folder, options, tracker)


def lines(path: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("overlap", [False, True])
def test_a_search_stops_where_the_dream_promises_more_than_was_recorded(
    tmp_path: Path, overlap: bool
) -> None:
    plain = replace(OPTIONS, overlap=overlap)
    whole = searched(tmp_path / "whole", plain)
    selection = lines(tmp_path / "whole/selection.jsonl")
    rising, third = [line["score"] for line in selection], selection[2]["generation"] + 1
    limit = (rising[2] + max(rising[:2])) / 2
    assert rising[2] > limit, "the test needs a search that goes on to rise"
    # Named, with nothing else changed.
    named = searched(tmp_path / "named", replace(plain, recorded_best=limit))
    assert named.exploitation == third
    assert whole.exploitation is None
    assert (named.score, named.generations) == (whole.score, whole.generations) == (max(rising), 12)
    assert named.parameters.tolist() == whole.parameters.tolist()
    metrics = read_metrics(tmp_path / "named/metrics.csv")
    assert {value for _, name, value, _ in metrics if name == "selection/recorded_best"} == {limit}
    exploits = [value for _, name, value, _ in metrics if name == "selection/exploitation"]
    assert exploits == [float(score > limit) for score in rising]
    # Stopped; the agent is the best one before.
    stopping = replace(plain, recorded_best=limit, exploitation_patience=1)
    for _ in range(2):  # made, and read again from its logs
        stopped = searched(tmp_path / "stopped", stopping)
        assert (stopped.generations, stopped.exploitation) == (third, third)
        assert stopped.score == max(rising[:2])
    # With more patience it goes on as if it had never stopped.
    extended = searched(tmp_path / "stopped", replace(stopping, exploitation_patience=100))
    assert extended.generations == 12
    for name in ("generations", "selection"):
        one, other = (lines(tmp_path / f"{run}/{name}.jsonl") for run in ("whole", "stopped"))
        key = "fitness" if name == "generations" else "score"
        assert [line[key] for line in one] == [line[key] for line in other]


def test_exploitation_is_a_sentence_of_the_report() -> None:
    def said(agent: float, **summary: float | None) -> str | None:
        fields = {"summary": {"selection_mean": agent, **summary}}
        return exploitation_begins(Record(Path("manifest.json"), fields))

    best = {"exploitation": 40, "recorded_best": 910.0}
    exploiting, stopped = said(1300.0, **best) or "", said(880.0, **best) or ""
    assert "from generation 40 on" in exploiting
    assert "largest recorded return, 910.0" in exploiting
    assert "The agent's, 1300.0, is not to be trusted." in exploiting
    assert "The agent's, 880.0, is from before." in stopped
    assert said(880.0, exploitation=None, recorded_best=910.0) is None
    assert said(880.0) is None  # of an older version


# --- rounds


@pytest.mark.parametrize(
    ("returns", "calibrated", "patience", "stops"),
    [
        ((1, 2, 3), "yyy", 1, False),
        ((1, 3, 2), "yyy", 1, True),
        ((1, 3, 2), "yyn", 1, False),
        ((1, 3, 3), "yyy", 1, True),
        ((1, 3, 2), "yyy", 2, False),
        ((3, 2, 1), "yyy", 2, True),
        ((3, 2, 1), "yny", 2, False),
        ((3,), "y", 1, False),
        ((3, 2, 1), "yyy", None, False),
    ],
)
def test_rounds_end_when_the_model_is_calibrated_and_the_data_no_better(
    returns: Sequence[float], calibrated: str, patience: int | None, stops: bool
) -> None:
    entries = [
        {"recorded_return": value, "verdict": {"calibrated": flag == "y"}}
        for value, flag in zip(returns, calibrated, strict=True)
    ]
    assert settled(entries, patience) is stops


# --- the linear probe


def test_the_probe_is_a_ridge_regression_scored_on_held_out_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent.parent / "benchmarks")
    probe = importlib.import_module("probe")
    rng = np.random.default_rng(0)
    inputs = rng.normal(3.0, [1.0, 20.0, 0.1], (300, 3))
    exact = inputs @ [[1.0], [2.0], [-3.0]] + 5.0
    targets = np.concatenate([exact, rng.normal(size=(300, 1))], axis=1)
    held_out = np.arange(300) % 4 == 3
    known, noise = probe.ridge(inputs, targets, held_out, penalty=1e-9)
    assert known.r2 == pytest.approx(1.0)
    assert known.rmse == pytest.approx(0.0, abs=1e-6)
    assert noise.r2 < 0.1
    # A penalty is as much as further rows of it, with the target's mean.
    fitted, other = inputs[~held_out], inputs[held_out]
    mean, std = fitted.mean(axis=0), fitted.std(axis=0)
    rows = np.concatenate([(fitted - mean) / std, np.sqrt(50.0) * np.eye(3)])
    centred = np.concatenate([targets[~held_out, 0] - targets[~held_out, 0].mean(), np.zeros(3)])
    weights = np.linalg.lstsq(rows, centred, rcond=None)[0]
    said = (other - mean) / std @ weights + targets[~held_out, 0].mean()
    rmse = np.sqrt(np.mean((said - targets[held_out, 0]) ** 2))
    assert probe.ridge(inputs, targets, held_out, penalty=50.0)[0].rmse == pytest.approx(rmse)


def test_the_probe_has_the_motion_of_the_car_in_its_own_frame(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent.parent / "benchmarks")
    probe = importlib.import_module("probe")
    body = np.zeros((2, 5, 11), np.float32)
    turned = 0.3  # counterclockwise: forward, which is up at 0, is (-sin, cos)
    forward, right = (
        np.array([-np.sin(turned), np.cos(turned)]),
        np.array([np.cos(turned), np.sin(turned)]),
    )
    for number, (ahead, aside) in enumerate(((30.0, 4.0), (0.0, -2.0))):
        velocity = ahead * forward + aside * right
        body[number, 0, [2, 3, 4, 5]] = turned, *velocity, 0.5
    expected = [[np.hypot(30, 4), 4, 0.5], [2, -2, 0.5]]
    np.testing.assert_allclose(probe.motion(body), expected, rtol=1e-5)


# --- stages


def manifest(data: Path, stage: str, name: str = "smoke") -> Any:
    return read_json(data / name / stage / "manifest.json")


def test_a_run_measures_its_dynamics_model_and_reports_it(smoke: Path) -> None:
    found = read_calibration(smoke / "smoke/rnn")
    assert found is not None
    assert CALIBRATION in manifest(smoke, "rnn")["files"]
    assert [one.steps for one in found.horizons] == [10, 30]  # episodes have 40 steps
    page = (smoke / "smoke/report/index.html").read_text()
    section = page[page.index("<h2>Calibration of the learned model</h2>") :]
    section = section[: section.index("</section>")]
    assert f"{found.episodes} held-out episodes" in section
    cells = re.findall(r"<td>(.*?)</td>", section)
    for one in found.horizons:
        assert f"{one.earned:.1f}" in cells
        assert f"{one.predicted:.1f}" in cells
    assert "mean return" in section[: section.index("</svg>")]
    for reason in distrust(found, CalibrationConfig()):
        assert reason in section


def test_an_older_run_without_a_calibration_still_has_a_report(copy: Path) -> None:
    (copy / "smoke/rnn" / CALIBRATION).unlink()
    page = render("a", {"rnn": copy / "smoke/rnn"}, None)
    assert "Calibration of the learned model" not in page


def test_a_search_in_the_dream_has_the_largest_recorded_return(copy: Path) -> None:
    search = ("stage=controller", "preset=smoke", "run=dreamt", "base=smoke", ALONE)
    dreamt = (*search, "controller.world=dream", "controller.latent=sampled")
    done = run(copy, *dreamt)
    assert done.returncode == 0, done.stderr
    summary = manifest(copy, "controller", "dreamt")["summary"]
    latents = LatentSet(copy / "smoke/rnn/latents.h5")
    sums = [latents.read(number, 0, 20).rewards.sum() for number in range(8)]
    assert summary["recorded_best"] == pytest.approx(max(sums), rel=1e-5)
    assert summary["exploitation"] is None
    # A key that is null by default: the finished artifact of a version without it is the same.
    path = copy / "dreamt/controller/manifest.json"
    record = read_json(path)
    del record["crc32"], record["config"]["controller.exploitation_patience"]
    write_json(path, record)
    assert "controller: done before" in run(copy, *dreamt).stdout
    real = run(copy, *search, "controller.exploitation_patience=1")
    assert "controller.exploitation_patience=1: there is no learned model" in error_line(real)
