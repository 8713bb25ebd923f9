"""Stage ``all``: the chain from nothing to a report."""

from __future__ import annotations

from worldmodels.stages import controller, evaluate, report, rnn, rollouts, vae
from worldmodels.stages.context import Context


def run(context: Context) -> None:
    """Each stage in turn; those that are done are passed over."""
    for stage in (rollouts, vae, rnn, controller, evaluate, report):
        stage.run(context)
