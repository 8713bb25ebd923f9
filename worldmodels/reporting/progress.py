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
from worldmodels.reporting.records import Record, read_record, read_scores
from worldmodels.reporting.rounds import ROUNDS
from worldmodels.reporting.scores import RANDOM
from worldmodels.runs.manifests import MANIFEST
from worldmodels.runs.tracking import read_metrics

STEPS, HOURS = "environment steps of all stages", "hours of all stages"
_BEFORE = ("rollouts", "vae", "rnn")
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
    means = {
        step: value
        for step, name, value, _ in read_metrics(folder / "metrics.csv")
        if name == "selection/mean"
    }
    points = []
    steps, seconds = 0, 0.0
    for record in JsonLines(folder / "generations.jsonl").read():
        steps, seconds = steps + record["steps"], seconds + record["seconds"]
        if (number := record["generation"] + 1) in means:
            points.append(Point(steps, round(seconds, 1), round(means[number], 2)))
    return points


def baseline_curve(folder: Path) -> list[Point]:
    """The points of a baseline, in the order of its segments; arguments as of `search_curve`."""
    points, seconds = [], 0.0
    for record in JsonLines(folder / "segments.jsonl").read():
        seconds += record["seconds"]
        points.append(Point(record["steps"], round(seconds, 1), round(record["score"], 2)))
    return points


def progress_of(folders: Mapping[str, Path]) -> Progress:
    """The progress of a run that is evaluated.

    A controller or baseline of the learned model has one point, its score in the evaluation: the
    scores on its selection seeds are predictions. A round of ``stage=iterate`` has one for each
    round until then.

    Args:
        folders: stage -> folder of the finished stages; ``bootstrap/<stage>`` of a bootstrap run;
            ``rounds``: of a run of rounds, to whose newest one the others belong.

    Raises:
        ArtifactError: a file is damaged.
    """
    if "rounds" in folders:
        return Progress(_rounds(folders["rounds"], folders["evaluate"].parent), False)
    before = [folders[name] for name in folders if name.startswith("bootstrap/")]
    before += [folders[name] for name in _BEFORE if name in folders]
    steps, seconds = sum(map(_steps, before)), sum(map(_seconds, before))
    trained = "controller" if "controller" in folders else "baseline"
    if trained not in folders:
        return Progress([], False)
    folder = folders[trained]
    manifest = read_record(folder / MANIFEST)
    if manifest.group("summary").text("world") == WorldKind.dream.name:
        score = read_scores(folders["evaluate"] / "scores.json")["agent"].mean
        return Progress([Point(steps, seconds + _seconds(folder), score)], False)
    found = search_curve(folder) if trained == "controller" else baseline_curve(folder)
    skip = _frame_skip(manifest)
    points = [Point(steps + skip * p.steps, seconds + p.seconds, p.score) for p in found]
    return Progress(points, trained == "controller")


def _rounds(folder: Path, newest: Path) -> list[Point]:
    """The scores of the rounds until one of them."""
    points, seconds = [], 0.0
    for entry in read_json(folder / ROUNDS)["rounds"]:
        this = folder / entry["name"]
        seconds += sum(_seconds(this / stage) for stage in (*_BEFORE, "controller"))
        skip = _frame_skip(read_record(this / "rollouts" / MANIFEST))
        points.append(Point(skip * entry["frames"]["total"], seconds, entry["earned"]["mean"]))
        if this == newest:
            break
    return points


def _steps(folder: Path) -> int:
    """Environment steps of a stage: recorded ones, or those of a search."""
    manifest = read_record(folder / MANIFEST)
    summary, skip = manifest.group("summary"), _frame_skip(manifest)
    if folder.name == "rollouts":
        return skip * round(summary.number("frames"))
    searched = folder.name == "controller" and summary.text("world") == WorldKind.real.name
    return skip * round(summary.number("steps")) if searched else 0


def _frame_skip(manifest: Record) -> int:
    """Steps of the simulator for a step of an episode, in the environment of a stage."""
    return round(manifest.group("config").optional("env.frame_skip") or 1)


def _seconds(folder: Path) -> float:
    """Wall time of a stage."""
    return read_record(folder / MANIFEST).number("wall_s")


def draw_progress(
    runs: Mapping[str, Progress], env: str, random: float | None
) -> list[Drawn | None]:
    """Charts of the scores of several runs against environment steps, and against hours.

    Args:
        runs: name -> progress.
        env: id of their environment; the paper's curve stands beside searches in its own.
        random: mean return of the random policy.
    """
    curves: dict[str, Sequence[Point]] = {name: run.points for name, run in runs.items()}
    if not any(curves.values()):
        return [None, None]
    paper = PAPER_CURVES.get(env, ()) if any(run.searched for run in runs.values()) else ()
    labels = {name: name for name in curves} | {_PAPER: "mean of CMA-ES, paper"}
    charts = []
    for axis, scale in ((STEPS, None), (HOURS, 3600.0)):

        def across(point: Point, scale: float | None = scale) -> float:
            return float(point.steps) if scale is None else point.seconds / scale

        rows = [(across(p), name, p.score, 0.0) for name, points in curves.items() for p in points]
        rows += [(across(point), _PAPER, point.score, 0.0) for point in paper]
        if random is not None:
            ends = min(row[0] for row in rows), max(row[0] for row in rows)
            rows += [(end, RANDOM, random, 0.0) for end in ends]
            labels |= {RANDOM: RANDOM}
        chart = Chart(labels, axis, "return", log_x=True, reference=_PAPER)
        charts.append(draw(chart, rows))
    return charts
