"""Take away what not every system has; Python runs this first where it lies in ``PYTHONPATH``."""

import ctypes
import os
import signal
from pathlib import Path
from typing import Any

for module, names in {
    os: ("sched_getaffinity", "sched_setaffinity", "setpgid", "killpg", "getpgid"),
    signal: ("pthread_sigmask",),
}.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)

_libraries = ctypes.CDLL


class _WithoutMallopt(_libraries):
    def __getattr__(self, name: str) -> Any:
        if name == "mallopt":
            raise AttributeError(name)
        return super().__getattr__(name)


ctypes.CDLL = _WithoutMallopt  # type: ignore[misc]  # replaced on purpose


def _outside_proc(method: Any) -> Any:
    def checked(path: Path, *arguments: Any, **keywords: Any) -> Any:
        if path.parts[:2] == ("/", "proc"):
            raise FileNotFoundError(path)
        return method(path, *arguments, **keywords)

    return checked


# What psutil reads there, it reads by other means on other systems.
Path.read_text = _outside_proc(Path.read_text)  # type: ignore[method-assign]  # replaced on purpose
Path.write_text = _outside_proc(Path.write_text)  # type: ignore[method-assign]  # replaced on purpose
