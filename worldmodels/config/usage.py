"""The texts of a command without words and of ``--help``."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from worldmodels.config.choices import IMPORT, Stage
from worldmodels.config.keys import EPISODE_STEPS, Key, keys_of
from worldmodels.config.schema import Config, plain

TITLE = (
    "World Models (Ha & Schmidhuber, 2018): VAE encoder, MDN-RNN dynamics model, CMA-ES controller"
)
SHORT = f"""{TITLE}

  python -m worldmodels stage=all preset=quick          every stage on CarRacing, in minutes
  python -m worldmodels stage=all preset=laptop         the same in hours, with better scores
  python -m worldmodels stage=rollouts preset=quick     one stage; a finished one is not repeated
  python -m worldmodels stage=evaluate run=check model=pretrained/carracing
                                                        the shipped agent
  python -m worldmodels stage=play model=pretrained/carracing
                                                        drive in its learned model, in a browser
  python -m worldmodels stage=watch model=pretrained/carracing
                                                        see it drive, and take over
  python -m worldmodels stage=plan preset=paper         time, memory, disk, money it would take
  python -m worldmodels stage=doctor                    versions, hardware, optional packages
  python -m worldmodels --help                          all stages, presets and keys
"""
STAGES = {
    Stage.all: "every stage below from the bootstrap run to the report (the default)",
    Stage.bootstrap: "bootstrap run: a shorter run whose controller collects the data",
    Stage.rollouts: "collect episodes",
    Stage.vae: "train the VAE encoder",
    Stage.rnn: "train the dynamics model",
    Stage.controller: "optimise the controller",
    Stage.baseline: "train a model-free baseline: PPO, DQN or SAC",
    Stage.evaluate: "score an agent in the real environment, and write a video",
    Stage.report: "write the report, an HTML page",
    Stage.iterate: "rounds of stage=all; each collects with the controller of the one before",
    Stage.sweep: "search for the best values of keys (sweep.space=)",
    IMPORT: "take over episodes that other programs recorded (format=, source=)",
    Stage.inspect: "statistics of the collected data, and a contact sheet",
    Stage.export: "write an agent or episodes for other programs (format=)",
    Stage.play: "write the page, and serve it on this machine: play in the learned model",
    Stage.watch: "an agent or you in the environment, live: on a page, or in a window",
    Stage.plan: "predict time, memory, disk and money of a run on this machine",
    Stage.doctor: "versions, hardware, optional packages, and what a run would lack here",
}
"""What each stage does."""

_OPTIONS = """\
  --config-dir DIR         add the groups of a folder with files like those of conf/
  --multirun               one run for each combination of values: key=value1,value2
  --cfg job                print the configuration and stop
  --jobs                   check it, print the stages of its run and stop (slurm/submit.sh)
  --help [SECTION]         print this, or the keys of a section: --help vae
  --version                print the version
  --hydra-help             further options, of Hydra"""
_WIDTH = 100
_COLUMN = 36
"""Width of the column of keys and values."""


def help_text(composed: DictConfig, folders: Sequence[Path], sections: Sequence[str]) -> str:
    """The answer to ``--help``: stages, groups, options and keys.

    Args:
        composed: the configuration of the other words of the command line, whose values are shown.
        folders: with groups: ``conf/``, those of other packages, that of ``--config-dir``.
        sections: keys of these alone, where there are any.
    """
    if sections:
        return "\n\n".join(_sections(composed, sections))
    stages = [f"  stage={stage.name:<18} {does}" for stage, does in STAGES.items()]
    choices: dict[str, Path] = {}
    for folder in folders:
        for group in sorted(part.name for part in folder.iterdir() if part.is_dir()):
            for path in sorted((folder / group).glob("*.yaml")):
                choices.setdefault(f"  {group}={path.stem}", path)  # Hydra takes the first as well
    groups = [
        line
        for choice in sorted(choices)
        for line in _beside(choice, description(choices[choice]), 27)
    ]
    parts = [
        TITLE,
        "  python -m worldmodels stage=all run=mine preset=quick vae.latent_size=64",
        "Stages\n" + "\n".join(stages),
        "Groups of values\n" + "\n".join(groups),
        "Options\n" + _OPTIONS,
        "Keys: value of this command line, meaning [unit; accepted values; default]",
        *_sections(composed),
    ]
    return "\n\n".join(parts)


def description(path: Path) -> str:
    """The first sentence of the comment at the beginning of a YAML file."""
    lines = [
        line.strip() for line in path.read_text(encoding="utf-8", errors="replace").splitlines()
    ]
    lines = [line for line in lines if not line.startswith("# @package")]
    comment = []
    for line in lines:
        if not line.startswith("#"):
            break
        comment.append(line.lstrip("# "))
    sentence = re.match(r".*?(?=\.(?:\s|$)|$)", " ".join(comment))
    return sentence[0] if sentence else ""


def _sections(composed: DictConfig, only: Sequence[str] = ()) -> Iterator[str]:
    every = [key for key in keys_of(Config) if not only or key.name.partition(".")[0] in only]
    for section, keys in groupby(every, lambda key: key.section):
        lines = [line for key in keys for line in _lines(key, composed)]
        yield "\n".join([str(section.__doc__).rstrip("."), *lines])


def _lines(key: Key, composed: DictConfig) -> list[str]:
    """Key and value, and beside them what is known of the key."""
    value = OmegaConf.select(composed, key.name)
    if OmegaConf.is_config(value):
        value = OmegaConf.to_container(value)
    shown = f"  {key.name}={written(value)}"
    if len(shown) < _COLUMN:
        return _beside(shown, explained(key), _COLUMN)
    above = textwrap.wrap(shown, _WIDTH, subsequent_indent="    ")
    return [*above, *_beside("", explained(key), _COLUMN)]


def _beside(left: str, right: str, column: int) -> list[str]:
    """Lines with `left` at their beginning and `right` from `column` on."""
    lines = textwrap.wrap(right, _WIDTH - column, break_on_hyphens=False) or [""]
    starts = [left, *[""] * len(lines)]
    return [f"{start:<{column}}{line}".rstrip() for start, line in zip(starts, lines, strict=False)]


def explained(key: Key) -> str:
    """Meaning, unit, accepted values and default of a key."""
    known = [key.unit, key.accepts, f"default {written(key.default)}"]
    return f"{key.meaning} [{'; '.join(filter(None, known))}]"


def written(value: Any) -> str:
    """`value` on one line, as YAML and a command line have it."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name}: {written(item)}' for name, item in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(written, value))}]"
    if value == EPISODE_STEPS:
        return "env.max_steps / env.frame_skip"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(plain(value))
