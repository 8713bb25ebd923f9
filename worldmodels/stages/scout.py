"""Stage ``scout``: a shorter run, whose agent then drives where random actions never get.

Random driving shows the first bends, slowly. V and M that have seen no more misread what a good
driver sees (`docs/results.md` has the figures), so a run may have a scout: the same stages on less,
in the folder ``scout`` of the run. It gives its episodes and its driver; nothing else goes over.
"""

from __future__ import annotations

from worldmodels.config import changed
from worldmodels.errors import ConfigError
from worldmodels.stages import controller, rnn, rollouts, vae
from worldmodels.stages.context import Context


def run(context: Context) -> None:
    """Collect, see, predict and drive, as far as the configuration's ``scout`` says."""
    scout = context.scout
    if scout is None:
        raise ConfigError("scout={}: this configuration has no scout; preset=laptop has one")
    config = changed(context.config, context.config.scout)
    config.scout = {}
    shorter = Context(config, scout)
    for stage in (rollouts, vae, rnn, controller):
        stage.run(shorter)
