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

PRESETS = {
    "carracing": ("paper", "laptop", "dream-rounds", "fine-tune", "quick", "smoke"),
    "takecover": ("paper", "laptop", "quick", "smoke"),
}
"""Environment -> the presets that are tested with it."""


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
        title = " ".join(str(section.__doc__).split()).rstrip(".")
        parts.append(f"### {title}\n\n{markdown_table(header, rows)}")
    return "\n" + "\n".join(parts) + "\n"


def presets() -> str:
    """Per environment, the keys that a preset or the environment sets, without its interpolations
    resolved."""
    register()
    defaults = {key.name: key.default for key in keys_of(Config)}
    parts = []
    with initialize_config_dir(str(CONF), version_base="1.3"):
        for env, names in PRESETS.items():
            chosen = [compose("config", [f"env={env}", f"preset={name}"]) for name in names]
            trees: list[Any] = [OmegaConf.to_container(config) for config in chosen]
            rows = []
            for name, default in defaults.items():
                values = [written(reduce(getitem, name.split("."), tree)) for tree in trees]
                if {*values, written(default)} != {values[0]}:
                    cells = (
                        _cell(name, value, env, preset)
                        for value, preset in zip(values, names, strict=True)
                    )
                    rows.append([f"`{name}`", *cells])
            parts.append(f"### env={env}\n\n{markdown_table(('key', *names), rows)}")
    return "\n" + "\n".join(parts) + "\n"


def _cell(key: str, value: str, env: str, preset: str) -> str:
    """A value of a preset; a long one is named by the file that has it."""
    if len(value) <= 120:
        return f"`{value}`"
    files = (CONF / "experiment" / env / f"{preset}.yaml", CONF / "preset" / f"{preset}.yaml")
    source = next(
        path
        for path in files
        if path.exists() and OmegaConf.select(OmegaConf.load(path), key) is not None
    )
    return f"in `conf/{source.relative_to(CONF)}`"
