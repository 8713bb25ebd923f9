"""Where the models run, and in which arithmetic."""

from __future__ import annotations

import os
import warnings

import torch

from worldmodels.errors import ConfigError


def choose_device(name: str, key: str = "device") -> torch.device:
    """The device of that name; "auto" is CUDA where there is a GPU for it, and else the CPU.

    On CUDA, torch uses deterministic algorithms from then on.

    Args:
        name: "auto", "cpu", "cuda", "cuda:1" for the second GPU, or "mps".
        key: that chooses it, for errors.

    Raises:
        ConfigError: torch has no such device here.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(
            f"{key}={name}: is not a device of PyTorch; use auto, cpu, cuda or mps"
        ) from error
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ConfigError(
            f"{key}={name}: torch finds no Metal here (it needs Apple silicon and macOS);"
            f" use {key}=auto or {key}=cpu"
        )
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ConfigError(f"{key}={name}: torch sees no GPU here; use {key}=auto or {key}=cpu")
        if device.index is not None and device.index >= torch.cuda.device_count():
            count = torch.cuda.device_count()
            raise ConfigError(f"{key}={name}: torch sees {count} GPUs here; use {key}=cuda")
        _use_deterministic_algorithms()
    return device


def _use_deterministic_algorithms() -> None:
    """Where torch has a deterministic algorithm for a GPU, use it; where it has none, any.

    By default, gradients of convolutions are added up in the order in which threads finish: two
    trainings with one seed on an H200 gave different weights. cuBLAS reads the variable when a
    process first uses it.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    # With it, torch fills each tensor of torch.empty with NaN, also its own: a sixth to a quarter
    # more kernels in a training step. That serves to find code that reads such memory.
    # The type checker does not see it: a class in place of the module has it.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    # What torch says of algorithms that are not, that of attention in other words.
    warnings.filterwarnings("ignore", message=".*(non-|have a )deterministic")


def has_bfloat16(device: torch.device) -> bool:
    """Whether the hardware computes in bfloat16; of Metal this is not known, and taken for no."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return device.type == "cpu" and bool(torch.cpu._is_avx512_bf16_supported())


def device_in_words(device: torch.device, bfloat16: bool) -> str:
    """A device and the arithmetic of networks: ``"NVIDIA H200, bfloat16"``, ``"cpu, float32"``."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return f"{name}, {'bfloat16' if bfloat16 else 'float32'}"
