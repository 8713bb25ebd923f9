"""A trained agent on disk: V, M and C as safetensors, and how they fit together.

The folder is self-contained: ``agent.json``, ``vae.safetensors``, ``rnn.safetensors``,
``controller.safetensors``, and, unless C was searched for along the features as they are,
``directions.safetensors``. Every controller stage leaves one; ``evaluate`` takes any, and so does
the search for another C on its V and M.

An agent may come from a stranger. Nothing in it is trusted: sizes are checked before a network of
them is made, shapes and types before numbers are read, numbers for being finite. ``agent.json`` has
the SHA-256 of the other files.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from worldmodels import untrusted, weights
from worldmodels.data.latents import FirstLatents
from worldmodels.errors import ArtifactError
from worldmodels.files import write_json
from worldmodels.limits import ACTIONS, LIMITS, Limit
from worldmodels.models.controller import CHOICE, SQUASHINGS, Head, squashing
from worldmodels.models.mdnrnn import MDNRNN
from worldmodels.models.vae import ConvVAE
from worldmodels.untrusted import printable

VISION_SIZES = ("latent_size", "kl_tolerance", "folded")
MEMORY_SIZES = (
    *("latent_size", "action_size", "hidden_size", "mixtures"),
    *("shared", "sampled", "restart", "reward_weight"),
)
_INTEGERS = {
    "latent_size": LIMITS["vae.latent_size"],
    "action_size": ACTIONS,
    "hidden_size": LIMITS["rnn.hidden_size"],
    "mixtures": LIMITS["rnn.mixtures"],
    "hidden_units": LIMITS["controller.hidden_units"],
}
_NUMBERS = {
    "kl_tolerance": LIMITS["vae.kl_tolerance"],
    "reward_weight": LIMITS["rnn.reward_weight"],
}
"""What a size in a file may be; the others are true or false."""
_STARTS = Limit(1, 2**18)
"""First latents, one for each episode that M learned from."""

RECORD = "agent.json"
PARTS = tuple(f"{name}.safetensors" for name in ("controller", "directions", "rnn", "vae"))
PART_BYTES = 4096 * untrusted.MEGABYTE
"""Of a part, at most: more than the largest that the limits allow."""
ModuleT = TypeVar("ModuleT", ConvVAE, MDNRNN)


@dataclass(frozen=True)
class Wiring:
    """What joins the parts of an agent.

    Args:
        use_hidden: C sees M's hidden state beside z.
        use_cell: and M's cell state.
        sampled: z is drawn from its posterior, not its mean.
        hidden_after: see `worldmodels.worlds.real.Perception`.
        squash: names of the actions' squashings.
        env_id: the environment it was trained for.
        hidden_units: of C; 0 is a linear controller.
        bias: C has biases.
    """

    use_hidden: bool
    sampled: bool
    hidden_after: bool
    squash: tuple[str, ...]
    env_id: str
    hidden_units: int = 0
    use_cell: bool = False
    bias: bool = True

    @property
    def head(self) -> Head:
        """C's own shape."""
        return Head(self.squash, self.hidden_units, self.bias)

    def features(self, latent_size: int, hidden_size: int) -> int:
        """How many numbers C sees."""
        return latent_size + hidden_size * (self.use_hidden + self.use_cell)


@dataclass(frozen=True)
class Agent:
    """V, M and C with their wiring."""

    vision: ConvVAE
    memory: MDNRNN
    parameters: np.ndarray  # (size,) float32
    wiring: Wiring


def save_vision(path: Path, vision: ConvVAE) -> None:
    """Write V with the sizes needed to build it again."""
    sizes = {name: getattr(vision, name) for name in VISION_SIZES}
    weights.save(path, {"sizes": sizes, "module": vision.state_dict()})


def load_vision(path: Path) -> ConvVAE:
    """Read V; raises `ArtifactError` naming a file that is missing, damaged or something else."""
    return _build(path, ConvVAE, VISION_SIZES)


