"""Convert an agent to the format that this version reads; nothing is trained again.

    python tools/convert_agent.py OLD_FOLDER NEW_FOLDER
    python tools/convert_agent.py OLD_FOLDER NEW_FOLDER --env my-environment

It takes agents of format 1, and of format 2 without observations and actions. The tensors are
copied as they are. The new folder names the class of each model, and its sizes, in the file of the
model; the controller's features, and the environment's observations and actions, in ``agent.json``.
The environment is made once, to read its actions; it is configured as its group of ``conf/env/``,
or as ``--env`` says.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from worldmodels.agents.description import AgentConfig
from worldmodels.agents.folder import RECORD, fingerprint, read_agent, save_config
from worldmodels.config import shipped
from worldmodels.config.environments import env_spec, find_env
from worldmodels.envs.action_spec import ActionSpec, actions_of
from worldmodels.envs.engines import make_vector_env
from worldmodels.envs.observation import ObservationSpec
from worldmodels.errors import WorldModelsError
from worldmodels.files import untrusted, weights
from worldmodels.models.controller import ControllerSpec
from worldmodels.models.features import FeatureSpec

RENAMED = {"shared": "shared_mixture", "restart": "is_first"}
FRAME_SIZE = 64


def main() -> int:
    """Convert one agent; the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--env", help="a group of conf/env/, or the id of an environment")
    options = parser.parse_args()
    try:
        convert(options.old, options.new, options.env)
    except (WorldModelsError, OSError, KeyError, TypeError, ValueError) as error:
        print(f"error: {options.old}: is not converted: {error}", file=sys.stderr)
        return 1
    return 0


def convert(old: Path, new: Path, env: str | None) -> None:
    """Write the agent of folder `old` to folder `new`, which must not exist yet."""
    record = untrusted.read_json(old / RECORD, untrusted.MEGABYTE)
    first, env_id = record.get("format", 1) == 1, record["env_id"]
    features, controller = _format_1(record) if first else _format_2(record)
    models = {name: weights.load(old / f"{name}.safetensors") for name in ("vae", "rnn")}
    observation, actions = _environment(env or shipped.group_of(env_id) or env_id)
    new.mkdir(parents=True)
    for path in old.iterdir():
        if path.name != RECORD:
            shutil.copy2(path, new / path.name)
    if first:
        _write(new / "vae.safetensors", "conv_vae", models["vae"], {"frame_size": FRAME_SIZE})
        _write(new / "rnn.safetensors", "mdn_rnn", models["rnn"], {})
    skip = record.get("frame_skip", 1)
    config = AgentConfig(features, controller, env_id, observation, actions, skip)
    save_config(new, config, record.get("converted_from") or fingerprint(old))
    read_agent(new)


def _environment(name: str) -> tuple[ObservationSpec, ActionSpec]:
    """The observations and actions of the environment of that name."""
    spec = env_spec(find_env(name))
    with closing(make_vector_env(spec, 1)) as envs:
        return ObservationSpec(spec.crop_rows, spec.size), actions_of(envs)


def _format_1(record: dict[str, Any]) -> tuple[FeatureSpec, ControllerSpec]:
    state = (("c", "h") if record.get("use_cell") else ("h",)) if record["use_hidden"] else ()
    return (
        FeatureSpec(state, record["sampled"], record["hidden_after"]),
        ControllerSpec(
            tuple(record["squash"]), record.get("hidden_units", 0), record.get("bias", True)
        ),
    )


def _format_2(record: dict[str, Any]) -> tuple[FeatureSpec, ControllerSpec]:
    features, controller = record["features"], record["controller"]
    return (
        FeatureSpec(**{**features, "state": tuple(features["state"])}),
        ControllerSpec(**{**controller, "squash": tuple(controller["squash"])}),
    )


def _write(path: Path, name: str, tree: dict[str, Any], more: dict[str, Any]) -> None:
    sizes = {RENAMED.get(key, key): value for key, value in tree.pop("sizes").items()} | more
    weights.save(path, {"model": {"class": name, "format": 1, "sizes": sizes}, **tree})


if __name__ == "__main__":
    sys.exit(main())
