"""The report's section on the agreement of the dynamics model with the environment.

Three comparisons: predictions beside held-out episodes of the training data, open-loop predictions
beside episodes of the agent, and the scores of controllers that were trained in the dream at
several temperatures, in the dream and in the environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from worldmodels.config.sections import CalibrationConfig
from worldmodels.errors import ArtifactError
from worldmodels.files.images import png
from worldmodels.reporting.calibration import BEFORE, Calibration, Horizon
from worldmodels.reporting.charts import Chart, draw
from worldmodels.reporting.closed_loop import exceeds, read_horizons
from worldmodels.reporting.media import PNG, data_url
from worldmodels.reporting.open_loop import OpenLoopResult, OpenLoopRollout
from worldmodels.reporting.records import read_record, read_scores
from worldmodels.reporting.scores import AGENT_IN_DREAM, DreamTrained, temperature_rows
from worldmodels.reporting.verdict import exceeded_thresholds, failures_in_words

EARLY_STEPS = 10
"""A predicted termination this many steps before the recorded episode's end counts as early."""
_POINTS = 200
"""Points of a curve at most: a chart does not resolve more."""

OPEN_LOOP_HEADER = (
    "temperature",
    "terminated in the environment",
    "of these, terminated in the prediction",
    "predicted to terminate early",
    "steps until half the error of unrelated frames",
    "predicted / recorded return",
)

HORIZON_HEADER = (
    *("steps", "moments", "mean recorded return", "mean predicted return"),
    "difference / RMS of recorded returns",
)
CLOSED_LOOP_HEADER = (
    *("steps", "episodes", "mean return in the environment", "in the learned model"),
    "difference / RMS of returns in the environment",
)
RELIABILITY_HEADER = ("forecast of a failure", "windows", "of these, with a failure")
_RETURNS = {"earned": "recorded", "predicted": "predicted"}
"""Field of a calibration -> label of its curve."""


class ClosedLoopSection(NamedTuple):
    """What the report shows of a controller's returns in the learned model and in the environment.

    Args:
        verdict: sentences.
        rows: cells below `CLOSED_LOOP_HEADER`, by horizon.
    """

    verdict: list[str]
    rows: list[tuple[str, ...]]


def closed_loop_section(
    folders: Mapping[str, Path], limits: CalibrationConfig
) -> ClosedLoopSection | None:
    """The returns over the first steps, of the stages in `folders`; None where there are none."""
    found = read_horizons(folders["evaluate"]) if "evaluate" in folders else ()
    if not found:
        return None
    reasons = exceeds(found, limits)
    agrees = "does not agree" if reasons else "agrees"
    return ClosedLoopSection(
        [f"The learned model {agrees} with the environment on them.", *reasons],
        [_horizon_row(one) for one in found],
    )


def _horizon_row(one: Horizon) -> tuple[str, ...]:
    returns = f"{one.earned:.1f}", f"{one.predicted:.1f}"
    return str(one.steps), str(one.starts), *returns, f"{one.difference:+.2f}"


class HeldOutSection(NamedTuple):
    """What the report shows of a `Calibration`.

    Args:
        episodes: number of held-out episodes.
        verdict: sentences.
        horizons: cells below `HORIZON_HEADER`, by horizon.
        failures: a sentence on the forecasts; None where there are none.
        reliability: cells below `RELIABILITY_HEADER`, by forecast.
        charts: SVG elements: returns by horizon, and around failures.
    """

    episodes: int
    verdict: list[str]
    horizons: list[tuple[str, ...]]
    failures: str | None
    reliability: list[tuple[str, ...]]
    charts: list[Markup]


def held_out_section(found: Calibration, limits: CalibrationConfig) -> HeldOutSection:
    """The verdict, tables and charts of `found`, with the thresholds `limits`."""
    reasons = exceeded_thresholds(found, limits)
    calibrated = "not calibrated" if reasons else "calibrated"
    lines: dict[str, dict[str, list[tuple[float, float]]]] = {
        "steps of the prediction": {
            label: [(float(one.steps), getattr(one, label)) for one in found.horizons]
            for label in _RETURNS
        }
    }
    if found.around is not None:
        lines["steps after the begin of a failure"] = {
            label: [(at + 1 - BEFORE, sum_) for at, sum_ in enumerate(getattr(found.around, label))]
            for label in _RETURNS
        }
    failures = found.failures
    return HeldOutSection(
        episodes=found.episodes,
        verdict=[f"The dynamics model is {calibrated} on these episodes.", *reasons],
        horizons=[_horizon_row(one) for one in found.horizons],
        failures=None if failures is None else failures_in_words(failures),
        reliability=[
            (f"{one.forecast:.2f}", str(one.windows), f"{one.observed:.2f}")
            for one in (failures.reliability if failures else ())
        ],
        charts=[
            svg
            for x_label, curves in lines.items()
            if (svg := _chart_of_points(x_label, curves)) is not None
        ],
    )


