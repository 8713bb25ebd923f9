"""Checks of the keys about exploration: intrinsic rewards of a search, and the noisy television."""

from __future__ import annotations

from worldmodels.config.choices import Objective, Optimizer, Stage, Target, WorldKind
from worldmodels.config.schema import Config
from worldmodels.errors import ConfigError

CHAINS = (Stage.all, Stage.iterate, Stage.plan)
"""Stages that train the dynamics model before the controller."""


def check(config: Config) -> None:
    """Raise `ConfigError` for an intrinsic reward where there is none, and for keys that do not go
    together with it or with the television."""
    if config.env.television is not None and config.rollouts.branches is not None:
        raise ConfigError(
            f"env.television={config.env.television}: its noise cannot be set back to an earlier"
            " moment; choose rollouts.branches=null, or env.television=null"
        )
    controller, key = config.controller, f"controller.objective={config.controller.objective.name}"
    if controller.objective is Objective.reward:
        return
    if controller.world is not WorldKind.dream:
        raise ConfigError(f"{key}: needs controller.world=dream; give that, or reward")
    if controller.optimizer is not Optimizer.cma_es:
        raise ConfigError(f"{key}: needs controller.optimizer=cma_es; give that, or reward")
    for name, value, none in (
        ("exploitation_patience", controller.exploitation_patience, None),
        ("pessimism", controller.pessimism, 0),
    ):
        if value != none:
            instead = "null" if none is None else none
            raise ConfigError(
                f"controller.{name}={value}: needs the task's returns, which {key} does"
                f" not maximise; give {instead}, or controller.objective=reward"
            )
    if config.stage is Stage.baseline:
        raise ConfigError(f"{key}: stage=baseline trains for the task's reward; give reward")
    if config.stage is Stage.sweep and config.sweep.target is Target.controller:
        raise ConfigError(
            f"{key}: sweep.target=controller compares the task's returns; give reward"
        )
    few = config.rnn.members < 2
    if controller.objective is Objective.disagreement and config.stage in CHAINS and few:
        raise ConfigError(
            f"{key}: needs an ensemble; give rnn.members=2 or more, or"
            " controller.objective=distillation"
        )
