"""Scores in the environment against what a run had cost until then: environment steps and hours,
those of the stages before the search included.

Environment steps are those of the simulator: ``env.frame_skip`` for each step of an episode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from worldmodels.config.choices import WorldKind
from worldmodels.files.atomic import JsonLines, read_json
from worldmodels.reporting.charts import Chart, Drawn, draw
from worldmodels.reporting.learning import PAPER_CURVES, Point
from worldmodels.reporting.records import Record, frame_skip, read_record, read_scores
from worldmodels.reporting.rounds import ROUNDS
from worldmodels.reporting.scores import RANDOM
from worldmodels.runs.manifests import MANIFEST
from worldmodels.runs.tracking import read_metrics

STEPS, HOURS = "environment steps of all stages", "hours of all stages"
_BEFORE = ("rollouts", "vae", "rnn")
_BOOTSTRAP = "bootstrap/"
"""Before the names of stages of a bootstrap run."""
_PAPER = "\npaper"
"""A name that no run has."""


class Progress(NamedTuple):
    """The scores of a run while it was made.

    Args:
        points: in the order of the steps, scores in the environment.
        searched: in the environment by CMA-ES, as the paper did.
    """

    points: list[Point]
    searched: bool


def search_curve(folder: Path) -> list[Point]:
    """The points of a search, in the order of its generations, without what came before it.

    Args:
        folder: of a stage ``controller``.

    Raises:
        ArtifactError: a file is damaged.
    """
    means = _selection(folder)
    points = []
    steps = 0
    for record in JsonLines(folder / "generations.jsonl").read():
        steps += record["steps"]
        if (number := record["generation"] + 1) in means:
            points.append(Point(steps, *means[number]))
    return points


def baseline_curve(folder: Path) -> list[Point]:
    """The points of a baseline, in the order of its segments; arguments as of `search_curve`."""
    means = _selection(folder)
    records = JsonLines(folder / "segments.jsonl").read()
    ends = [record["steps"] for record in records]
    return [Point(steps, *means[steps]) for steps in ends if steps in means]


def _selection(folder: Path) -> dict[int, tuple[float, float]]:
    """Step -> seconds of work until the mean on the selection seeds was known, and the mean."""
    return {
        step: (round(seconds, 1), round(value, 2))
        for step, name, value, seconds in read_metrics(folder / "metrics.csv")
        if name == "selection/mean"
    }


def progress_of(folders: Mapping[str, Path]) -> Progress:
    """The progress of a run that is evaluated.

    A controller or baseline of the learned model has one point, its score in the evaluation: the
    scores on its selection seeds are predictions. A round of ``stage=iterate`` has one for each
    round until then.

    Args:
        folders: stage -> folder of the finished stages; ``bootstrap/<stage>`` of a bootstrap run;
            of a round of ``stage=iterate`` also those of
            `worldmodels.reporting.rounds.round_folders`.

    Raises:
        ArtifactError: a file is damaged.
    """
    if "rounds" in folders:
        return Progress(_rounds(folders), False)
    trained = "controller" if "controller" in folders else "baseline"
    if trained not in folders:
        return Progress([], False)
    folder = folders[trained]
    manifests = {
        name: read_record(folders[name] / MANIFEST)
        for name in folders
        if name.startswith(_BOOTSTRAP) or name in (*_BEFORE, trained)
    }
    searched = False
    if manifests[trained].group("summary").text("world") == WorldKind.dream.name:
        score = read_scores(folders["evaluate"] / "scores.json")["agent"].mean
        found = [Point(0, _seconds(manifests[trained]), score)]
    elif trained == "controller":
        found, searched = search_curve(folder), True
    else:
        found = baseline_curve(folder)
    return Progress(after_all_stages(manifests, found), searched)


def after_all_stages(stages: Mapping[str, Record], found: Sequence[Point]) -> list[Point]:
    """The points of a controller or baseline, with the cost of the stages before it.

    Args:
        stages: stage -> manifest, of all that the run has, named as in `progress_of`.
        found: steps and seconds of the training of the controller or baseline alone.
    """
    before = {name: one for name, one in stages.items() if name.startswith(_BOOTSTRAP)}
    before |= {name: stages[name] for name in _BEFORE if name in stages}
    steps = sum(_steps(name, manifest) for name, manifest in before.items())
    seconds = sum(_seconds(manifest) for manifest in before.values())
    skip = frame_skip(stages["controller" if "controller" in stages else "baseline"])
    return [Point(steps + skip * p.steps, seconds + p.seconds, p.score) for p in found]


def _rounds(folders: Mapping[str, Path]) -> list[Point]:
    """The scores of the rounds until the last one whose folders are given."""
    points, seconds = [], 0.0
    for entry in read_json(folders["rounds"] / ROUNDS)["rounds"]:
        stages = [f"{entry['name']}/{stage}" for stage in (*_BEFORE, "controller")]
        if not folders.keys() >= set(stages):
            break
        manifests = [read_record(folders[stage] / MANIFEST) for stage in stages]
        seconds += sum(map(_seconds, manifests))
        skip = frame_skip(manifests[0])
        points.append(Point(skip * entry["frames"]["total"], seconds, entry["earned"]["mean"]))
    return points


def _steps(name: str, manifest: Record) -> int:
    """Environment steps of a stage: recorded ones, or those of a search."""
    stage = name.removeprefix(_BOOTSTRAP)
    summary, skip = manifest.group("summary"), frame_skip(manifest)
    if stage == "rollouts":
        return skip * round(summary.number("frames"))
    searched = stage == "controller" and summary.text("world") == WorldKind.real.name
    return skip * round(summary.number("steps")) if searched else 0


def _seconds(manifest: Record) -> float:
    """Wall time of a stage."""
    return manifest.number("wall_s")


def draw_progress(
    runs: Mapping[str, Sequence[Progress]], env: str, random: float | None
) -> list[Drawn | None]:
    """Charts of the scores of several runs against environment steps, and against hours.

    Args:
        runs: name -> the progress of each run of that name: several where they differ in the
            seed alone.
        env: id of their environment; the paper's curve stands beside searches in its own.
        random: mean return of the random policy.

    Returns:
        Of each chart None where no run has a point in it, such as the score of a run that was
        trained in the learned model of an agent, whose environment steps are not known.
    """
    curves = [
        (name, str((name, number)), run.points)
        for name, several in runs.items()
        for number, run in enumerate(several)
    ]
    if not any(points for _, _, points in curves):
        return [None, None]
    searched = any(run.searched for several in runs.values() for run in several)
    paper = PAPER_CURVES.get(env, ()) if searched else ()
    labels = {curve: name for name, curve, _ in curves} | {_PAPER: "mean of CMA-ES, paper"}
    charts = []
    for axis, scale in ((STEPS, None), (HOURS, 3600.0)):

        def across(point: Point, scale: float | None = scale) -> float:
            return float(point.steps) if scale is None else point.seconds / scale

        rows = [(across(p), curve, p.score, 0.0) for _, curve, points in curves for p in points]
        # The axis is logarithmic: a run without environment steps has no place there.
        rows = [row for row in rows if row[0] > 0]
        rows += [(across(point), _PAPER, point.score, 0.0) for point in paper]
        if random is not None and rows:
            ends = min(row[0] for row in rows), max(row[0] for row in rows)
            rows += [(end, RANDOM, random, 0.0) for end in ends]
            labels |= {RANDOM: RANDOM}
        chart = Chart(labels, axis, "return", log_x=True, reference=_PAPER)
        charts.append(draw(chart, rows))
    return charts
