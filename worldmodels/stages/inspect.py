"""Stage ``inspect``: what is in a data set, as a table and a sheet of frames."""

from __future__ import annotations

from rich.table import Table

from worldmodels.data.inspection import describe
from worldmodels.reporting.pictures import contact_sheet, save_picture
from worldmodels.runs.tracking import console, say
from worldmodels.stages.context import Context


def run(context: Context) -> None:
    """Print the table and write ``contact_sheet.png`` beside the data."""
    folder = context.run.locate("rollouts")
    episodes = context.inputs.episodes()
    table = Table(title=str(folder), show_header=False)
    for name, value in describe(episodes):
        table.add_row(name, value)
    console.print(table)
    path = folder / "contact_sheet.png"
    save_picture(path, contact_sheet(episodes))
    say(f"inspect: wrote {path}")
