"""The keys that all rounds of ``stage=iterate`` share: each starts from the weights of the round
before."""

from __future__ import annotations

from worldmodels.config.schema import Config, round_config
from worldmodels.errors import ConfigError

SIZES = {
    "vae": ("encoder", "options", "blocks", "frames", "latent_size"),
    "rnn": (
        *("model", "options", "hidden_size", "layers", "heads"),
        *("mixtures", "shared_mixture", "is_first"),
    ),
    "controller": ("features", "hidden_units", "bias"),
}
"""By section, the keys that determine which weights a network has."""


def check(config: Config) -> None:
    """Raise `ConfigError` where ``iterate.schedule`` gives a round a network of other sizes than
    the round before. A controller for another objective may have them: it starts anew."""
    before = round_config(config, 1)
    for number in (change["round"] for change in config.iterate.schedule):
        now = round_config(config, number)
        for section, keys in SIZES.items():
            if section == "controller" and now.controller.objective != before.controller.objective:
                continue
            for key in keys:
                old, new = (getattr(getattr(each, section), key) for each in (before, now))
                if old != new:
                    raise ConfigError(
                        f"iterate.schedule: {section}.{key} changes in round {number}, whose"
                        " training starts from the weights of the round before; leave it out"
                    )
        before = now
