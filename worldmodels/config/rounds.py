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
    for change in config.iterate.schedule:
        number = change["round"]
        named = [
            (section, key)
            for section, keys in SIZES.items()
            for key in keys
            if key in change.get(section, {})
        ]
        if number == 1 or not named:
            continue
        before, now = round_config(config, number - 1), round_config(config, number)
        anew = now.controller.objective != before.controller.objective
        for section, key in named:
            old, new = (getattr(getattr(each, section), key) for each in (before, now))
            if old != new and not (section == "controller" and anew):
                raise ConfigError(
                    f"iterate.schedule: {section}.{key} changes in round {number}, whose training"
                    " starts from the weights of the round before; leave it out"
                )
