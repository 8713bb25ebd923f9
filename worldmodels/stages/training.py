"""What stages that train share: options of `fit`, calls of other processes, ends of episodes."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from worldmodels.config.policies import ActorCriticConfig
from worldmodels.config.schema import Config, plain
from worldmodels.config.sections import RNNConfig, VAEConfig
from worldmodels.data.sequences import FailureEnd
from worldmodels.training.fit import FitOptions


def fit_options(
    config: Config,
    section: VAEConfig | RNNConfig | ActorCriticConfig,
    gradient_clip: float | None,
    made_by: str,
) -> FitOptions:
    """The options of `fit`.

    Args:
        config: the whole configuration.
        section: of the model. Of an actor-critic the weights are those of the last update,
            whatever its returns are: one epoch.
        gradient_clip: see `FitOptions`.
        made_by: see `FitOptions`.
    """
    return FitOptions(
        epochs=1 if isinstance(section, ActorCriticConfig) else section.epochs,
        learning_rate=section.learning_rate,
        final_learning_rate=section.final_learning_rate,
        gradient_clip=gradient_clip,
        seed=config.seed,
        checkpoint_seconds=config.trainer.checkpoint_seconds,
        log_every=config.trainer.log_every,
        made_by=made_by,
        accumulate=config.trainer.accumulate,
        compile=config.trainer.compile,
    )


def call(stage: str, config: Config, folder: Path, made_by: str) -> dict[str, Any]:
    """What every process has to know to train with rank 0, as JSON can hold it.

    Args:
        stage: whose module has the function ``join``.
        config: the whole configuration.
        folder: of the checkpoints.
        made_by: see `FitOptions`.
    """
    return {
        "stage": stage,
        "config": plain(asdict(config)),
        "folder": str(folder.resolve()),
        "made_by": made_by,
    }


def failure_end(config: Config) -> FailureEnd | None:
    """Where episodes that stall end for the models; None: a stall is no end."""
    delay, stall_steps = config.rnn.failure_termination, config.rollouts.stall_steps
    return None if delay is None or stall_steps is None else FailureEnd(delay, stall_steps)
