"""What the measurements of one calibration share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from worldmodels.agents.folder import Agent, read_agent
from worldmodels.config.schema import Config
from worldmodels.runs.artifacts import Run
from worldmodels.stages.context import Context
from worldmodels.stages.runtime import Runtime


@dataclass(frozen=True)
class Setting:
    """The configuration that is calibrated, and where and how long.

    Args:
        config: of the run.
        folder: for files, which the caller removes.
        seconds: of the longest measurements; others take a fraction of it.
    """

    config: Config
    folder: Path
    seconds: float

    @cached_property
    def context(self) -> Context:
        """The configuration with the run in miniature."""
        return Context(self.config, Run(self.folder / "small"))

    @property
    def runtime(self) -> Runtime:
        """Device, precision, worker processes and environment."""
        return self.context.runtime

    def workers(self, device: str) -> int:
        """Worker processes for a world on a device; 1 where this process does the work itself."""
        return max(1, self.runtime.processes(device))

    @cached_property
    def agent(self) -> Agent:
        """The agent of the run in miniature, once that has its controller."""
        return read_agent(self.agent_folder)

    @property
    def agent_folder(self) -> Path:
        """The files of that agent."""
        return self.context.run.folder("controller") / "agent"
