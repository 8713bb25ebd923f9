"""Compilation of a loss with `torch.compile`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from shutil import which
from typing import ParamSpec, TypeVar

import torch

from worldmodels.errors import ConfigError

P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """`function`, compiled when it is first called; it draws the random numbers that it did."""
    # Without the option, compiled code has a random generator of its own.
    made: Callable[P, R] = torch.compile(function, options={"fallback_random": True})
    return made


def check(device: torch.device) -> None:
    """Raise `ConfigError` where there is nothing to compile with for `device`."""
    if device.type == "cuda":
        if find_spec("triton") is None:
            raise ConfigError(
                "trainer.compile=true: the Python module triton is not installed; install it, or"
                " give trainer.compile=false"
            )
        return
    compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    if which(compiler) is None:
        raise ConfigError(
            f"trainer.compile=true: there is no C++ compiler here ({compiler}); install one, or"
            " give trainer.compile=false"
        )
