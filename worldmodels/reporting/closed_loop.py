"""Returns of a controller over its first steps, in the environment and in the learned model.

In both the controller acts on what it observes (closed loop). Predictions that follow recorded
actions instead (`worldmodels.reporting.calibration`) part from a recorded episode as soon as the
model samples another course of it, however good the model is: the actions no longer fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from worldmodels.config.sections import CalibrationConfig
from worldmodels.files.atomic import write_json
from worldmodels.reporting.calibration import HORIZONS, Horizon
from worldmodels.reporting.records import read_record
from worldmodels.worlds.rollout import Outcome

FILE = "horizons.json"
"""Beside the scores of a controller that was trained in the learned model."""


def compare(earned: Outcome, predicted: Outcome) -> tuple[Horizon, ...]:
    """The returns over each of `HORIZONS` that all episodes lasted for, or had failed before.

    Of a termination in the learned model the reward does not say whether it is a failure: the
    episode has earned what it had then.

    Args:
        earned: in the environment, with `Outcome.partial`.
        predicted: in the learned model, likewise.
    """
    assert earned.partial is not None
    assert predicted.partial is not None
    over = np.isnan(predicted.partial) & predicted.terminated[:, None]
    whole = np.where(over, predicted.returns[:, None], predicted.partial)
    return tuple(
        Horizon.of(steps, real, dreamt)
        for steps, real, dreamt in zip(HORIZONS, earned.partial.T, whole.T, strict=True)
        if not (np.isnan(real).any() or np.isnan(dreamt).any())
    )


def write_horizons(folder: Path, horizons: Sequence[Horizon]) -> None:
    """Write the file of a folder of ``stage=evaluate``."""
    write_json(folder / FILE, {"horizons": [asdict(one) for one in horizons]})


def read_horizons(folder: Path) -> tuple[Horizon, ...]:
    """What `write_horizons` wrote; none where there is no such file.

    Raises:
        ArtifactError: the file is damaged.
    """
    path = folder / FILE
    return tuple(map(Horizon.read, read_record(path).groups("horizons"))) if path.exists() else ()


def in_words(horizons: Sequence[Horizon]) -> str:
    """One line."""
    returns = ", ".join(
        f"{one.predicted:.1f} / {one.earned:.1f} over {one.steps}" for one in horizons
    )
    return f"return in the learned model / in the environment {returns} steps"


def exceeds(horizons: Sequence[Horizon], limits: CalibrationConfig) -> tuple[str, ...]:
    """Why predictions of the controller's returns are not to be trusted: sentences, or none."""
    return tuple(
        f"Over {one.steps} steps the controller's mean return is {one.predicted:.1f} in the learned"
        f" model and {one.earned:.1f} in the environment: a difference of"
        f" {abs(one.difference):.2f}, calibration.return_error={limits.return_error}."
        for one in horizons[-1:]
        if abs(one.difference) > limits.return_error
    )
