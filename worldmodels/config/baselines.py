"""Checks of the keys of the stage ``baseline``, without Stable-Baselines3, which is optional."""

from __future__ import annotations

from typing import Any

from worldmodels.config.choices import Algorithm, Stage
from worldmodels.config.keys import HUGE, Limit
from worldmodels.config.schema import Config
from worldmodels.errors import ConfigError

STEPS = 10**10
WHOLE = {
    **dict.fromkeys(("n_steps", "batch_size", "n_epochs"), Limit(1, HUGE)),
    **dict.fromkeys(("train_freq", "stats_window_size"), Limit(1, HUGE)),
    **dict.fromkeys(("buffer_size", "target_update_interval"), Limit(1, STEPS)),
    "learning_starts": Limit(0, STEPS),
    "gradient_steps": Limit(-1, HUGE),
}
"""Arguments of the algorithms that are whole numbers, with values that Stable-Baselines3 uses."""
REAL = {
    **dict.fromkeys(("gamma", "gae_lambda", "tau", "exploration_fraction"), Limit(0, 1)),
    **dict.fromkeys(("exploration_initial_eps", "exploration_final_eps"), Limit(0, 1)),
    **dict.fromkeys(("clip_range", "clip_range_vf", "target_kl"), Limit(0, HUGE, above=True)),
    "max_grad_norm": Limit(0, HUGE, above=True),
    **dict.fromkeys(("ent_coef", "vf_coef"), Limit(-HUGE, HUGE)),
}
"""Arguments that are numbers."""
OPTIONAL = ("clip_range_vf", "target_kl")
"""Arguments that may be null."""


def check(config: Config) -> None:
    """Raise `ConfigError` for keys that do not go together, and for arguments with which
    Stable-Baselines3 would end in the middle of its work."""
    baseline, controller = config.baseline, config.controller
    if config.stage is Stage.baseline and controller.final_temperature is not None:
        raise ConfigError(
            f"controller.final_temperature={controller.final_temperature}: a baseline trains at one"
            " temperature; give null"
        )
    if baseline.final_learning_rate is not None and baseline.learning_rate is None:
        raise ConfigError(
            f"baseline.final_learning_rate={baseline.final_learning_rate}: needs"
            " baseline.learning_rate, from which it decays; give both, or null"
        )
    for name, value in baseline.options.items():
        _check_option(baseline.algorithm, str(name), value)


def _check_option(algorithm: Algorithm, name: str, value: Any) -> None:
    """Names that the algorithm does not take are left to `worldmodels.baselines.algorithms`."""
    where = f"baseline.options.{name}={value}"
    if name == "policy_kwargs" and not isinstance(value, dict):
        raise ConfigError(f"{where}: give a mapping, as in {{policy_kwargs: {{net_arch: [64]}}}}")
    if value is None and name in OPTIONAL:
        return
    if name == "ent_coef" and algorithm is Algorithm.sac and isinstance(value, str):
        return  # "auto", "auto_0.1"
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if name in WHOLE and not (number and isinstance(value, int) and value in WHOLE[name]):
        raise ConfigError(f"{where}: choose a whole number, {WHOLE[name]}")
    if name in REAL and not (number and value in REAL[name]):
        null = ", or null" if name in OPTIONAL else ""
        raise ConfigError(f"{where}: choose a number, {REAL[name]}{null}")
