"""Calibration of the dynamics model."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from command import ALONE, run
from torch import Tensor, nn

from worldmodels.config.sections import CalibrationConfig
from worldmodels.data.failures import failures
from worldmodels.data.latents import EncodedEpisode, LatentSet, write_latents
from worldmodels.data.sequences import FailureEnd
from worldmodels.errors import ArtifactError
from worldmodels.files.atomic import read_json, write_json
from worldmodels.models.dynamics import Prediction, State
from worldmodels.reporting import closed_loop
from worldmodels.reporting.calibration import Calibration, Horizon, calibrate, largest_return
from worldmodels.reporting.failures import failing, failure_scores
from worldmodels.reporting.page import render
from worldmodels.reporting.verdict import (
    CALIBRATION,
    exceeded_thresholds,
    read_calibration,
)
from worldmodels.worlds.rollout import Outcome

# --- failures


def test_failures_are_those_of_a_plain_loop() -> None:
    rng = np.random.default_rng(0)
    for completes, stall in ((True, 50), (False, 50), (True, 25)):
        for _ in range(40):
            steps = int(rng.integers(1, 160))
            rewards = np.where(rng.random(steps) < rng.choice([0.01, 0.04, 0.3]), 3.2, -0.1)
            end = int(rng.integers(0, 2 * steps))
            terminated = np.arange(steps) >= end
            expected = []
            for time in range(steps):
                whole = time + stall <= min(steps, end)
                stalled = whole and rewards[time : time + stall].sum() < 0
                completed = completes and time == end and rewards[time] > 0
                expected.append(stalled or (time == end and not completed))
            assert failing(rewards, terminated, completes, stall).tolist() == expected


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

    def expectation(self) -> Tensor:
        return self.mean


class Clock(nn.Module):
    """A dynamics model of episodes whose reward is the last action's first number plus a hundredth
    of the step's number, and which terminate where its second number is above one half.

    Its state is the number of steps and the last action, so that it predicts right only from the
    state of the moment at which it begins.
    """

    mixed_precision = False
    latent_size, action_size, sampled, predicts_reward = 2, 2, False, True
    termination_pos_weight = 1.0
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
    courses = []
    for steps, end in zip(lengths, ends, strict=True):
        time = np.arange(steps)
        terminated = (time == steps - 1) & (end is not None)
        earned = np.where(terminated, end or 0.0, np.where(time < 120, 1.0, -9.0))
        courses.append((earned + 0.01 * time, terminated, terminated))
    return encoded(folder, courses)


def encoded(
    folder: Path, courses: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]]
) -> LatentSet:
    """Episodes of some rewards and terminations, and the terminations that `Clock` predicts."""
    episodes = []
    for seed, (rewards, terminated, announced) in enumerate(courses):
        latents = np.zeros((len(rewards) + 1, 2), np.float32)
        actions = np.stack([rewards - 0.01 * np.arange(len(rewards)), announced], axis=1)
        single = (actions.astype(np.float32), rewards.astype(np.float32))
        episodes.append(EncodedEpisode(latents, latents, *single, terminated, seed))
    write_latents(folder / "latents.h5", episodes, {})
    return LatentSet(folder / "latents.h5")


def stalling(folder: Path, announced: bool) -> LatentSet:
    """Two episodes that stall at step 60, and end 25 steps after their highest return; a completed
    task, and an episode without a failure. `Clock` predicts the terminations, and that the first
    two terminate in step 62 where this is `announced`."""
    stalled = np.repeat([1.2, -0.4], [60, 25])
    slower = stalled + 1.0 * (np.arange(85) == 62)  # a reward in it, and no new highest return
    courses = []
    for rewards, end in ((stalled, 62), (slower, 62), (np.append(np.full(79, 1.2), 5.0), 79)):
        predicted = np.arange(len(rewards)) == end
        terminated = predicted & (end == 79)
        courses.append((rewards, terminated, predicted if announced else terminated))
    courses.append((np.full(40, 1.2), np.zeros(40, bool), np.zeros(40, bool)))
    return encoded(folder, courses)


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
    scored = found.failures
    assert scored is not None
    falls = next(at for at in range(211) if rewards[1][at : at + 50].sum() < 0)
    assert 50 <= falls < 100
    # Those that begin at steps 100, 150 and 200 of the second episode begin within its stall.
    assert scored.windows == 2 + 3 + 1 + 3
    assert scored.recorded == scored.predicted == 2
    assert (scored.recall, scored.precision, scored.brier) == (1.0, 1.0, 0.0)
    assert found.around is not None
    assert found.around.failures == 2
    assert found.around.predicted == pytest.approx(found.around.earned, rel=1e-4)
    first = rewards[0][90 - 1 - 25], rewards[1][falls - 25]
    assert found.around.earned[0] == pytest.approx(np.mean(first))
    assert exceeded_thresholds(found, CalibrationConfig()) == ()


def test_episodes_that_the_collection_ended_in_a_stall_are_recorded_failures(
    tmp_path: Path,
) -> None:
    latents = stalling(tmp_path, announced=False)
    assert [failures(*episode, 25) for episode in outcomes(latents)] == [(60,), (60,), (), ()]
    found = calibrate(latents, np.arange(4), Clock(), 25)  # type: ignore[arg-type]  # of the protocol
    assert found.failures is not None
    assert (found.failures.windows, found.failures.recorded, found.failures.predicted) == (7, 2, 2)
    assert (found.failures.recall, found.failures.precision) == (1.0, 1.0)
    longer = calibrate(latents, np.arange(4), Clock(), 70)  # type: ignore[arg-type]  # of the protocol
    assert longer == calibrate(latents, np.arange(4), Clock())  # type: ignore[arg-type]  # of the protocol


def test_a_model_that_learned_to_terminate_in_a_stall_is_compared_with_such_ends(
    tmp_path: Path,
) -> None:
    latents, end = stalling(tmp_path, announced=True), FailureEnd(2, 25)
    found = calibrate(latents, np.arange(4), Clock(), 25, end)  # type: ignore[arg-type]  # of the protocol
    assert found.failures is not None
    # For such a model a completed task is no termination: it is predicted and was not recorded.
    assert (found.failures.windows, found.failures.recorded, found.failures.predicted) == (7, 2, 3)
    assert (found.failures.recall, found.failures.precision) == (1.0, 2 / 3)
    rewards = [latents.read(number, 0, 63).rewards for number in (0, 1)]
    assert found.around is not None
    assert found.around.failures == 2
    expected = np.mean([one[62 - 25 :].sum() for one in rewards])
    assert found.around.earned[-1] == pytest.approx(expected, rel=1e-5)
    assert found.around.predicted == pytest.approx(found.around.earned, rel=1e-4)
    assert [one.starts for one in found.horizons] == [7, 7, 6, 6]
    assert all(abs(one.difference) < 1e-5 for one in found.horizons)
    ended = [one[at:].sum() for one in rewards for at in (0, 50)] + [79 * 1.2 + 5, 29 * 1.2 + 5]
    assert found.horizons[2].earned == pytest.approx(np.mean(ended), rel=1e-5)


def outcomes(latents: LatentSet) -> list[tuple[np.ndarray, bool]]:
    return [(rewards, bool(terminated[-1])) for rewards, terminated in latents.outcomes()]


def test_a_model_that_predicts_too_much_is_not_calibrated(tmp_path: Path) -> None:
    latents = recorded(tmp_path, LENGTHS, ENDS)
    model = Clock(optimism=20.0, immortal=True)
    found = calibrate(latents, np.arange(4), model)  # type: ignore[arg-type]  # of the protocol
    assert found.failures is not None
    assert (found.failures.recorded, found.failures.predicted) == (2, 0)
    assert (found.failures.recall, found.failures.precision) == (0.0, None)
    assert found.horizons[0].predicted - found.horizons[0].earned == pytest.approx(200, rel=1e-4)
    limits = CalibrationConfig()
    returns, recall = exceeded_thresholds(found, limits)
    assert "calibration.return_error=0.25" in returns
    assert "recall of failures is 0.00 (2 recorded, 0 predicted)" in recall
    assert exceeded_thresholds(found, CalibrationConfig(return_error=1000, recall=0)) == ()
    assert "not measured" in exceeded_thresholds(None, limits)[0]


def test_returns_in_both_worlds_are_compared_where_all_episodes_have_them(tmp_path: Path) -> None:
    def outcome(returns: list[float], ended: list[bool], partial: list[list[float]]) -> Outcome:
        lengths = np.full(len(returns), 100)
        return Outcome(np.array(returns), lengths, np.array(ended), partial=np.array(partial))

    nan = np.nan
    both = [False, False]
    earned = outcome([31.0, 7.0], both, [[4.0, 10.0, 30.0, nan], [2.0, 6.0, nan, nan]])
    ends = [[4.0, 9.0, 30.0, 90.0], [4.0, nan, nan, nan]]  # the second terminates early
    predicted = outcome([90.0, 11.0], [False, True], ends)
    horizons = closed_loop.compare(earned, predicted)
    assert horizons == (
        Horizon(10, 2, 3.0, 4.0, 1 / float(np.sqrt(10))),
        Horizon(30, 2, 8.0, 10.0, 2 / float(np.sqrt(68))),
    )
    closed_loop.write_horizons(tmp_path, horizons)
    assert closed_loop.read_horizons(tmp_path) == horizons
    assert closed_loop.exceeds(horizons, CalibrationConfig(return_error=0.25)) == ()
    (said,) = closed_loop.exceeds(horizons, CalibrationConfig(return_error=0.2))
    assert said.startswith(
        "Over 30 steps the controller's mean return is 10.0 in the learned model"
    )
    (tmp_path / closed_loop.FILE).write_text('{"horizons": [{"steps": 1}]}')
    with pytest.raises(ArtifactError, match=r"horizons\.json"):
        closed_loop.read_horizons(tmp_path)
    (tmp_path / closed_loop.FILE).unlink()
    assert closed_loop.read_horizons(tmp_path) == ()


@pytest.mark.parametrize(("predicted", "difference"), [(50.0, 1.0), (-50.0, -1.0), (0.0, 0.0)])
def test_returns_predicted_where_nothing_was_earned_are_an_error(
    predicted: float, difference: float
) -> None:
    horizon = Horizon.of(100, np.zeros(5), np.full(5, predicted))
    assert horizon.difference == pytest.approx(difference)
    said = closed_loop.exceeds((horizon,), CalibrationConfig())
    assert bool(said) == bool(difference)


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
    assert largest_return(latents, 1000, None) == pytest.approx(returns[1] * 1000 / 40, rel=1e-5)
    assert largest_return(latents, 20, None) == pytest.approx(latents.read(1, 0, 20).rewards.sum())
    assert largest_return(latents, 5, 1) == 5  # steps survived
    assert largest_return(latents, 5, 4) == 20
    (tmp_path / "other").mkdir()
    ended = recorded(tmp_path / "other", (10,), (-9.0,))
    assert largest_return(ended, 1000, None) == pytest.approx(returns[0], rel=1e-5)
    assert largest_return(ended, 1000, 1) == 9


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
    for reason in exceeded_thresholds(found, CalibrationConfig()):
        assert reason in section


@pytest.mark.parametrize("termination", ["null", "2"])
def test_a_stall_that_ends_episodes_is_a_failure_of_the_calibration(
    copy: Path, termination: str
) -> None:
    words = ("stage=rnn", "preset=smoke", ALONE, "overwrite=true", "rnn.baselines=false")
    done = run(copy, *words, "rollouts.stall_steps=12", f"rnn.failure_termination={termination}")
    assert done.returncode == 0, done.stdout + done.stderr
    latents = LatentSet(copy / "smoke/rnn/latents.h5")
    stalled = sum(bool(failures(*episode, 12)) for episode in outcomes(latents))
    assert stalled >= 7 - 1  # of 8, of which 2 are held out
    found = read_calibration(copy / "smoke/rnn")
    assert found is not None
    assert found.failures is not None
    assert found.failures.recorded > 0


def test_an_older_run_without_a_calibration_still_has_a_report(copy: Path) -> None:
    (copy / "smoke/rnn" / CALIBRATION).unlink()
    page = render("a", {"rnn": copy / "smoke/rnn"}, None)
    assert "Calibration of the learned model" not in page
