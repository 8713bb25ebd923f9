"""The metrics of a stage in ``metrics.csv``, and progress bars.

The CSV is tidy, one value a line: ``step,name,value,seconds,made_by``, the last being the hash of
the configuration and inputs that the stage's manifest has too. `rewind` drops what a killed process
logged after its last checkpoint, so that the curves of a resumed run have no duplicate points.
"""

from __future__ import annotations

import csv
import errno
import io
import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars
from rich.progress import Task as BarTask
from rich.text import Text

from worldmodels.errors import ArtifactError
from worldmodels.extensions import reason
from worldmodels.files.atomic import atomic_path, writing
from worldmodels.files.untrusted import LARGEST_NUMBER, MEGABYTE, printable, read_bytes
from worldmodels.runs.health import Health, Range
from worldmodels.runs.integrity import require_made_by
from worldmodels.system.resources import Gauge
from worldmodels.system.streams import OUTPUT
from worldmodels.trackers import ENV_STEPS, HOURS, PictureTracker, Tracker


class _Console(Console):
    """A console whose errors name standard output as their file."""

    def print(self, *objects: Any, **options: Any) -> None:
        try:
            super().print(*objects, **options)
            self.file.flush()
        except OSError as error:
            raise OSError(error.errno, error.strerror, OUTPUT) from error

    def on_broken_pipe(self) -> None:
        """Called by Rich, whose own version would end the process without a message."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


console = _Console(highlight=False)
if not console.is_terminal:
    console.width = 120  # a log file has no width of its own, and 80 columns break tables
COLUMNS = ("step", "name", "value", "seconds", "made_by")
METRICS_BYTES = 256 * MEGABYTE
Row = tuple[int, str, float, float]
"""Of a metrics file: step, name, value, seconds of work up to then."""
Draw = Callable[..., Mapping[str, np.ndarray]]
"""Makes the pictures and videos of a state of training, by name; see `PictureTracker`."""
Watch = Callable[[int, Mapping[str, float]], None]
"""Takes the metrics of a step."""
GAUGE_SECONDS = 10.0
"""Least time between two readings of memory and device use for a tracker."""


class MetricsLog:
    """The metrics of one stage: ``metrics.csv`` in its folder, and a tracker by choice.

    A tracker that raises an exception is not called again: training does not depend on it.

    Args:
        path: of the CSV file.
        tracker: receives the metrics too.
        made_by: hash of the configuration and inputs of the stage, a column of the file.
        draw: makes what `show` gives to a tracker that takes pictures; None: nothing.
        ranges: of figures; the first value outside is pointed out.
        watch: is called with each step and its metrics, last; an exception of it ends the stage.

    `env_steps` is set by a search: steps of the simulator so far, in the learned model steps of
    episodes, as in the report; the tracker receives them too.
    """

    def __init__(
        self,
        path: Path,
        tracker: Tracker | None = None,
        made_by: str = "",
        draw: Draw | None = None,
        ranges: Iterable[Range] = (),
        watch: Watch | None = None,
    ) -> None:
        self.path, self._watch = path, watch
        self._tracker, self._draw = tracker, draw
        self._gauge = None if tracker is None else Gauge(GAUGE_SECONDS)
        self._made_by, self._health = made_by, Health(ranges)
        self.env_steps: int | None = None
        self._given = -1
        self._pending: list[Row] = []
        self._kept: set[tuple[int, str]] = set()
        self._offset = 0.0
        self._started = time.monotonic()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record metrics in memory until `flush`; the tracker gets them at once, and with them the
        hours of work and, at intervals, memory and device use.

        Args:
            step: optimiser step of a training, or generation of a search, from 1.
            values: metric -> value; names have the form ``train/loss``.
        """
        seconds = round(self._offset + time.monotonic() - self._started, 3)
        self._pending += [
            (step, name, value, seconds)
            for name, value in values.items()
            if (step, name) not in self._kept
        ]
        for line in self._health.judge(step, values):
            say(f"{self.path.parent.name}: {line}")
        if self._gauge is not None:
            more: dict[str, float] = {}
            if step != self._given:  # not again with more metrics of the same step
                more = {HOURS: seconds / 3600, **self._gauge.read()}
                more |= {} if self.env_steps is None else {ENV_STEPS: self.env_steps}
            self._given = step
            self._forward(lambda tracker: tracker.log(step, {**values, **more}))
        if self._watch is not None:
            self._watch(step, values)

    def show(self, step: int, *state: Any) -> None:
        """Give the tracker the pictures of the present state, if it takes any.

        Call it after the step is saved: then no picture is given twice when a stage is resumed.

        Args:
            step: as in `log`.
            state: arguments of `draw`.
        """
        tracker = self._tracker
        if self._draw is None or not isinstance(tracker, PictureTracker):
            return
        try:
            pictures = self._draw(*state)
        except Exception as error:  # such as too little memory: the training has enough without
            self._draw = None
            logging.getLogger(__name__).warning(
                "logger.name: pictures cannot be made (%s); the tracker gets no more of them",
                reason(error),
            )
            return

        def give(_: Tracker) -> None:
            for name, frames in pictures.items():
                tracker.show(step, name, frames)

        self._forward(give)

    def flush(self) -> None:
        """Append the recorded metrics to the file.

        Call it before a checkpoint is written: `rewind` removes rows after the checkpoint, and
        cannot restore missing ones. Rows of the checkpoint's own step that a stage logs again,
        because it was stopped before it had saved what they say, are not written twice.

        Raises:
            ArtifactError: the disk is full or not writable.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = not self.path.exists()
        with writing(self.path), self.path.open("a", newline="") as file:
            writer = csv.writer(file)
            if fresh:
                writer.writerow(COLUMNS)
            writer.writerows((*row, self._made_by) for row in self._pending)
        self._pending = []

    def rewind(self, step: int) -> None:
        """Remove the rows after `step`, from which a stage resumes.

        Args:
            step: of the checkpoint.

        Raises:
            ArtifactError: the file is damaged, or has another `made_by`.
        """
        require_made_by(self.path, _made_by(self.path), self._made_by)
        rows = [row for row in read_metrics(self.path) if row[0] <= step]
        self._health.replay(rows)
        self._pending, self._kept = [], {row[:2] for row in rows if row[0] == step}
        self._offset = max((row[3] for row in rows), default=0.0)
        self._started = time.monotonic()
        if not self.path.exists():
            return
        with atomic_path(self.path) as temporary, temporary.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            writer.writerows((*row, self._made_by) for row in rows)

    def close(self) -> None:
        """Write what is pending and end the tracker."""
        try:
            self.flush()
        finally:
            self._forward(lambda tracker: tracker.close())

    def _forward(self, call: Callable[[Tracker], None]) -> None:
        if self._tracker is None:
            return
        try:
            call(self._tracker)
        except Exception as error:  # of other packages: a server that is gone, a full disk
            self._tracker = self._gauge = None
            logging.getLogger(__name__).warning(
                "logger.name: the tracker failed (%s); metrics are written to %s only",
                reason(error),
                self.path,
            )

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def read_metrics(path: Path) -> list[Row]:
    """Rows (step, name, value, seconds) of a metrics file.

    A torn last line is left out, and so are numbers of which no chart can be drawn.

    Raises:
        ArtifactError: it is not a file of metrics, or not a regular file.
    """
    if not os.path.lexists(path):
        return []
    text = read_bytes(path, METRICS_BYTES).decode(errors="replace")
    rows = []
    try:
        reader = csv.DictReader(io.StringIO(text, newline=""))
        # Without an end, the first line is torn itself, and there are no others.
        if "\n" in text and not set(COLUMNS) <= set(reader.fieldnames or ()):
            raise ArtifactError(
                f"{path}: its columns lack some of {', '.join(COLUMNS)}; run its stage again with"
                " overwrite=true"
            )
        for row in reader:
            try:
                step, value, seconds = int(row["step"]), float(row["value"]), float(row["seconds"])
            except (TypeError, ValueError):
                continue
            if abs(step) <= 2**53 and (abs(value) <= LARGEST_NUMBER or not math.isfinite(value)):
                rows.append((step, row["name"], value, seconds))
    except csv.Error as error:
        raise _no_metrics(path, error) from None
    return rows


def _made_by(path: Path) -> set[str | None]:
    """The column ``made_by`` of the complete rows of a metrics file."""
    if not path.exists():
        return set()
    text = read_bytes(path, METRICS_BYTES).decode(errors="replace")
    lines = [line for line in io.StringIO(text, newline="") if line.endswith("\n")]
    try:
        return {row.get("made_by") for row in csv.DictReader(lines)}
    except csv.Error as error:
        raise _no_metrics(path, error) from None


def _no_metrics(path: Path, error: csv.Error) -> ArtifactError:
    return ArtifactError(
        f"{path}: is not a file of metrics ({error}); run its stage again with overwrite=true"
    )


class _Rate(ProgressColumn):
    def render(self, task: BarTask) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.1f}/s")


LINE_SECONDS = 60.0
"""Between two lines of progress where there is no terminal, as in the log of a job."""


class Progress:
    """A bar with count, rate and time left; where there is no terminal, a line now and then.

    Args:
        what: the work, in words.
        total: of `unit`, at the end.
        unit: what is counted.
        start: how many are done already.
    """

    def __init__(self, what: str, total: float, unit: str, start: int = 0) -> None:
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[unit]}"),
            _Rate(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
            speed_estimate_period=600,  # generations may take minutes each
        )
        self._task = self._bars.add_task(what, total=total, completed=start, unit=unit, note="")
        self._printed = time.monotonic()

    def advance(self, count: float = 1, note: str | None = None) -> None:
        """Move the bar; `note` replaces the text at its end."""
        fields = {} if note is None else {"note": note}
        self._bars.update(self._task, advance=count, **fields)  # type: ignore[arg-type]
        now = time.monotonic()
        if not console.is_terminal and now - self._printed >= LINE_SECONDS:
            self._printed = now
            self._print_line(self._bars.tasks[0])

    def _print_line(self, task: BarTask) -> None:
        count = f"{task.completed:,.0f} of {task.total:,.0f} {task.fields['unit']}"
        parts = [f"{task.description}: {count}"]
        if task.speed:
            parts.append(f"{task.speed:,.1f}/s")
        if task.time_remaining is not None:
            parts.append(f"{timedelta(seconds=task.time_remaining)} left")
        if task.fields["note"]:
            parts.append(task.fields["note"])
        say(", ".join(parts))

    def __enter__(self) -> Progress:
        self._bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bars.stop()


def say(message: str) -> None:
    """Print one line above any bar; control characters, which a file may hold, as escapes."""
    console.print(printable(message), markup=False, soft_wrap=True)
