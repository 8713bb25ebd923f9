"""The calibration of a dynamics model in words, and the thresholds that it exceeds."""

from __future__ import annotations

from pathlib import Path

from worldmodels.config.sections import CalibrationConfig
from worldmodels.reporting.calibration import WINDOW, Around, Calibration, Horizon
from worldmodels.reporting.failures import Failures, Reliability
from worldmodels.reporting.records import Record, read_record

CALIBRATION = "calibration.json"
"""Beside the dynamics model. There is none where no episode of the newest data was held out, and
where an older version trained the model."""


def read_calibration(folder: Path) -> Calibration | None:
    """The calibration of the dynamics model in the folder of its stage, or None.

    Raises:
        ArtifactError: the file is damaged.
    """
    path = folder / CALIBRATION
    if not path.exists():
        return None
    record = read_record(path)
    return Calibration(
        episodes=record.count("episodes"),
        horizons=tuple(map(Horizon.read, record.groups("horizons"))),
        failures=_failures(record.group("failures")) if record.fields.get("failures") else None,
        around=_around(record.group("around")) if record.fields.get("around") else None,
    )


def _failures(record: Record) -> Failures:
    reliability = tuple(
        Reliability(one.number("forecast"), one.count("windows"), one.number("observed"))
        for one in record.groups("reliability")
    )
    return Failures(
        windows=record.count("windows"),
        recorded=record.count("recorded"),
        predicted=record.count("predicted"),
        recall=record.optional("recall"),
        precision=record.optional("precision"),
        brier=record.number("brier"),
        reliability=reliability,
    )


def _around(record: Record) -> Around:
    curves = (record.list_of_numbers(key) for key in ("earned", "predicted"))
    return Around(record.count("failures"), *curves)


def in_words(found: Calibration) -> str:
    """One line: returns by horizon, and the scores of the forecasts of failures."""
    returns = ", ".join(f"{h.predicted:.1f} / {h.earned:.1f} in {h.steps}" for h in found.horizons)
    parts = [f"return predicted / recorded {returns} steps"] if found.horizons else []
    if found.failures is not None:
        parts.append(failures_in_words(found.failures))
    return f"{found.episodes} held-out episodes: {'; '.join(parts)}"


def failures_in_words(failures: Failures) -> str:
    """The scores of forecasts of failures, without a full stop."""
    return (
        f"{failures.recorded} of {failures.windows} windows of {WINDOW} steps with a failure:"
        f" recall {_share(failures.recall)}, precision {_share(failures.precision)}, Brier score"
        f" {failures.brier:.3f}"
    )


def _share(value: float | None) -> str:
    """A share in two decimals; a dash where there is nothing that it is a share of."""
    return "–" if value is None else f"{value:.2f}"


def exceeded_thresholds(found: Calibration | None, limits: CalibrationConfig) -> tuple[str, ...]:
    """Why a dynamics model is not calibrated: sentences, none where it is.

    Args:
        found: its calibration; None where it was not measured.
        limits: thresholds.
    """
    if found is None:
        return ("The calibration was not measured: no episode of the newest data was held out.",)
    reasons = []
    if found.horizons and abs(found.horizons[-1].difference) > limits.return_error:
        last = found.horizons[-1]
        reasons.append(
            f"Over {last.steps} steps the mean predicted return is {last.predicted:.1f} and the"
            f" recorded one {last.earned:.1f}: a difference of {abs(last.difference):.2f},"
            f" calibration.return_error={limits.return_error}."
        )
    failures = found.failures
    if failures is None:
        return tuple(reasons)
    for name, value, least in (
        ("recall", failures.recall, limits.recall),
        ("precision", failures.precision, limits.precision),
    ):
        if value is not None and value < least:
            reasons.append(
                f"The {name} of failures is {value:.2f} ({failures.recorded} recorded,"
                f" {failures.predicted} predicted), calibration.{name}={least}."
            )
    return tuple(reasons)


def exploitation_begins(controller: Record) -> str | None:
    """A sentence where a search in the dream exploited the dynamics model, else None.

    Args:
        controller: the manifest of the stage.

    Raises:
        ArtifactError: a field is of a wrong type.
    """
    summary = controller.group("summary")
    generation, best = summary.optional("exploitation"), summary.optional("recorded_best")
    if generation is None or best is None:
        return None
    agent = summary.number("selection_mean")
    return (
        f"The search exploits the dynamics model from generation {generation:,.0f} on: there its"
        f" mean return in the dream exceeds the largest recorded return, {best:.1f}. The agent's,"
        f" {agent:.1f}, {'exceeds it too' if agent > best else 'does not'}."
    )
