"""The networks of random network distillation as a file: ``distillation.safetensors``."""

from __future__ import annotations

from pathlib import Path

import torch

from worldmodels.agents.model_files import finite
from worldmodels.agents.stored_modules import is_tensor
from worldmodels.errors import ArtifactError
from worldmodels.files import weights
from worldmodels.models.distillation import Distillation

DISTILLATION = "distillation.safetensors"


def save_distillation(path: Path, model: Distillation) -> None:
    """Write both networks, atomically; raises `ArtifactError` where the disk is full or not
    writable."""
    weights.save(path, dict(model.state_dict()))


def load_distillation(path: Path, latent_size: int) -> Distillation:
    """Read what `save_distillation` wrote, for inference on the CPU.

    Args:
        path: of the file.
        latent_size: Z of the dynamics model.

    Raises:
        ArtifactError: the file is missing, damaged, or does not fit the model.
    """
    outline = weights.outline(path)
    with torch.device("meta"):
        wanted = Distillation(latent_size).state_dict()
    good = outline.keys() == wanted.keys() and all(
        is_tensor(outline[name], tuple(part.shape), torch.float32) for name, part in wanted.items()
    )
    if not good:
        raise ArtifactError(
            f"{path} does not hold networks for latents of {latent_size}: make the stage again with"
            " overwrite=true"
        )
    stored = weights.load(path)
    model = Distillation(latent_size)
    model.load_state_dict({name: finite(path, name, stored[name]) for name in wanted})
    return model.requires_grad_(False).eval()
