"""Jobs for workers, in a module that takes them no time to import."""

import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

from worldmodels.errors import WorldModelsError
from worldmodels.workers.jobs import READ, WRITTEN, Heartbeat


@dataclass(frozen=True)
class Tool:
    def build(self) -> str:
        return "tool"


@dataclass(frozen=True)
class LateTool:
    """A tool that is built once the file ``open`` is there."""

    folder: Path

    def build(self) -> str:
        while not (self.folder / "open").exists():
            time.sleep(0.02)
        return "tool"


@dataclass(frozen=True)
class Square:
    number: int

    def __call__(self, tool: str, heartbeat: Heartbeat) -> int:
        assert tool == "tool"
        heartbeat(1)
        return self.number**2


@dataclass(frozen=True)
class Arithmetic:
    """What decides how PyTorch rounds: its threads, and whether there are denormal numbers."""

    def __call__(self, tool: str, heartbeat: Heartbeat) -> tuple[int, bool]:
        import torch

        smallest = torch.full((64,), 1e-310, dtype=torch.float64)
        return torch.get_num_threads(), bool((smallest * 0.5 > 0).all())


@dataclass(frozen=True)
class Meet:
    """Waits until `count` workers of a cluster are at such a job, then for the file ``open``."""

    folder: Path
    count: int

    def __call__(self, tool: str, heartbeat: Heartbeat) -> int:
        import ray

        node = ray.get_runtime_context().get_node_id()
        (self.folder / f"met-{node}-{os.getpid()}").touch()
        while len(list(self.folder.glob("met-*"))) < self.count:
            heartbeat(1)
            time.sleep(0.02)
        while not (self.folder / "open").exists():
            heartbeat(1)
            time.sleep(0.02)
        return self.count


@dataclass(frozen=True)
class SlowOnce:
    """Never ends where it is tried first."""

    marker: Path

    def __call__(self, tool: str, heartbeat: Heartbeat) -> str:
        first = not self.marker.exists()
        self.marker.touch()
        while first:
            heartbeat(1)
            time.sleep(0.02)
        return "done"


@dataclass(frozen=True)
class StopOnce:
    """Its process is stopped the first time."""

    marker: Path

    def __call__(self, tool: str, heartbeat: Heartbeat) -> str:
        if not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGSTOP)
        return "awake"


@dataclass(frozen=True)
class Die:
    def __call__(self, tool: str, heartbeat: Heartbeat) -> None:
        os._exit(3)


@dataclass(frozen=True)
class Fail:
    def __call__(self, tool: str, heartbeat: Heartbeat) -> None:
        raise WorldModelsError("environment 3: the action is not finite")


@dataclass(frozen=True)
class Copy:
    source: Path = field(metadata=READ)
    target: Path = field(metadata=WRITTEN)

    def __call__(self, tool: str, heartbeat: Heartbeat) -> list[Path]:
        self.target.write_text(self.source.read_text().upper())
        return [self.source, self.target]
