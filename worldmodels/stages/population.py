"""``stage=sweep`` with ``sweep.method=population``: learning rates by population-based training.

The stages before the one that is trained run once, in the folder of this run. Each member trains
for an interval in a run of its own, ``interval-001/member-001`` and so on, which continues from the
checkpoint of the run that it continues; so nothing is overwritten, and an interval that was killed
is resumed as any stage. ``sweep.json`` has every interval that ended. The runs of an interval are
removed when all members have ended the next one.
"""

from __future__ import annotations

import csv
import shutil
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from rich.table import Table

from worldmodels.config.space import population_rate, with_values
from worldmodels.errors import TrainingError
from worldmodels.files.atomic import atomic_path
from worldmodels.reporting.charts import Chart, MetricRow, draw
from worldmodels.runs.artifacts import Run
from worldmodels.runs.costs import duration
from worldmodels.runs.tracking import console, read_metrics, say
from worldmodels.stages.context import Context
from worldmodels.stages.sequence import in_order
from worldmodels.stages.sweep_file import STAGES, SweepFile, no_such_metric
from worldmodels.tuning.population import Interval, Population, ends, folder_of

_LINES = 16
"""Members in the figure, the best ones at the end."""


def run(context: Context) -> None:
    """Train the members for the intervals that are missing."""
    config, root = context.config, context.run.root
    sweep, (key, rates) = config.sweep, population_rate(config)
    *before, stage = STAGES[sweep.target]
    file = SweepFile(context, "intervals")
    done, epochs = file.read(Interval.read), _ends(context)
    once = replace(context, config=replace(config, overwrite=False))
    in_order(once, *before)
    file.note_inputs(once)
    if done is None:  # an earlier sweep may have left something there
        for folder in root.glob("interval-*"):
            shutil.rmtree(folder)
        file.write([])
    population = Population(rates, sweep.members, len(epochs), config.seed, done or ())
    while (wanted := population.next()) is not None:
        _remove(root, wanted.number - 1)
        end = epochs[wanted.number - 1]
        say(
            f"sweep: interval {wanted.number} of {len(epochs)}, member {wanted.member} of"
            f" {sweep.members}: {key}={wanted.rate:.4g}{_copied(wanted)}"
        )
        population.done.append(_train(once, stage, key, wanted, end, file.metric))
        best = population.best()
        file.write(
            [one.record() for one in population.done],
            best=None if best is None else best.folder,
        )
        say(f"sweep: {_outcome(population, file.metric)}")
    _show(population, key, file.metric, root, epochs)
    _remove(root, len(epochs))  # not if all have failed: the interval before has the last weights


def _ends(context: Context) -> list[int]:
    """The epochs after which the intervals end."""
    sweep = context.config.sweep
    return ends(getattr(context.config, sweep.target.name).epochs, sweep.interval)


def _remove(root: Path, number: int) -> None:
    """Remove the runs of intervals before that `number`, from which no member goes on."""
    for old in range(1, number):
        shutil.rmtree((root / folder_of(old, 1)).parent, ignore_errors=True)


def _train(
    context: Context, stage: ModuleType, key: str, wanted: Interval, end: int, metric: str
) -> Interval:
    """Train a member for an interval.

    Args:
        context: of the sweep.
        stage: that is trained.
        key: of the learning rate.
        wanted: the interval.
        end: epochs at its end, of all intervals together.
        metric: that members are compared by.

    Raises:
        ConfigError: the stage has no such metric.
    """
    section, name = key.partition(".")[0], context.run.name
    values = {key: wanted.rate, f"{section}.final_learning_rate": wanted.rate}
    config = with_values(context.config, values | {f"{section}.epochs": end})
    this = Run(context.run.root / wanted.folder, context.run, f"{name}/{wanted.folder}", "sweep")
    continued = None
    if wanted.parent is not None:
        folder = folder_of(wanted.number - 1, wanted.parent)
        continued = Run(context.run.root / folder, context.run, f"{name}/{folder}", "sweep")
    member = Context(config, this, context.published, continued=continued)
    try:
        in_order(member, stage)
    except TrainingError as error:  # a rate with which it cannot be trained
        say(f"sweep: {error}")
        return wanted
    path = this.locate(section)
    found = [value for _, name, value, _ in read_metrics(path / "metrics.csv") if name == metric]
    if not found:
        raise no_such_metric(metric, path)
    seconds = float(this.manifest(section).get("wall_s", 0.0))
    return replace(wanted, result=found[-1], seconds=seconds)


def _copied(wanted: Interval) -> str:
    if wanted.parent in (None, wanted.member):
        return ""
    return f", from the weights of member {wanted.parent}"


def _outcome(population: Population, metric: str) -> str:
    """The result of the last interval that ended, and the time that the others take at the pace of
    those so far."""
    last, done = population.done[-1], population.done
    text = "failed" if last.result is None else f"{metric} {last.result:.5g}"
    left = population.members * population.intervals - len(done)
    seconds = sum(one.seconds for one in done) / len(done)
    return text + (f"; {duration(seconds * left)} left" if left else "")


def _show(population: Population, key: str, metric: str, root: Path, epochs: list[int]) -> None:
    """Write all intervals to ``sweep.csv`` and the learning rates to ``sweep.svg``, and print the
    schedule of the best member."""
    with atomic_path(root / "sweep.csv") as temporary, temporary.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["interval", "epochs", "member", "parent", key, metric])
        for one in population.done:
            row = [one.number, epochs[one.number - 1], one.member, one.parent]
            writer.writerow([*row, one.rate, one.result])
    best = population.best()
    if best is None:
        raise TrainingError(
            f"{root}: the training of all {population.members} members has failed; give lower"
            " learning rates in sweep.space"
        )
    schedule = population.lineage(best)
    drawing = draw(*_chart(population, schedule, key, epochs))
    assert drawing is not None, "every member has a learning rate"
    with atomic_path(root / "sweep.svg") as temporary:
        temporary.write_text(str(drawing).replace("currentColor", "#222222"))
    table = Table("epochs", "member", key, metric)
    for one in schedule:
        where = str(epochs[one.number - 1]), str(one.member)
        table.add_row(*where, f"{one.rate:.4g}", f"{one.result:.5g}")
    console.print(table)
    say(f"sweep: the best member is {root / best.folder}, trained at these learning rates")
    say(f"sweep: wrote {root / 'sweep.csv'} and {root / 'sweep.svg'}")


def _chart(
    population: Population, schedule: list[Interval], key: str, epochs: list[int]
) -> tuple[Chart, list[MetricRow]]:
    """The rates of the members by epoch, and those of the best one's `schedule`."""
    last = population.ended(population.intervals)
    order = sorted(last, key=lambda one: (one.result is None, one.result or 0.0, one.member))
    shown = [one.member for one in order[:_LINES]]
    lines = {f"member {member}": f"member {member}" for member in shown}
    lines["schedule"] = "weights of the best"
    rows: list[MetricRow] = [
        (epochs[one.number - 1], f"member {one.member}", one.rate, one.seconds)
        for one in population.done
        if one.member in shown
    ]
    rows += [(epochs[one.number - 1], "schedule", one.rate, one.seconds) for one in schedule]
    return Chart(lines, "epoch", key, log=True, reference="schedule"), rows
