"""Checks of the keys about collection: its noise, branches and mirrored episodes."""

from __future__ import annotations

from worldmodels.config.choices import ActionSource, Stage
from worldmodels.config.schema import Config
from worldmodels.config.sections import RolloutsConfig
from worldmodels.errors import ConfigError


def check(config: Config) -> None:
    """Raise `ConfigError` for keys of collection that do not go together."""
    _check_branches(config)
    _check_noise(config.rollouts)
    _check_mirrored(config)


def _check_branches(config: Config) -> None:
    """Branches whose controller would act as that of their parent does."""
    iterating = config.stage is Stage.iterate
    key, noise = "rollouts.noise", config.rollouts.noise
    if iterating:
        key, noise = "iterate.noise", config.iterate.noise
    controlled = iterating or config.rollouts.policy is ActionSource.controller
    if config.rollouts.branches is not None and controlled and noise == 0:
        raise ConfigError(
            f"rollouts.branches={config.rollouts.branches}: without noise, branches repeat the"
            f" actions of their parent; choose {key} above 0"
        )


def _check_mirrored(config: Config) -> None:
    """Mirrored episodes of an environment without a mirror image, or with branches."""
    share, actions = config.rollouts.mirrored_share, config.env.mirrored_actions
    if share and actions is None:
        raise ConfigError(
            f"rollouts.mirrored_share={share}: it is not known which actions change sign in the"
            " mirror image; give env.mirrored_actions, or rollouts.mirrored_share=0"
        )
    if share and config.rollouts.branches is not None:
        raise ConfigError(
            f"rollouts.mirrored_share={share}: mirrored environments cannot be set back to an"
            " earlier state; choose rollouts.branches=null, or rollouts.mirrored_share=0"
        )


def _check_noise(rollouts: RolloutsConfig) -> None:
    """A policy of noise alone that has none."""
    if rollouts.policy is ActionSource.action_noise and rollouts.action_noise == 0:
        raise ConfigError(
            "rollouts.policy=action_noise: its actions would be constant; give"
            " rollouts.action_noise above 0"
        )
