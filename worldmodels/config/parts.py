"""The configurations that one command uses, for checks before its first stage."""

from __future__ import annotations

from collections.abc import Iterator

from worldmodels.config.choices import Stage
from worldmodels.config.schema import Config, bootstrap_config
from worldmodels.config.space import read_space, with_values


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
