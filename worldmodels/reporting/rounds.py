"""What each round of ``stage=iterate`` cost and reached, for ``rounds.json`` and a line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from worldmodels.config.choices import WorldKind
from worldmodels.config.sections import CalibrationConfig
from worldmodels.files.atomic import read_json
from worldmodels.reporting.closed_loop import exceeds, read_horizons
from worldmodels.reporting.records import read_record, read_scores
from worldmodels.reporting.scores import AGENT_IN_DREAM, Score
from worldmodels.reporting.verdict import exceeded_thresholds, read_calibration
from worldmodels.runs.artifacts import Run
from worldmodels.runs.bases import recorded_base
from worldmodels.runs.manifests import MANIFEST

ROUNDS = "rounds.json"
"""File of a run of rounds."""
STAGES = ("rollouts", "vae", "rnn", "controller", "evaluate")
"""Of every round."""


def round_folders(newest: Path, data: Path) -> dict[str, Path]:
    """The folders of a run of rounds, as `worldmodels.reporting.progress.progress_of` takes them.

    Args:
        newest: folder of the last round that counts.
        data: the folder of all runs, where the base of the first round is.

    Returns:
        ``rounds``: the folder of the run of rounds; and ``<round>/<stage>``: that of each stage of
        the rounds until then. Those of a first round that reuses ``base=`` are in the base.

    Raises:
        ArtifactError: a stage of a round is missing, or a file is damaged.
    """
    folders = {"rounds": newest.parent}
    for entry in read_json(newest.parent / ROUNDS)["rounds"]:
        root = newest.parent / entry["name"]
        this = Run(root, recorded_base(data, root), made_by="iterate")
        folders |= {f"{root.name}/{stage}": this.locate(stage) for stage in STAGES}
        if root == newest:
            break
    return folders


def round_record(
    run: Run, earlier: Sequence[dict[str, Any]], limits: CalibrationConfig
) -> dict[str, Any]:
    """The entry of a round.

    Args:
        run: of the round, with all its stages finished.
        earlier: the entries of the rounds before it.
        limits: thresholds of a calibrated dynamics model.

    Returns:
        ``name``; ``frames`` of the environment: ``recorded`` ones, those of the ``search``
        (training episodes in the environment), and the ``total`` of both in all rounds so far;
        ``recorded_return``, mean of the newest episodes; mean and 95 % ``interval`` of the agent's
        return, ``predicted`` in the dream in which it was trained (None for the environment) and
        ``earned`` in the environment; both over the first steps, ``by_horizon``; ``calibration``
        under recorded actions (None where it was not measured); and ``verdict``: whether the
        dynamics model is calibrated, by the returns over the first steps or, where there are none,
        under recorded actions; the ``reasons`` if not; whether it is calibrated
        ``under_recorded_actions``; and the generation at which ``exploitation`` began, if it did.

    Raises:
        ArtifactError: a file of the round is missing or damaged.
    """
    scores = read_scores(run.locate("evaluate") / "scores.json")
    collected, searched = (
        read_record(run.locate(stage) / MANIFEST).group("summary")
        for stage in ("rollouts", "controller")
    )
    real = searched.text("world") == WorldKind.real.name
    recorded, search = collected.number("frames"), searched.number("steps") if real else 0.0
    before = earlier[-1]["frames"]["total"] if earlier else 0
    found = read_calibration(run.locate("rnn"))
    horizons = read_horizons(run.locate("evaluate"))
    recorded_reasons = exceeded_thresholds(found, limits)
    reasons = exceeds(horizons, limits) if horizons else recorded_reasons
    return {
        "name": run.root.name,
        "frames": {
            "recorded": round(recorded),
            "search": round(search),
            "total": before + round(recorded + search),
        },
        "recorded_return": collected.number("mean_return"),
        "predicted": _mean(scores.get(AGENT_IN_DREAM)),
        "earned": _mean(scores["agent"]),
        "by_horizon": [asdict(one) for one in horizons],
        "calibration": None if found is None else found.record(),
        "verdict": {
            "calibrated": not reasons,
            "reasons": list(reasons),
            "under_recorded_actions": not recorded_reasons,
            "exploitation": searched.optional("exploitation"),
        },
    }


def _mean(score: Score | None) -> dict[str, Any] | None:
    return None if score is None else {"mean": score.mean, "interval": list(score.interval)}


def round_in_words(entry: dict[str, Any]) -> str:
    """One line on an entry of `round_record`."""
    predicted, verdict = entry["predicted"], entry["verdict"]
    in_dream = "" if predicted is None else f"{predicted['mean']:.1f} predicted, "
    calibrated = "calibrated" if verdict["calibrated"] else "not calibrated"
    began = verdict["exploitation"]
    over = "".join(
        f"; over {one['steps']} steps {one['predicted']:.1f} predicted, {one['earned']:.1f} earned"
        for one in entry["by_horizon"][-1:]
    )
    exploited = "" if began is None else f"; exploitation beginning at generation {began:.0f}"
    return (
        f"{entry['name']}: {entry['frames']['total']:,} frames so far; return {in_dream}"
        f"{entry['earned']['mean']:.1f} earned{over}; dynamics model {calibrated}{exploited}"
    )


def settled(entries: Sequence[dict[str, Any]], patience: int | None) -> bool:
    """Whether further rounds are unlikely to help.

    That is: in the last `patience` rounds the dynamics model was calibrated under recorded actions,
    and the newest episodes, which the controller of the round before collected, had no higher mean
    return than those of a round before. No evaluation seed has a part in it: the returns over the
    first steps, which are those of the evaluation, do not count.

    Args:
        entries: of `round_record`, all rounds so far.
        patience: None for never.
    """
    if patience is None or len(entries) <= patience:
        return False
    returns = [entry["recorded_return"] for entry in entries]
    return all(
        entries[at]["verdict"]["under_recorded_actions"] and returns[at] <= max(returns[:at])
        for at in range(len(entries) - patience, len(entries))
    )
