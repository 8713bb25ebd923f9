"""The tables of the page on configuration: keys, and the values of presets."""

from __future__ import annotations

from functools import reduce
from itertools import groupby
from operator import getitem
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from tables import markdown_table

from worldmodels.config.keys import keys_of
from worldmodels.config.schema import Config, register
from worldmodels.config.shipped import CONF
from worldmodels.config.usage import written

PRESETS = ("paper", "laptop", "dream-rounds", "fine-tune", "quick", "smoke")


def keys() -> str:
    """Each section of the configuration with its keys."""
    parts = []
    for section, group in groupby(keys_of(Config), lambda key: key.section):
        rows = [
            (
                f"`{key.name}`",
                key.meaning.replace("<", "&lt;").replace("*", r"\*"),
                key.unit,
                f"`{written(key.default)}`",
                key.accepts,
            )
            for key in group
        ]
        header = ("key", "meaning", "unit", "default", "accepted values")
        parts.append(f"### {str(section.__doc__).rstrip('.')}\n\n{markdown_table(header, rows)}")
    return "\n" + "\n".join(parts) + "\n"


def presets() -> str:
    """Per environment, the keys that a preset or the environment sets, without its interpolations
    resolved."""
    register()
    defaults = {key.name: key.default for key in keys_of(Config)}
    parts = []
    with initialize_config_dir(str(CONF), version_base="1.3"):
        for env in ("carracing", "takecover"):
            chosen = [compose("config", [f"env={env}", f"preset={name}"]) for name in PRESETS]
            trees: list[Any] = [OmegaConf.to_container(config) for config in chosen]
            rows = []
            for name, default in defaults.items():
                values = [written(reduce(getitem, name.split("."), tree)) for tree in trees]
                if {*values, written(default)} != {values[0]}:
                    rows.append([f"`{name}`", *map(_cell, values, PRESETS)])
            parts.append(f"### env={env}\n\n{markdown_table(('key', *PRESETS), rows)}")
    return "\n" + "\n".join(parts) + "\n"


def _cell(value: str, preset: str) -> str:
    """A value of a preset; a long one is in its file alone."""
    return f"`{value}`" if len(value) <= 120 else f"in `conf/preset/{preset}.yaml`"
