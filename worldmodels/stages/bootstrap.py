"""Stage ``bootstrap``: a shorter run, whose controller collects the data of the main run.

A random policy never leaves the first bends of a track. A VAE trained on its episodes reconstructs
the frames of a good controller badly: the squared error of a frame was 11 on episodes of the random
policy and 32 on those of an agent with a mean return of 797. So a run may have a bootstrap run: the
same stages with less data, in the folder ``bootstrap`` of the run. The main run takes its episodes,
its controller to collect more, and its VAE to be fine-tuned. Fine-tuning helps the VAE little: in
one run each, a squared error of 12.5, and 12.9 where it was trained from scratch on another agent's
episodes, with 11 of 32 dimensions active.
"""

from __future__ import annotations

from worldmodels.config.schema import bootstrap_config
from worldmodels.errors import ConfigError
from worldmodels.runs.tracking import say
from worldmodels.stages import controller, rnn, rollouts, vae
from worldmodels.stages.context import Context
from worldmodels.stages.sequence import in_order


def run(context: Context) -> None:
    """Run the stages up to the controller with the values of ``bootstrap.*``."""
    bootstrap = context.inputs.bootstrap
    if bootstrap is None:
        raise ConfigError(
            "stage=bootstrap: this configuration has no bootstrap run; choose preset=laptop, which"
            " has one (base=<agent> replaces it)"
        )
    say(f"bootstrap: a shorter run first ({bootstrap.root})")
    shorter = Context(bootstrap_config(context.config), bootstrap)
    in_order(shorter, rollouts, vae, rnn, controller)