def save_memory(path: Path, memory: MDNRNN, first: FirstLatents) -> None:
    """Write M with the sizes needed to build it again, and where its dreams begin."""
    sizes = {name: getattr(memory, name) for name in MEMORY_SIZES}
    begin = {name: torch.from_numpy(array) for name, array in vars(first).items()}
    weights.save(path, {"sizes": sizes, "module": memory.state_dict(), "first_latents": begin})


def load_memory(path: Path) -> MDNRNN:
    """Read M; raises `ArtifactError` naming a file that is missing, damaged or something else."""
    return _build(path, MDNRNN, MEMORY_SIZES)


def load_first_latents(path: Path) -> FirstLatents:
    """Where the dreams of the M in `path` begin; raises `ArtifactError` if it does not say."""
    outline = weights.outline(path)
    sizes = _sizes(path, outline.get("sizes"), MEMORY_SIZES)
    if "first_latents" not in outline:
        raise ArtifactError(
            f"{path} does not say where dreams begin: it was written by an older version; run its"
            " stage again"
        )
    _check_first_latents(path, outline["first_latents"], sizes["latent_size"])
    tree = weights.load(path)["first_latents"]
    return FirstLatents(**{name: _finite(path, name, rows).numpy() for name, rows in tree.items()})


def _build(path: Path, kind: type[ModuleT], names: tuple[str, ...]) -> ModuleT:
    """The network in `path`, in float32, its tensors laid out in memory as `kind` lays them out."""
    outline = weights.outline(path)
    sizes = _sizes(path, outline.get("sizes"), names)
    with torch.device("meta"):
        module = kind(**sizes)
    expected = module.state_dict()
    _check_module(path, kind.__name__, expected, outline.get("module"))
    starts = outline.keys() - {"sizes", "module"}
    if starts and not (kind is MDNRNN and starts == {"first_latents"}):
        raise ArtifactError(f"{path} has parts that no {kind.__name__} has: copy it again")
    if starts:
        _check_first_latents(path, outline["first_latents"], sizes["latent_size"])
    stored = weights.load(path)["module"]
    state = {
        name: torch.empty_like(empty, device="cpu").copy_(_finite(path, name, stored[name]))
        for name, empty in expected.items()
    }
    module.load_state_dict(state, assign=True)
    return module.eval()


