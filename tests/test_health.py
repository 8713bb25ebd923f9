"""Figures outside their healthy range, pointed out once, and the ranges beside recorded runs."""

import importlib
from pathlib import Path

import pytest

from worldmodels.files.atomic import read_json
from worldmodels.runs import health
from worldmodels.runs.tracking import MetricsLog

DOCS = Path(__file__).resolve().parent.parent / "docs"


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines that were printed."""
    return [line for line in capsys.readouterr().out.splitlines() if line]


def test_a_collapsed_kl_is_pointed_out_once_also_over_a_resumption(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, ranges = tmp_path / "vae/metrics.csv", health.of_encoder(32)
    with MetricsLog(path, ranges=ranges) as log:
        log.log(10, {"validation/active_dims": 3.2})
        assert not lines(capsys)
        for step in (20, 30):
            log.log(step, {"validation/active_dims": 2.0})
    (line,) = lines(capsys)
    assert line.startswith("vae: step 20: validation/active_dims is 2, healthy is at least 3.2: ")
    with MetricsLog(path, ranges=ranges) as log:
        log.rewind(20)
        log.log(30, {"validation/active_dims": 2.0})
    assert not lines(capsys)
    with MetricsLog(path, ranges=ranges) as log:
        log.rewind(10)
        log.log(20, {"validation/active_dims": 2.0})
    assert len(lines(capsys)) == 1


def test_a_likelihood_no_better_than_the_baseline_is_pointed_out_from_half_of_the_training_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with MetricsLog(tmp_path / "rnn/metrics.csv", ranges=health.of_dynamics(1.3, 20)) as log:
        log.log(5, {"validation/nll": 1.4})
        log.log(10, {"validation/nll": 1.2})
        assert not lines(capsys)
        log.log(15, {"validation/nll": 1.3})
    (line,) = lines(capsys)
    assert line.startswith("rnn: step 15: validation/nll is 1.3, healthy is below 1.3: ")
    assert line.endswith("(docs/follow.md)")


def test_a_flat_search_is_pointed_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with MetricsLog(tmp_path / "controller/metrics.csv", ranges=health.of_search()) as log:
        log.log(1, {"fitness/best": 4.0, "fitness/worst": 1.0})
        log.log(1, {"selection/mean": 5.0})
        for step in range(2, health.EVALUATIONS + 1):
            log.log(step, {"selection/mean": 4.0})
        assert not lines(capsys)
        log.log(step + 1, {"selection/mean": 5.0})  # no higher than the first
        log.log(step + 2, {"fitness/best": 4.0, "fitness/worst": 4.0})
    stale, flat = lines(capsys)
    assert "selection/since_best is 7, healthy is below 7: the search is flat" in stale
    assert "fitness/spread is 0, healthy is at least 1e-09: all candidates score alike" in flat


def test_every_recorded_run_is_within_the_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS)
    figures = importlib.import_module("figures")
    checked = []
    for name in (name for names in figures.RUNS.values() for name in names):
        run = read_json(DOCS / "results" / f"{name}.json")
        found = list(figures.recorded(run))
        copy_last = min((v for k, v in found if k == "copy_last"), default=float("inf"))
        sizes = [stage["config"].get("vae.latent_size", 0) for stage in run["stages"].values()]
        for one in (*health.of_encoder(max(sizes)), *health.of_dynamics(copy_last, 0)):
            values = [value for metric, value in found if metric == one.metric]
            assert values, (name, one.metric)
            assert all(one.contains(value) for value in values), (name, one)
            checked.append(one.metric)
        (since,) = (one for one in health.of_search() if one.metric == health.SINCE_BEST)
        assert all(since.contains(value) for metric, value in found if metric == since.metric)
    assert set(checked) == {"validation/active_dims", "validation/nll"}
