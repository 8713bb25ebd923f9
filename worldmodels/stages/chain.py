"""Stage ``all``: every stage from data collection to the report."""

from __future__ import annotations

from worldmodels.stages import bootstrap, controller, evaluate, report, rnn, rollouts, vae
from worldmodels.stages.context import Context
from worldmodels.stages.sequence import in_order


def run(context: Context) -> None:
    """Run the bootstrap run if there is one, then each stage; finished stages are skipped."""
    if context.inputs.bootstrap is not None:
        bootstrap.run(context)
    in_order(context, rollouts, vae, rnn, controller, evaluate, report)
