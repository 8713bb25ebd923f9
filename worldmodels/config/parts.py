"""What one command consists of: its configurations, for checks before the first stage, and the
stages of a run as jobs."""

from __future__ import annotations

from collections.abc import Iterator

from worldmodels.config import shipped
from worldmodels.config.choices import Stage
from worldmodels.config.hubs import is_hub
from worldmodels.config.schema import Config, bootstrap_config
from worldmodels.config.space import read_space, with_values

_CHAIN = (
    *(Stage.rollouts, Stage.vae, Stage.rnn),
    *(Stage.controller, Stage.evaluate, Stage.report),
)


def parts(config: Config) -> Iterator[Config]:
    """What the stages of one command run with: its own configuration, that of its bootstrap run,
    and for a sweep those at the ends of its space."""
    yield config
    if config.bootstrap and config.stage in (
        Stage.bootstrap,
        Stage.all,
        Stage.iterate,
        Stage.plan,
    ):
        yield bootstrap_config(config)
    if config.stage is Stage.sweep:
        for key, values in read_space(config.sweep.space).items():
            yield from (with_values(config, {key: value}) for value in values.ends)


def jobs(config: Config) -> list[Stage]:
    """The stages of a run as jobs of a cluster, in their order.

    A schedule is one job, of all rounds. A trained agent (``base=``) replaces the bootstrap run.
    """
    if config.iterate.schedule:
        return [Stage.iterate]
    agent = config.base is not None and (
        is_hub(config.base) or shipped.find_agent(config.base) is not None
    )
    first = [Stage.bootstrap] if config.bootstrap and not agent else []
    return [*first, *_CHAIN]
