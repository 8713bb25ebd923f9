"""Stage ``all``: the chain from nothing to a report."""

from __future__ import annotations

from worldmodels.stages import controller, evaluate, report, rnn, rollouts, scout, vae
from worldmodels.stages.context import Context


def run(context: Context) -> None:
    """The scout if there is one, then each stage in turn; what is done is passed over."""
    if context.scout is not None:
        scout.run(context)
    for stage in (rollouts, vae, rnn, controller, evaluate, report):
        stage.run(context)