def _chart_of_points(x_label: str, curves: dict[str, list[tuple[float, float]]]) -> Markup | None:
    """A chart of mean returns: points (x, return) by the name of `_RETURNS`."""
    rows = [(x, name, value, 0.0) for name, points in curves.items() for x, value in points]
    return draw(Chart(_RETURNS, x_label, "mean return"), rows)


class OpenLoopSection(NamedTuple):
    """What the report shows of an `OpenLoopResult`.

    Args:
        episodes: number of recorded episodes.
        rows: cells below `OPEN_LOOP_HEADER`, one row for each temperature.
        charts: SVG elements: latent error, fraction terminated and mean return over steps.
        image: data URL of the picture of one episode.
        seed: of that episode.
        times: the step that each column of the picture shows.
        temperatures: of the predicted rows of the picture.
    """

    episodes: int
    rows: list[tuple[str, ...]]
    charts: list[Markup]
    image: str
    seed: int
    times: tuple[int, ...]
    temperatures: tuple[float, ...]


def open_loop_section(result: OpenLoopResult) -> OpenLoopSection:
    """The table, charts and picture of `result`."""
    trajectories = {"recorded": result.recorded}
    errors = {"unrelated frames": np.full(result.lengths.max(), result.reference_error)}
    for rollout in result.rollouts:
        label = f"temperature {rollout.temperature:g}"
        trajectories[label] = rollout.trajectories
        errors[label] = np.nanmean(rollout.latent_error, axis=0)
    curves = {
        "RMS error of latents": errors,
        "fraction of episodes terminated": {
            label: one.fraction_terminated() for label, one in trajectories.items()
        },
        "return so far": {label: one.mean_return() for label, one in trajectories.items()},
    }
    return OpenLoopSection(
        episodes=len(result.lengths),
        rows=[_open_loop_row(result, rollout) for rollout in result.rollouts],
        charts=[_chart_over_steps(y_label, lines) for y_label, lines in curves.items()],
        image=data_url(png(result.image), PNG),
        seed=result.seed,
        times=result.times,
        temperatures=tuple(rollout.temperature for rollout in result.rollouts),
    )


def _chart_over_steps(y_label: str, curves: dict[str, np.ndarray]) -> Markup:
    """A chart of curves (T,), T at least 1, by label."""
    rows = [
        (at + 1, label, float(curve[at]), 0.0)
        for label, curve in curves.items()
        for at in np.unique(np.linspace(0, len(curve) - 1, _POINTS).astype(int)).tolist()
    ]
    svg = draw(Chart({label: label for label in curves}, "step", y_label), rows)
    assert svg is not None, "every curve has a point"
    return svg


def _open_loop_row(result: OpenLoopResult, rollout: OpenLoopRollout) -> tuple[str, ...]:
    episodes = np.arange(len(result.lengths))
    last = (episodes, result.lengths - 1)
    terminated = result.recorded.terminated[last] == 1
    predicted = rollout.trajectories.terminated[last] == 1
    steps_before = np.nansum(rollout.trajectories.terminated == 0, axis=1)
    early = predicted & (steps_before + 1 < result.lengths - EARLY_STEPS)
    mean_error = np.nanmean(rollout.latent_error, axis=0)
    far = mean_error > result.reference_error / 2
    total = np.nansum(result.recorded.rewards)
    ratio = np.nansum(rollout.trajectories.rewards) / total if total else None
    return (
        f"{rollout.temperature:g}",
        f"{terminated.sum()} of {len(terminated)}",
        f"{(predicted & terminated).sum()}",
        f"{early.sum()}",
        str(int(far.argmax()) + 1) if far.any() else "not reached",
        "–" if ratio is None else f"{ratio:.2f}",
    )


def temperature_section(runs: dict[str, Path]) -> list[tuple[str, ...]]:
    """Scores in the dream beside scores in the environment, a row for each run.

    Args:
        runs: name -> folder of a run whose controller was trained in the dream of one and the same
            dynamics model.

    Returns:
        The cells below `scores.TEMPERATURE_HEADER`.

    Raises:
        ArtifactError: a record is damaged, or lacks one of the three scores.
    """
    compared = []
    for name, folder in runs.items():
        path = folder / "evaluate" / "scores.json"
        scores = read_scores(path)
        for policy in (AGENT_IN_DREAM, "agent", "random policy"):
            if policy not in scores:
                raise ArtifactError(
                    f"{path}: the score '{policy}' is missing; run its stage again with"
                    " overwrite=true"
                )
        config = read_record(folder / "controller" / "manifest.json").group("config")
        final = config.optional("controller.final_temperature")
        first = config.number("controller.temperature")
        temperatures = (first,) if final is None else (final, first)
        random = scores["random policy"]
        compared.append(DreamTrained(temperatures, name, scores[AGENT_IN_DREAM], scores["agent"]))
    return temperature_rows(compared, random)
