"""A trained agent on disk: V, M and C as safetensors, and how they fit together.

The folder is self-contained: ``agent.json``, ``vae.safetensors``, ``rnn.safetensors``,
``controller.safetensors``, and, unless C was searched for along the features as they are,
``directions.safetensors``. Every controller stage leaves one; ``evaluate`` takes any, and so does
the search for another C on its V and M.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from worldmodels import weights
from worldmodels.data.latents import FirstLatents
from worldmodels.errors import ArtifactError
from worldmodels.files import read_json, write_json
from worldmodels.models.controller import CHOICE, SQUASHINGS, Head, squashing
from worldmodels.models.mdnrnn import MDNRNN
from worldmodels.models.vae import ConvVAE

VISION_SIZES = ("latent_size", "kl_tolerance", "folded")
MEMORY_SIZES = (
    *("latent_size", "action_size", "hidden_size", "mixtures"),
    *("shared", "sampled", "restart", "reward_weight"),
)
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
    return _build(path, ConvVAE)


def save_memory(path: Path, memory: MDNRNN, first: FirstLatents) -> None:
    """Write M with the sizes needed to build it again, and where its dreams begin."""
    sizes = {name: getattr(memory, name) for name in MEMORY_SIZES}
    begin = {name: torch.from_numpy(array) for name, array in vars(first).items()}
    weights.save(path, {"sizes": sizes, "module": memory.state_dict(), "first_latents": begin})


def load_memory(path: Path) -> MDNRNN:
    """Read M; raises `ArtifactError` naming a file that is missing, damaged or something else."""
    return _build(path, MDNRNN)


def load_first_latents(path: Path) -> FirstLatents:
    """Where the dreams of the M in `path` begin; raises `ArtifactError` if it does not say."""
    tree = weights.load(path)
    if "first_latents" not in tree:
        raise ArtifactError(
            f"{path} does not say where dreams begin: it was written by an older version; run its"
            " stage again"
        )
    return FirstLatents(**{name: rows.numpy() for name, rows in tree["first_latents"].items()})


def _build(path: Path, kind: type[ModuleT]) -> ModuleT:
    tree = weights.load(path)
    try:
        module = kind(**tree["sizes"])
        module.load_state_dict(tree["module"])
    except (KeyError, TypeError, RuntimeError) as error:
        line = str(error).replace("\n", " ")
        raise ArtifactError(f"{path} does not hold a {kind.__name__}: {line}") from None
    return module.eval()


def save_agent(folder: Path, agent: Agent, first: FirstLatents) -> None:
    """Write a self-contained agent, and where the dreams of its M begin."""
    save_vision(folder / "vae.safetensors", agent.vision)
    save_memory(folder / "rnn.safetensors", agent.memory, first)
    tensor = torch.from_numpy(np.asarray(agent.parameters, np.float32))
    weights.save(folder / "controller.safetensors", {"parameters": tensor})
    write_json(folder / "agent.json", asdict(agent.wiring))


def load_agent(folder: Path) -> Agent:
    """Read an agent.

    Raises:
        ArtifactError: a part is missing or damaged, or the parts do not fit one another.
    """
    record = read_json(folder / "agent.json")
    try:
        wiring = Wiring(**(record | {"squash": tuple(record["squash"])}))
    except (KeyError, TypeError) as error:
        raise ArtifactError(
            f"{folder / 'agent.json'} does not describe an agent: {error}"
        ) from None
    try:
        squashing(wiring.squash)
    except (KeyError, ValueError) as error:
        raise ArtifactError(
            f"{folder / 'agent.json'}: unknown squashing {error}, known are"
            f" {', '.join(SQUASHINGS)} and {CHOICE}"
        ) from None
    vision = load_vision(folder / "vae.safetensors")
    memory = load_memory(folder / "rnn.safetensors")
    tree = weights.load(folder / "controller.safetensors")
    parameters = tree["parameters"].numpy()
    check_fit(folder, parameters.shape[-1], vision, memory, wiring)
    return Agent(vision, memory, parameters, wiring)


def check_fit(where: Path, count: int, vision: ConvVAE, memory: MDNRNN, wiring: Wiring) -> None:
    """Raise `ArtifactError` unless V, M and a controller of `count` parameters fit together."""
    if memory.latent_size != vision.latent_size:
        raise ArtifactError(
            f"{where}: the RNN takes latents of {memory.latent_size}, the VAE gives"
            f" {vision.latent_size}: train the RNN on this VAE"
        )
    features = wiring.features(vision.latent_size, memory.hidden_size)
    needed = wiring.head.size(features)
    if count != needed:
        raise ArtifactError(
            f"{where}: the controller has {count} parameters, one for {features} features,"
            f" {len(wiring.squash)} actions and {wiring.hidden_units} hidden units has {needed}:"
            " train it in this world"
        )
