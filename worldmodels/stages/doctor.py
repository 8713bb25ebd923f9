"""Stage ``doctor``: what this machine has, and what it lacks for the chosen configuration."""

from __future__ import annotations

from rich import box
from rich.table import Table

from worldmodels.config.schema import Config
from worldmodels.errors import WorldModelsError
from worldmodels.runs.tracking import console, say
from worldmodels.stages.diagnosis import diagnose


def run(config: Config) -> None:
    """Print the table; makes no artifact, and needs no run.

    Raises:
        WorldModelsError: something is missing that a run of the configuration needs.
    """
    rows = diagnose(config)
    # Lines of a frame are in the way in a bug report.
    table = Table(show_header=False, box=box.SIMPLE if console.is_terminal else None)
    for row in rows:
        table.add_row(row.status, row.name, row.value)
    console.print(table, markup=False)
    problems = [row.problem for row in rows if row.problem]
    if len(problems) > 1:
        listed = " ".join(f"({number}) {text}" for number, text in enumerate(problems, start=1))
        raise WorldModelsError(f"{len(problems)} things are missing: {listed}")
    if problems:
        raise WorldModelsError(problems[0])
    say(f"doctor: nothing is missing for env={config.env.name}")
