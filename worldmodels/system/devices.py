"""Where the models run, and in which arithmetic."""

from __future__ import annotations

import torch

from worldmodels.errors import ConfigError


def choose_device(name: str) -> torch.device:
    """The device of that name; "auto" is CUDA where there is a GPU for it, and else the CPU.

    Args:
        name: "auto", "cpu", "cuda" or "mps".

    Raises:
        ConfigError: torch has no such device here.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device=cuda: torch sees no GPU here; use device=auto or device=cpu")
    if name == "mps" and not torch.backends.mps.is_available():
        raise ConfigError(
            "device=mps: torch finds no Metal here (it needs Apple silicon and macOS);"
            " use device=auto or device=cpu"
        )
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device={name}: is none of torch; use auto, cpu, cuda or mps") from error


def has_bfloat16(device: torch.device) -> bool:
    """Whether the hardware computes in bfloat16; of Metal this is not known, and taken for no."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return device.type == "cpu" and bool(torch.cpu._is_avx512_bf16_supported())
