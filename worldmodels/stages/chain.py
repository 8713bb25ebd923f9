"""Stage ``all``: the chain from nothing to a report."""

from __future__ import annotations

from worldmodels.stages import bootstrap, controller, evaluate, report, rnn, rollouts, vae
from worldmodels.stages.context import Context


def run(context: Context) -> None:
    """The bootstrap run if there is one, then each stage in turn; what is done is passed over."""
    if context.bootstrap is not None:
        bootstrap.run(context)
    for stage in (rollouts, vae, rnn, controller, evaluate, report):
        stage.run(context)
