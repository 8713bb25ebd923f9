"""Stage ``sweep``: the best values of some keys, by trials, or by a population that trains side by
side."""

from __future__ import annotations

from worldmodels.config.choices import SweepMethod
from worldmodels.stages import population
from worldmodels.stages.context import Context


def run(context: Context) -> None:
    """Run what is missing of the sweep, by the method that the configuration names."""
    if context.config.sweep.method is SweepMethod.population:
        population.run(context)
        return
    from worldmodels.stages import trials  # needs an optional package, `extras`

    trials.run(context)
