"""Several runs side by side: their scores, and what each had cost when it reached which score."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from worldmodels.errors import ArtifactError
from worldmodels.reporting.dots import draw_dots
from worldmodels.reporting.figures import Figures, Shown
from worldmodels.reporting.progress import draw_progress, progress_of
from worldmodels.reporting.records import read_record, read_scores
from worldmodels.reporting.scores import PAPER_SCORES, RANDOM, SCORE_HEADER, Score, score_rows

COMPARISON_HEADER = ("run", *SCORE_HEADER[1:], "engine")


class Comparison(NamedTuple):
    """What the report shows of several runs.

    Args:
        names: of the runs.
        rows: cells below `COMPARISON_HEADER`.
        charts: the returns of every episode, and the scores against steps and against hours.
    """

    names: list[str]
    rows: list[tuple[str, ...]]
    charts: list[Shown]


def compare_runs(runs: Mapping[str, Mapping[str, Path]], figures: Figures) -> Comparison:
    """Compare the agents of several runs, which were evaluated in one environment.

    Args:
        runs: name -> stage -> folder of the finished stages, as `progress_of` takes it, with the
            stage ``evaluate`` of each.
        figures: receives the charts.

    Raises:
        ArtifactError: a file is damaged.
    """
    scores, engines, random = [], [], []
    for name, folders in runs.items():
        config = read_record(folders["evaluate"] / "manifest.json").group("config")
        engines.append(config.text("env.engine"))
        scores.append(_agent_score(folders["evaluate"] / "scores.json", name))
        random += [read_scores(folders["evaluate"] / "scores.json").get(RANDOM)]
    env = config.text("env.id")
    papers = PAPER_SCORES.get(env, [])
    cells = score_rows(scores, papers)
    engines += ["–"] * len(papers)
    charts = [
        draw_dots("run", scores, papers[0] if papers else None),
        *draw_progress(
            {name: [progress_of(folders)] for name, folders in runs.items()},
            env,
            None if random[0] is None else random[0].mean,
        ),
    ]
    return Comparison(
        list(runs),
        [(*row, engine) for row, engine in zip(cells, engines, strict=True)],
        figures.take("comparison", charts),
    )


def _agent_score(path: Path, run: str) -> Score:
    """The score of a run's agent, under the name of the run."""
    scores = read_scores(path)
    if "agent" not in scores:
        raise ArtifactError(
            f"{path}: the score 'agent' is missing; run its stage again with overwrite=true"
        )
    return replace(scores["agent"], name=run)
