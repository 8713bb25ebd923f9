"""Convert an agent of version 0.1 to the format that this version reads; nothing is trained again.

    python tools/convert_agent.py OLD_FOLDER NEW_FOLDER

The tensors are copied as they are. The new folder names the class of each model, and its sizes, in
the file of the model, and what the controller sees in ``agent.json``.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import Any

from worldmodels import untrusted, weights
from worldmodels.agent import RECORD, AgentConfig, fingerprint, load_agent, save_config
from worldmodels.errors import WorldModelsError
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
    options = parser.parse_args()
    try:
        convert(options.old, options.new)
    except (WorldModelsError, OSError, KeyError, TypeError, ValueError) as error:
        print(f"error: {options.old}: is not converted: {error}", file=sys.stderr)
        return 1
    return 0


def convert(old: Path, new: Path) -> None:
    """Write the agent of folder `old` to folder `new`, which must not exist yet."""
    record = untrusted.read_json(old / RECORD, untrusted.MEGABYTE)
    vae, rnn = (weights.load(old / f"{name}.safetensors") for name in ("vae", "rnn"))
    new.mkdir(parents=True)
    _write(new / "vae.safetensors", "conv_vae", vae, {"frame_size": FRAME_SIZE})
    _write(new / "rnn.safetensors", "mdn_rnn", rnn, {})
    for path in old.iterdir():
        if path.name not in (RECORD, "vae.safetensors", "rnn.safetensors"):
            shutil.copy2(path, new / path.name)
    state = (("c", "h") if record.get("use_cell") else ("h",)) if record["use_hidden"] else ()
    features = FeatureSpec(state, record["sampled"], record["hidden_after"])
    spec = ControllerSpec(
        tuple(record["squash"]), record.get("hidden_units", 0), record.get("bias", True)
    )
    save_config(new, AgentConfig(features, spec, record["env_id"]), fingerprint(old))
    load_agent(new)


def _write(path: Path, name: str, tree: dict[str, Any], more: dict[str, Any]) -> None:
    sizes = {RENAMED.get(key, key): value for key, value in tree.pop("sizes").items()} | more
    weights.save(path, {"model": {"class": name, "format": 1, "sizes": sizes}, **tree})


if __name__ == "__main__":
    sys.exit(main())
