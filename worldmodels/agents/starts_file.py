"""Moments at which episodes in an agent's learned model begin, as a file: ``starts.safetensors``.

Latents and actions are float16, which halves the file: 5 MB for 1,024 moments of CarRacing.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from worldmodels.agents.model_files import finite
from worldmodels.agents.stored_modules import is_tensor
from worldmodels.config.keys import Limit
from worldmodels.data.starts import HISTORY, Starts
from worldmodels.errors import ArtifactError
from worldmodels.files import weights

STARTS = "starts.safetensors"
_COUNT = Limit(1, 2**16)


def save_starts(path: Path, starts: Starts) -> None:
    """Write moments; raises `ArtifactError` where the disk is full or not writable."""
    tensors = {name: torch.from_numpy(rows) for name, rows in vars(starts).items()}
    for name in ("mean", "logvar", "actions"):
        tensors[name] = tensors[name].half()
    weights.save(path, tensors)


def load_starts(path: Path, latent_size: int, action_size: int) -> Starts:
    """Read moments.

    Args:
        path: of the file.
        latent_size: Z of the dynamics model.
        action_size: A of the dynamics model.

    Raises:
        ArtifactError: the file is missing, damaged, or does not fit the model.
    """
    outline = weights.outline(path)
    steps = outline.get("steps")
    count = len(steps) if isinstance(steps, Tensor) and steps.dim() == 1 else 0
    shapes = {
        "mean": (count, HISTORY + 1, latent_size),
        "logvar": (count, HISTORY + 1, latent_size),
        "actions": (count, HISTORY, action_size),
    }
    good = outline.keys() == {*shapes, "steps"} and count in _COUNT
    good = good and is_tensor(steps, (count,), torch.int64)
    if not good or not all(is_tensor(outline[k], s, torch.float16) for k, s in shapes.items()):
        raise ArtifactError(
            f"{path} does not hold moments of {HISTORY} steps with latents of {latent_size} and"
            f" actions of {action_size}: copy it again"
        )
    stored = weights.load(path)
    found = {name: finite(path, name, stored[name]).numpy().astype(np.float32) for name in shapes}
    before = stored["steps"].numpy()
    if before.min() < 0 or before.max() > HISTORY:
        raise ArtifactError(f"{path}: steps has to be 0 to {HISTORY}: copy it again")
    return Starts(**found, steps=before)