def _sizes(path: Path, found: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """The arguments of a network in `path`; files of older versions lack those with defaults."""
    if not isinstance(found, dict) or not found.keys() <= set(names):
        raise ArtifactError(f"{path} does not hold a network's sizes ({', '.join(names)})")
    for name in names:
        if name in found:
            _check_size(path, name, found[name])
        elif name in ("latent_size", "action_size"):
            raise ArtifactError(f"{path}: {name} is missing: it is something else, or damaged")
    return found


def _check_size(path: Path, name: str, value: Any) -> None:
    """Raise `ArtifactError` for a size of another type, or outside its limits."""
    boolean = isinstance(value, bool)
    if name in _INTEGERS:
        limit, fits = _INTEGERS[name], isinstance(value, int) and not boolean
    elif name in _NUMBERS:
        limit, fits = _NUMBERS[name], isinstance(value, int | float) and not boolean
    elif boolean:
        return
    else:
        raise ArtifactError(f"{path}: {name} is {_shown(value)}: it has to be true or false")
    if not fits or value not in limit:
        raise ArtifactError(f"{path}: {name} is {_shown(value)}: it has to be {limit}")


def _shown(value: Any) -> str:
    """A value from a file, short and printable."""
    if isinstance(value, int) and abs(value) > 10**20:
        return "far too large"
    return printable(repr(value), 60)


def _check_module(path: Path, kind: str, expected: Mapping[str, Tensor], found: Any) -> None:
    """Raise `ArtifactError` unless `found` has the tensors `expected`, by name, shape and type."""
    wrong = None
    if not isinstance(found, dict):
        wrong = "it has no weights"
    elif found.keys() != expected.keys():
        name = min(found.keys() ^ expected.keys(), key=str)
        wrong = f"{printable(str(name), 60)} is {'missing' if name in expected else 'too much'}"
    else:
        for name, tensor in expected.items():
            if not _is_tensor(found[name], tuple(tensor.shape), torch.float32, torch.bfloat16):
                wrong = f"{name} is no tensor of {tuple(tensor.shape)} in float32 or bfloat16"
                break
    if wrong is not None:
        raise ArtifactError(f"{path} does not hold a {kind}: {wrong}: copy it again")


def _is_tensor(value: Any, shape: tuple[int, ...], *dtypes: torch.dtype) -> bool:
    return isinstance(value, Tensor) and tuple(value.shape) == shape and value.dtype in dtypes


def _check_first_latents(path: Path, found: Any, latent_size: int) -> None:
    """Raise `ArtifactError` unless `found` is two equal tables of latents."""
    names = {"mean", "logvar"}
    good = isinstance(found, dict) and found.keys() == names
    if good and isinstance(found["mean"], Tensor) and found["mean"].dim() == 2:
        shape = (len(found["mean"]), latent_size)
        good = shape[0] in _STARTS and all(
            _is_tensor(found[name], shape, torch.float32) for name in names
        )
    else:
        good = False
    if not good:
        raise ArtifactError(
            f"{path}: first_latents has to be mean and logvar, each float32 (episodes,"
            f" {latent_size}): copy it again"
        )


def _finite(path: Path, name: str, tensor: Tensor) -> Tensor:
    if not torch.isfinite(tensor).all():
        raise ArtifactError(f"{path}: {name} has numbers that are not finite: copy it again")
    return tensor


def save_agent(folder: Path, agent: Agent, first: FirstLatents) -> None:
    """Write a self-contained agent, and where the dreams of its M begin."""
    save_vision(folder / "vae.safetensors", agent.vision)
    save_memory(folder / "rnn.safetensors", agent.memory, first)
    tensor = torch.from_numpy(np.asarray(agent.parameters, np.float32))
    weights.save(folder / "controller.safetensors", {"parameters": tensor})
    save_wiring(folder, agent.wiring)


def save_wiring(folder: Path, wiring: Wiring) -> None:
    """Write ``agent.json``, with the SHA-256 of each of the files beside it."""
    write_json(folder / RECORD, {**asdict(wiring), "files": _digests(folder)})


def fingerprint(folder: Path) -> str:
    """A fingerprint of all the files of an agent, which are verified; says so where they cannot be.

    Raises:
        ArtifactError: there is no agent, or a file is not the one that ``agent.json`` names.
    """
    record, digests = _record(folder), _digests(folder)
    if "files" in record:
        _verify(folder, record, digests)
        # Of what is said of the agent; the files are in the fingerprint themselves.
        described = {key: value for key, value in record.items() if key != "files"}
        content = (json.dumps(described, indent=2) + "\n").encode()
    else:
        _warn_unverified(folder)
        content = untrusted.read_bytes(folder / RECORD, untrusted.MEGABYTE)
    prints = [*digests.values(), hashlib.sha256(content).hexdigest()]
    return "-".join(part[:8] for part in prints)


def part_fingerprint(folder: Path, part: str) -> str:
    """The fingerprint of one file of an agent; raises as `fingerprint` does."""
    fingerprint(folder)
    return untrusted.sha256(folder / part, PART_BYTES)[:16]


@functools.cache
def _warn_unverified(folder: Path) -> None:
    logging.getLogger(__name__).warning(
        "%s: has no SHA-256 of the agent's files (an older version wrote it): not verified",
        folder / RECORD,
    )


def _digests(folder: Path) -> dict[str, str]:
    """The SHA-256 of each part that is there."""
    return {
        name: untrusted.sha256(folder / name, PART_BYTES)
        for name in PARTS
        if os.path.lexists(folder / name)
    }


def _verify(folder: Path, record: dict[str, Any], digests: dict[str, str]) -> None:
    """Raise `ArtifactError` unless the parts are those that ``agent.json`` names."""
    named = record["files"]
    if not isinstance(named, dict) or not named.keys() <= set(PARTS):
        raise ArtifactError(f"{folder / RECORD}: files has to name {', '.join(PARTS)}")
    for name in PARTS:
        if named.get(name) != digests.get(name):
            raise ArtifactError(
                f"{folder / name}: is not the file that {RECORD} names (SHA-256); copy the agent"
                " again"
            )


def _record(folder: Path) -> dict[str, Any]:
    """What ``agent.json`` says."""
    if not os.path.lexists(folder / RECORD):
        raise ArtifactError(f"{folder} holds no trained agent: {RECORD} is missing")
    record = untrusted.read_json(folder / RECORD, untrusted.MEGABYTE)
    if not isinstance(record, dict):
        raise ArtifactError(f"{folder / RECORD} does not describe an agent: copy it again")
    return record


def _wiring(path: Path, record: dict[str, Any]) -> Wiring:
    """What joins the parts, each field of its own type and within its limits."""
    fields = {key: value for key, value in record.items() if key != "files"}
    known, needed = set(Wiring.__dataclass_fields__), {"use_hidden", "sampled", "hidden_after"}
    if not needed | {"squash", "env_id"} <= fields.keys() <= known:
        names = printable(", ".join(fields), 200)
        raise ArtifactError(f"{path} does not describe an agent: it has {names or 'nothing'}")
    for name in fields.keys() - {"squash", "env_id"}:
        _check_size(path, name, fields[name])
    squash, env_id = fields["squash"], fields["env_id"]
    if not isinstance(squash, list) or len(squash) not in ACTIONS:
        raise ArtifactError(f"{path}: squash has to be a list of {ACTIONS} names")
    try:
        squashing(squash)
    except (KeyError, ValueError, TypeError) as error:
        raise ArtifactError(
            f"{path}: unknown squashing {printable(str(error), 60)}, known are"
            f" {', '.join(SQUASHINGS)} and {CHOICE}"
        ) from None
    if not isinstance(env_id, str):
        raise ArtifactError(f"{path}: env_id is {_shown(env_id)}: it has to be a text")
    if fields.get("use_cell") and not fields["use_hidden"]:
        raise ArtifactError(f"{path}: use_cell is true: use_hidden has to be true as well")
    return Wiring(**(fields | {"squash": tuple(squash), "env_id": printable(env_id, 200)}))


def load_agent(folder: Path) -> Agent:
    """Read an agent.

    Raises:
        ArtifactError: a part is missing or damaged, or the parts do not fit one another.
    """
    record = _record(folder)
    wiring = _wiring(folder / RECORD, record)
    if "files" in record:
        _verify(folder, record, _digests(folder))
    vision = load_vision(folder / "vae.safetensors")
    memory = load_memory(folder / "rnn.safetensors")
    path = folder / "controller.safetensors"
    outline = weights.outline(path)
    found = outline.get("parameters")
    if outline.keys() != {"parameters"} or not (
        isinstance(found, Tensor) and _is_tensor(found, (found.numel(),), torch.float32)
    ):
        raise ArtifactError(f"{path} does not hold parameters, float32 (size,): copy it again")
    check_fit(folder, found.numel(), vision, memory, wiring)
    parameters = _finite(path, "parameters", weights.load(path)["parameters"])
    return Agent(vision, memory, parameters.numpy(), wiring)


def check_fit(where: Path, count: int, vision: ConvVAE, memory: MDNRNN, wiring: Wiring) -> None:
    """Raise `ArtifactError` unless V, M and a controller of `count` parameters fit together."""
    if memory.latent_size != vision.latent_size:
        raise ArtifactError(
            f"{where}: the RNN takes latents of {memory.latent_size}, the VAE gives"
            f" {vision.latent_size}: train the RNN on this VAE"
        )
    if memory.action_size != len(wiring.squash):
        raise ArtifactError(
            f"{where}: the RNN takes {memory.action_size} actions, the controller gives"
            f" {len(wiring.squash)}: train it in this world"
        )
    features = wiring.features(vision.latent_size, memory.hidden_size)
    needed = wiring.head.size(features)
    if count != needed:
        raise ArtifactError(
            f"{where}: the controller has {count} parameters, one for {features} features,"
            f" {len(wiring.squash)} actions and {wiring.hidden_units} hidden units has {needed}:"
            " train it in this world"
        )
