"""Metrics to CSV, TensorBoard and W&B, and progress bars.

The CSV is tidy, one value a line: ``step,name,value,seconds,made_by``, the last being the hash of
the configuration and inputs that the stage's manifest has too. `rewind` drops what a killed process
logged after its last checkpoint, so that a resumed run's curves have no echoes.
"""

from __future__ import annotations

import csv
import errno
import io
import os
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

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

from worldmodels.errors import ArtifactError, ConfigError, install
from worldmodels.files import atomic_path, writing
from worldmodels.integrity import require_made_by
from worldmodels.streams import OUTPUT
from worldmodels.untrusted import MEGABYTE, printable, read_bytes


class _Console(Console):
    """A console whose errors say that they are of standard output."""

    def print(self, *objects: Any, **options: Any) -> None:
        try:
            super().print(*objects, **options)
            self.file.flush()
        except OSError as error:
            raise OSError(error.errno, error.strerror, OUTPUT) from error

    def on_broken_pipe(self) -> None:
        """What Rich calls then, and what would end the process without a word."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


console = _Console(highlight=False)
if not console.is_terminal:
    console.width = 120  # a log file has no width of its own, and 80 columns break tables
COLUMNS = ("step", "name", "value", "seconds", "made_by")
METRICS_BYTES = 256 * MEGABYTE
Row = tuple[int, str, float, float]
"""Of a metrics file: step, name, value, seconds of work up to then."""


class Sink(Protocol):
    """Somewhere that metrics go to."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record values at a step."""
        ...

    def close(self) -> None:
        """Flush and end."""
        ...


class Tracker:
    """The metrics of one stage: ``metrics.csv`` in its folder, and optionally another logger.

    Args:
        path: of the CSV file.
        sink: the other logger; the tracker closes it.
        made_by: hash of configuration and inputs, in every row; a file with another is refused.
    """

    def __init__(self, path: Path, sink: Sink | None = None, made_by: str = "") -> None:
        self.path = path
        self._sink = sink
        self._made_by = made_by
        self._pending: list[Row] = []
        self._offset = 0.0
        self._started = time.monotonic()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record metrics in memory until `flush`; the sink gets them at once.

        Args:
            step: training step, or generation of a search, from 1.
            values: metric -> value; names have the form ``train/loss``.
        """
        seconds = round(self._offset + time.monotonic() - self._started, 3)
        self._pending += [(step, name, value, seconds) for name, value in values.items()]
        if self._sink is not None:
            self._sink.log(step, values)

    def flush(self) -> None:
        """Append the recorded metrics to the file.

        Call it before a checkpoint is written: `rewind` removes rows after the checkpoint, and
        cannot restore missing ones.

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
        self._pending = []
        self._offset = max((row[3] for row in rows), default=0.0)
        self._started = time.monotonic()
        if not self.path.exists():
            return
        with atomic_path(self.path) as temporary, temporary.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            writer.writerows((*row, self._made_by) for row in rows)

    def close(self) -> None:
        """Flush, and close the sink."""
        self.flush()
        if self._sink is not None:
            self._sink.close()

    def __enter__(self) -> Tracker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def read_metrics(path: Path) -> list[Row]:
    """Rows (step, name, value, seconds) of a metrics file; a torn last line is left out.

    Raises:
        ArtifactError: it is no file of metrics, or no regular file.
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
            if abs(step) <= 2**53:
                rows.append((step, row["name"], value, seconds))
    except csv.Error as error:
        raise ArtifactError(
            f"{path}: is no file of metrics ({error}); run its stage again with overwrite=true"
        ) from None
    return rows


def _made_by(path: Path) -> set[str | None]:
    """What the whole rows of a metrics file say that they were made by."""
    if not path.exists():
        return set()
    with path.open(newline="") as file:
        lines = [line for line in file if line.endswith("\n")]
    return {row.get("made_by") for row in csv.DictReader(lines)}


class _TensorBoard:
    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ConfigError(
                f"logger=tensorboard: TensorBoard is not installed; {install('tensorboard')}"
            ) from None
        self._writer: Any = SummaryWriter(str(folder))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class _WandB:
    def __init__(self, folder: Path, project: str, mode: Any, name: str, config: Any) -> None:
        import wandb

        folder.mkdir(parents=True, exist_ok=True)
        self._run: Any = wandb.init(
            project=project,
            name=name,
            dir=str(folder),
            mode=mode,
            config=config,
            settings=wandb.Settings(silent=True),
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


def open_sink(
    logger: str, folder: Path, project: str, mode: str, name: str, config: Any
) -> Sink | None:
    """The sink that ``logger=`` names, or None for CSV alone."""
    if logger == "tensorboard":
        return _TensorBoard(folder)
    if logger == "wandb":
        return _WandB(folder, project, mode, name, config)
    return None


class _Rate(ProgressColumn):
    def render(self, task: BarTask) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.1f}/s")


TELL_SECONDS = 60.0
"""Between the lines that tell of progress where there is no terminal: a job's log."""


class Progress:
    """A bar with count, rate and time left; where there is no terminal, a line now and then.

    Args:
        what: is going on.
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
        self._told = time.monotonic()

    def advance(self, count: float = 1, note: str | None = None) -> None:
        """Move the bar; `note` replaces the text at its end."""
        fields = {} if note is None else {"note": note}
        self._bars.update(self._task, advance=count, **fields)  # type: ignore[arg-type]
        now = time.monotonic()
        if not console.is_terminal and now - self._told >= TELL_SECONDS:
            self._told = now
            self._tell(self._bars.tasks[0])

    def _tell(self, task: BarTask) -> None:
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bars.stop()


def say(message: str) -> None:
    """Print one line above any bar; control characters, which a file may hold, as escapes."""
    console.print(printable(message), markup=False, soft_wrap=True)
