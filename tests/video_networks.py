"""The encoders of published video networks in small sizes, and the modules they are built from."""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from worldmodels.models.r3d18 import CHANNELS, R3D18VAE
from worldmodels.models.timesformer import TimesformerVAE

MODULES = {"r3d18": "torchvision", "timesformer": "transformers"}

SMALL: dict[str, Callable[..., Any]] = {
    "r3d18": lambda **sizes: R3D18VAE(5, 32, **{"frames": 3, "input_size": 16, **sizes}),
    "timesformer": lambda **sizes: TimesformerVAE(
        5,
        16,
        **{
            **{"frames": 3, "input_size": 32, "patch_size": 16},
            **{"hidden_size": 16, "layers": 2, "heads": 2, **sizes},
        },
    ),
}


class _Block(nn.Module):
    """A residual block, as torchvision's ``BasicBlock``."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Sequential(
            nn.Conv3d(before, 4, 3, stride, 1, bias=False), nn.BatchNorm3d(4), nn.ReLU(inplace=True)
        )
        self.conv2 = nn.Sequential(nn.Conv3d(4, after, 3, 1, 1, bias=False), nn.BatchNorm3d(after))
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1:
            shorter = nn.Conv3d(before, after, 1, stride, bias=False)
            self.downsample = nn.Sequential(shorter, nn.BatchNorm3d(after))

    def forward(self, maps: Tensor) -> Tensor:
        residual = maps if self.downsample is None else self.downsample(maps)
        return torch.relu(self.conv2(self.conv1(maps)) + residual)


class SmallR3D18(nn.Module):
    """R3D-18 with few channels, and the modules, names and strides of torchvision's ``r3d_18``."""

    def __init__(self, weights: None = None) -> None:
        super().__init__()
        first = nn.Conv3d(3, 4, (3, 7, 7), (1, 2, 2), (1, 3, 3), bias=False)
        self.stem = nn.Sequential(first, nn.BatchNorm3d(4), nn.ReLU(inplace=True))
        self.layer1 = nn.Sequential(_Block(4, 4, 1), _Block(4, 4, 1))
        self.layer2 = nn.Sequential(_Block(4, 8, 2), _Block(8, 8, 1))
        self.layer3 = nn.Sequential(_Block(8, 8, 2), _Block(8, 8, 1))
        self.layer4 = nn.Sequential(_Block(8, CHANNELS, 2), _Block(CHANNELS, CHANNELS, 1))
        self.fc = nn.Linear(CHANNELS, 400)

    def maps(self, clips: Tensor) -> Tensor:
        """The last maps (B, 512, time, side / 16, side / 16) of clips (B, 3, C, side, side)."""
        maps: Tensor = self.stem(clips)
        for layer in (self.layer1, self.layer2, self.layer3, self.layer4):
            maps = layer(maps)
        return maps


def provide(encoder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make an encoder buildable: R3D-18 from the small network in place of torchvision's, installed
    or not; TimeSformer from transformers, without which the test is skipped."""
    if encoder != "r3d18":
        require(encoder)
        return
    module: Any = None
    for name in ("torchvision", "torchvision.models", "torchvision.models.video"):
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        monkeypatch.setitem(sys.modules, name, module)
    module.r3d_18 = SmallR3D18


def require(encoder: str) -> None:
    """Skip a test where the module of an encoder is not installed, or cannot be imported."""
    module = MODULES[encoder]
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    try:
        importlib.import_module(module)
    except Exception as error:  # RuntimeError: torchvision beside another build of torch
        pytest.skip(f"{module} cannot be imported: {error}")
