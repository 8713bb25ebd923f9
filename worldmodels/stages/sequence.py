"""Several stages, one after another."""

from __future__ import annotations

from types import ModuleType

from worldmodels.runs.costs import duration
from worldmodels.runs.tracking import say
from worldmodels.stages.context import Context


def in_order(context: Context, *stages: ModuleType) -> None:
    """Run stages, each with a line of which one it is and what those before took.

    Args:
        context: of the run.
        stages: modules of stages; those that are finished end at once.
    """
    root, took = context.run.root.name, 0.0
    for number, stage in enumerate(stages, start=1):
        name = stage.__name__.rpartition(".")[2]
        before = f"; those before took {duration(took)}" if took else ""
        say(f"{root}: stage {number} of {len(stages)}, {name}{before}")
        stage.run(context)
        if context.run.has(name):
            took += context.run.manifest(name).get("wall_s", 0.0)
