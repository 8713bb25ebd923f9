"""``stage=sweep`` with ``sweep.method=tpe``: the best values of some keys, by trials of one stage.

The stages before the one that is tried run once, in the folder of this run; each trial is a run of
its own below it, ``trial-001`` and so on, and makes again what depends on the keys. A trial that is
worse than those before it is stopped early. ``sweep.json`` has every trial, is written whenever one
reports, and is where a sweep goes on that was stopped or killed; ``sweep.csv`` and ``sweep.svg``
show them. Values are judged by validation or by the selection seeds, never by evaluation seeds.
"""

from __future__ import annotations

import csv
import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from rich.table import Table

from worldmodels.config import limits
from worldmodels.config.choices import Stage, Target
from worldmodels.config.space import Space, read_space, with_values
from worldmodels.config.usage import written
from worldmodels.errors import ConfigError, TrainingError
from worldmodels.files.atomic import atomic_path
from worldmodels.reporting.sweeps import Tried, draw_trials
from worldmodels.runs.artifacts import Run
from worldmodels.runs.costs import duration
from worldmodels.runs.tracking import console, say
from worldmodels.stages.context import Context
from worldmodels.stages.sequence import in_order
from worldmodels.stages.sweep_file import STAGES, SweepFile, no_such_metric
from worldmodels.tuning.study import FAILED, FINISHED, STOPPED, Rules, StoppedEarly, Study, Trial

_SHOWN = 10
"""Trials in the table that is printed."""


def run(context: Context) -> None:
    """Run the trials that are missing."""
    sweep, root = context.config.sweep, context.run.root
    stages = STAGES[sweep.target]
    kept, space = _Kept(context), read_space(sweep.space)
    study = Study(space, _rules(context), kept.read())
    once = replace(context, config=replace(context.config, overwrite=False))
    in_order(once, *stages[:-1])
    kept.note_inputs(once)
    while study.ended < sweep.trials:
        resumed, trial = study.running is not None, study.begin()
        if not resumed:  # an earlier sweep may have left something there
            shutil.rmtree(root / trial.name, ignore_errors=True)
        kept.begin(study)
        say(f"sweep: trial {trial.number} of {sweep.trials}: {_in_words(trial.values)}")
        _try(once, stages, study, trial, kept)
        say(f"sweep: {_outcome(study, trial)}{_left(study, sweep.trials)}")
    _show(study, space, kept.metric, root)
    if not study.ranked():
        raise TrainingError(
            f"{root}: all {study.ended} trials have failed, the last one with:"
            f" {study.trials[-1].reason}"
        )


class _Kept:
    """The trials in ``sweep.json``, with the time that they took."""

    def __init__(self, context: Context) -> None:
        self._file = SweepFile(context, "trials", without=["trials"])
        self.metric, self._worked = self._file.metric, 0.0

    def read(self) -> list[Trial]:
        """The trials so far; raises `ArtifactError` as `SweepFile.read`."""
        return self._file.read(Trial.read) or []

    def note_inputs(self, context: Context) -> None:
        """As `SweepFile.note_inputs`."""
        self._file.note_inputs(context)

    def begin(self, study: Study) -> None:
        """Write the file with the trial that begins or goes on, whose work is timed from now on."""
        self._worked = time.monotonic()
        self.write(study)

    def write(self, study: Study) -> None:
        """Write the file; the running trial has worked since the last time."""
        now = time.monotonic()
        study.trials[-1].seconds += now - self._worked
        self._worked = now
        best = study.ranked()
        trials = [trial.record() | {"result": study.result(trial)} for trial in study.trials]
        self._file.write(
            trials, best=best[0].name if best else None, importances=study.importances()
        )


def _rules(context: Context) -> Rules:
    sweep = context.config.sweep
    return Rules(
        maximise=sweep.target in (Target.controller, Target.baseline),
        random_trials=sweep.random_trials,
        early_stopping=sweep.early_stopping,
        seed=context.config.seed,
    )


def _try(
    context: Context, stages: tuple[ModuleType, ...], study: Study, trial: Trial, kept: _Kept
) -> None:
    """Run the stages of a trial, and note how it ended.

    Values that go with each other as little as on a command line, or of which no model can be
    built, have failed before the first stage; what a stage refuses later has failed too.

    Raises:
        ConfigError: the stage has no such metric.
    """
    root, target = context.run.root / trial.name, context.config.sweep.target.name

    def watch(step: int, values: Mapping[str, float]) -> None:
        if kept.metric in values:
            stop = study.report(step, values[kept.metric])
            kept.write(study)
            if stop:
                raise StoppedEarly(f"{root}: worse than the trials before")

    this = Run(root, context.run, f"{context.run.name}/{trial.name}", made_by="sweep")
    config = with_values(context.config, trial.values)
    own = Context(config, this, context.published, (), (target, watch))
    try:
        limits.check(replace(config, stage=Stage[target]))
        own.check_models(config)
        in_order(own, *stages)
    except StoppedEarly:
        trial.state = STOPPED
    except (ConfigError, TrainingError) as error:  # values with which it cannot be trained
        trial.state, trial.reason = FAILED, str(error)
    else:
        if not trial.reports:
            raise no_such_metric(kept.metric, root / target)
        trial.state = FINISHED
    kept.write(study)


def _in_words(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={_short(value)}" for key, value in values.items())


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else written(value)


def _outcome(study: Study, trial: Trial) -> str:
    """How a trial ended, and the best one so far."""
    result, best = study.result(trial), study.ranked()
    text = f"trial {trial.number} {trial.state}"
    text += f" ({trial.reason})" if trial.reason else ""
    text += "" if result is None else f" at {result:.5g}"
    if best:
        text += f"; the best is trial {best[0].number} with {study.result(best[0]):.5g}"
    return text


def _left(study: Study, trials: int) -> str:
    """The time that the other trials take at the pace of those so far."""
    seconds = sum(trial.seconds for trial in study.trials) / len(study.trials)
    left = trials - len(study.trials)
    return f"; {duration(seconds * left)} left" if left else ""


def _show(study: Study, space: Space, metric: str, root: Path) -> None:
    """Write all trials to ``sweep.csv`` and ``sweep.svg``, and print the best ones."""
    keys, ranked = list(space), study.ranked()
    with atomic_path(root / "sweep.csv") as temporary, temporary.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["trial", "state", metric, *keys])
        for trial in study.trials:
            row = [trial.number, trial.state, study.result(trial)]
            writer.writerow([*row, *(written(trial.values[key]) for key in keys)])
    tried = [
        Tried(trial.number, study.result(trial) or 0.0, tuple(trial.values[key] for key in keys))
        for trial in ranked
    ]
    drawing = draw_trials(metric, tried, space)
    if drawing is not None:
        with atomic_path(root / "sweep.svg") as temporary:
            temporary.write_text(str(drawing).replace("currentColor", "#222222"))
    table = Table("trial", metric, *keys)
    for trial in ranked[:_SHOWN]:
        shown = [_short(trial.values[key]) for key in keys]
        table.add_row(str(trial.number), f"{study.result(trial):.5g}", *shown)
    console.print(table)
    shares = study.importances()
    if shares:
        order = sorted(shares, key=lambda key: -shares[key])
        say("sweep: importance: " + ", ".join(f"{key} {shares[key]:.2f}" for key in order))
    say(f"sweep: wrote {root / 'sweep.csv'} and {root / 'sweep.svg'}")
