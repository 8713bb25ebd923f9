"""Stage ``bootstrap``: a shorter run, whose agent then drives where random actions never get.

Random driving shows the first bends, slowly. A V that has seen no more misreads what a good driver
sees: the squared error of a frame was 11 on random driving, 32 on that of an agent of 797 points.
So a run may have a bootstrap run: the same stages on less, in the folder ``bootstrap`` of the run.
It gives its episodes, its driver, and its V to go on from. That helps V little: in one run each, a
squared error of 12.5, and 12.9 where it began anew on another driver's episodes, with 11 of 32
dimensions active.
"""

from __future__ import annotations

from worldmodels.config import bootstrap_config
from worldmodels.errors import ConfigError
from worldmodels.stages import controller, rnn, rollouts, vae
from worldmodels.stages.context import Context
from worldmodels.tracking import say


def run(context: Context) -> None:
    """Collect, see, predict and drive, as far as the configuration's ``bootstrap`` says."""
    bootstrap = context.inputs.bootstrap
    if bootstrap is None:
        raise ConfigError(
            "no bootstrap run: preset=laptop has one, unless base= is the folder of an agent, which drives"
        )
    say(f"bootstrap: a shorter run first ({bootstrap.root})")
    shorter = Context(bootstrap_config(context.config), bootstrap)
    for stage in (rollouts, vae, rnn, controller):
        stage.run(shorter)
