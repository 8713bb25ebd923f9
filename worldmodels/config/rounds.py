"""The form of ``iterate.schedule``, and the keys that all rounds of ``stage=iterate`` share: each
starts from the weights of the round before."""

from __future__ import annotations

from dataclasses import fields

from worldmodels.config.keys import limits_of
from worldmodels.config.policies import IterateConfig
from worldmodels.config.schema import Config, is_section, round_config
from worldmodels.errors import ConfigError

FORM = "give each entry the round that it begins with, as in [{round: 2, rnn: {epochs: 5}}]"
LIMIT = limits_of(IterateConfig)["rounds"]
"""Of the number of a round."""

SIZES = {
    "vae": ("encoder", "options", "blocks", "frames", "latent_size"),
    "rnn": (
        *("model", "options", "hidden_size", "layers", "heads"),
        *("mixtures", "shared_mixture", "is_first"),
    ),
    "controller": ("features", "hidden_units", "bias"),
}
"""By section, the keys that determine which weights a network has."""


def numbers(config: Config) -> list[int]:
    """The round of each entry of ``iterate.schedule``; raises `ConfigError` where there is none,
    where they do not rise, and for a key that all rounds share, such as ``run``."""
    found: list[int] = []
    for change in config.iterate.schedule:
        number = change.get("round")
        if type(number) is not int or number not in LIMIT:  # true is 1 for Python
            raise ConfigError(f"iterate.schedule: round={number}: {FORM}")
        found.append(number)
        for key in (part.name for part in fields(Config)):
            if key in change and key != "seed" and not is_section(key):
                raise ConfigError(
                    f"iterate.schedule: {key}={change[key]} from round {number} on: all rounds"
                    " share this key; leave it out of the schedule"
                )
    if found != sorted(set(found)):
        raise ConfigError(f"iterate.schedule: its rounds are {found}: give them in rising order")
    return found


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
