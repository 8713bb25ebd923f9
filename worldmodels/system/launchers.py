"""What torchrun and Slurm's srun tell a process that they have started as one of several."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Started:
    """A process among those that were started together.

    Args:
        by: the program that has started them.
        rank: of this process among all, from 0.
        local_rank: of this process among those of this node, from 0.
        local: number of processes on this node.
        total: number of all processes.
    """

    by: str
    rank: int
    local_rank: int
    local: int
    total: int

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return self.total // self.local


def started() -> Started | None:
    """How this process was started as one of several; None where it was not."""
    read = os.environ
    if "TORCHELASTIC_RUN_ID" in read:
        names = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE")
        found = Started("torchrun", *(int(read[name]) for name in names))
    elif "SLURM_STEP_NUM_TASKS" in read and "SLURM_PROCID" in read:
        total, nodes = int(read["SLURM_STEP_NUM_TASKS"]), int(read.get("SLURM_STEP_NUM_NODES", 1))
        rank, local_rank = int(read["SLURM_PROCID"]), int(read["SLURM_LOCALID"])
        found = Started("srun", rank, local_rank, max(1, total // nodes), total)
    else:
        return None
    return found if found.total > 1 else None
