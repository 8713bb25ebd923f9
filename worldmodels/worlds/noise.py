"""Random numbers that depend on the episode, not on its position in a batch.

Noise is a function of (episode seed, time step, dimension): a counter-based generator, as in Salmon
et al. 2011, with the finaliser of SplitMix64 (Steele et al. 2014) as its function. So an episode is
the same in any position, in any batch, on any worker, resumed or not; candidates with the same seed
get the same noise (common random numbers); and there is no state to save. It consists of integer
operations and runs on the device of the world, except on Metal, which has no float64: there it runs
on the CPU. On a CPU the integers are computed by compiled loops, elsewhere by tensor operations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worldmodels.worlds import kernels

_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_FIRST = 0xBF58476D1CE4E5B9 - 2**64
_SECOND = 0x94D049BB133111EB - 2**64


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64, whose own shift would copy the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    """SplitMix64's finaliser on int64 tensors, whose products wrap as unsigned ones do."""
    x = (x ^ _shift(x, 30)) * _FIRST
    x = (x ^ _shift(x, 27)) * _SECOND
    return x ^ _shift(x, 31)


def _bits(keys: Tensor, step: int | Tensor, size: int) -> Tensor:
    counter = torch.arange(1, size + 1, device=keys.device)
    if isinstance(step, Tensor):
        step = step.to(keys.device).unsqueeze(1)  # (N, 1)
    return _mix(keys.unsqueeze(1) + (step * size + counter) * _GOLDEN)  # (N, size)


def tensor_uniform(keys: Tensor, step: int | Tensor, size: int) -> Tensor:
    """`EpisodeNoise.uniform` by tensor operations, for `keys` (N,) int64 on any device."""
    return _shift(_bits(keys, step, size), 40).float() * 2.0**-24


def tensor_normal(keys: Tensor, step: int | Tensor, size: int) -> Tensor:
    """`EpisodeNoise.normal` by tensor operations, for `keys` (N,) int64 on any device."""
    bits = _bits(keys, step, (size + 1) // 2)
    # 32 bits each; half a step off zero keeps the logarithm finite.
    radius = torch.sqrt(-2.0 * torch.log((_shift(bits, 32).double() + 0.5) * 2.0**-32))
    angle = (bits & 0xFFFFFFFF).double() * (2.0 * math.pi * 2.0**-32)
    pair = torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)], dim=1)
    return pair[:, :size].float()


def _counters(keys: Tensor, step: int | Tensor) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Keys and steps of the environments (N,), as the kernels take them."""
    words = keys.numpy().view(np.uint64)
    if isinstance(step, Tensor):
        return words, step.cpu().numpy().view(np.uint64)
    return words, np.full(len(words), step, np.uint64)


def _compiled_uniform(keys: Tensor, step: int | Tensor, size: int) -> Tensor:
    drawn = torch.empty(len(keys), size)
    kernels.uniform(*_counters(keys, step), drawn.numpy())
    return drawn


def _compiled_normal(keys: Tensor, step: int | Tensor, size: int) -> Tensor:
    radii, angles = torch.empty(2, len(keys), (size + 1) // 2, dtype=torch.float64)
    kernels.radii_and_angles(*_counters(keys, step), radii.numpy(), angles.numpy())
    radii.log_().mul_(-2.0).sqrt_()
    drawn = torch.empty(len(keys), size)
    parts = (radii, torch.cos(angles), torch.sin(angles), drawn)
    kernels.from_polar(*(part.numpy() for part in parts))
    return drawn


class EpisodeNoise:
    """Noise for N environments, each with its own episode seed.

    Args:
        seeds: (N,) episode seeds.
        stream: number of the stream; different streams of the same seeds are independent.
        device: of the results.
    """

    def __init__(self, seeds: Sequence[int], stream: int, device: torch.device) -> None:
        self._stream, self._wanted = stream, device
        device = torch.device("cpu") if device.type == "mps" else device
        keys = torch.from_numpy(np.asarray(seeds, dtype=np.int64)).to(device)
        self.keys = _mix(_mix(keys * _GOLDEN) ^ _mix(torch.tensor(stream, device=device)))
        """Of the episodes: (N,) int64."""

    def uniform(self, step: int | Tensor, size: int) -> Tensor:
        """Uniform numbers in [0, 1).

        Args:
            step: time step, one for all environments or (N,) int64.
            size: numbers per environment.

        Returns:
            (N, size) float32.
        """
        on_cpu = self.keys.device.type == "cpu"
        draw = _compiled_uniform if on_cpu else tensor_uniform
        return draw(self.keys, step, size).to(self._wanted)

    def normal(self, step: int | Tensor, size: int) -> Tensor:
        """Standard normal numbers, by the transform of Box and Muller (1958).

        Args:
            step: time step, one for all environments or (N,) int64.
            size: numbers per environment.

        Returns:
            (N, size) float32.
        """
        on_cpu = self.keys.device.type == "cpu"
        draw = _compiled_normal if on_cpu else tensor_normal
        return draw(self.keys, step, size).to(self._wanted)

    def restart(self, mask: Tensor, seeds: Sequence[int]) -> None:
        """Replace episode seeds.

        Args:
            mask: (N,) bool, the environments that get a new seed.
            seeds: one for each True of `mask`, in order.
        """
        keys = EpisodeNoise(seeds, self._stream, self.keys.device).keys
        self.keys[mask.to(keys.device)] = keys

    def keep(self, mask: Tensor) -> None:
        """Drop the environments where `mask` (N,) bool is False."""
        self.keys = self.keys[mask.to(self.keys.device)]
