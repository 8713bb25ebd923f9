"""The linear probe of the encoders."""

import importlib
from pathlib import Path

import numpy as np
import pytest


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
