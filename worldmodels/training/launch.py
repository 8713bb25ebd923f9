"""Who starts the processes of one training: torchrun, Slurm's srun, or this program.

With ``trainer.devices`` and ``trainer.nodes`` at 1, training is in this process. Otherwise the
processes are those that torchrun or srun has started, or rank 0 starts the others of its node for
the duration of a training. Lightning Fabric then finds ranks, addresses and devices.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # exported at run time only

from worldmodels.config.execution import TrainerConfig
from worldmodels.errors import ConfigError, TrainingError
from worldmodels.system import environment
from worldmodels.system.cores import available_cores
from worldmodels.system.launchers import started
from worldmodels.training.ranks import ALONE, Ranks

if TYPE_CHECKING:
    from lightning_fabric import Fabric
    from lightning_fabric.plugins.environments.cluster_environment import ClusterEnvironment

_EVER = timedelta(days=365)
"""How long a rank waits while rank 0 runs other stages."""
_END_SECONDS = 60
"""After so long a process that was asked to end is killed."""
_FOLLOWER = "worldmodels.stages.follower"


def check(trainer: TrainerConfig, device: str) -> None:
    """Raise `ConfigError` for processes that cannot be had here.

    Args:
        trainer: the keys.
        device: the value of the key ``device``.
    """
    devices, nodes, found = trainer.devices, trainer.nodes, started()
    if found is not None and found.by == "srun" and not trainer.grouped:
        return  # tasks that have nothing to do with one another
    if found is not None and (found.local, found.total) != (devices, devices * nodes):
        raise ConfigError(
            f"trainer.devices={devices}: {found.by} has started {found.local} processes on this"
            f" node and {found.total} in all; give trainer.devices={found.local}"
            f" trainer.nodes={found.nodes}, or start {devices * nodes} in all"
        )
    if found is None and nodes > 1:
        raise ConfigError(
            f"trainer.nodes={nodes}: this command runs on one node; start it with torchrun or srun"
            " on all of them (docs/gpus.md), or give trainer.nodes=1"
        )
    if not trainer.grouped:
        return
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device == "mps" and devices > 1:
        raise ConfigError(
            f"trainer.devices={devices}: device=mps is one GPU; give trainer.devices=1"
        )
    if device == "auto" and gpus == 0 and devices > 1:
        raise ConfigError(
            f"trainer.devices={devices}: torch sees no GPU here; give trainer.devices=1, or"
            f" device=cpu for {devices} processes on the CPU"
        )
    if device in ("auto", "cuda") and 0 < gpus < devices:
        raise ConfigError(
            f"trainer.devices={devices}: torch sees {gpus} GPUs here; choose at most {gpus}"
        )


def threads(trainer: TrainerConfig) -> int:
    """Threads of each process on a CPU: its share of the cores of this node."""
    cores = available_cores()
    found = started()
    node = int(os.environ.get("SLURM_CPUS_ON_NODE", cores)) if found else cores
    return max(1, min(cores, node // trainer.devices)) if trainer.grouped else cores


_connected: Ranks | None = None
"""The processes that torchrun or srun has started, where this is one of them."""


@contextlib.contextmanager
def ranks(trainer: TrainerConfig, device: torch.device) -> Iterator[Ranks]:
    """The processes of a training, seen from rank 0; those that this program starts end with it.

    Args:
        trainer: the keys.
        device: of the models.

    Raises:
        TrainingError: a process did not start.
    """
    if not trainer.grouped:
        yield ALONE
        return
    computing = torch.get_num_threads()
    try:
        if _connected is not None:
            yield _connected
        else:
            with environment.kept(), _own_processes(trainer, device) as made:
                yield made
    finally:
        torch.set_num_threads(computing)


@contextlib.contextmanager
def connected(device: torch.device) -> Iterator[Ranks]:
    """The processes that torchrun or srun has started, for the duration of the command."""
    global _connected
    found = started()
    assert found is not None
    with environment.kept():
        if found.by == "srun":
            # Fabric compares these with its arguments; only --ntasks-per-node sets the first.
            os.environ["SLURM_NTASKS_PER_NODE"] = str(found.local)
            os.environ["SLURM_NTASKS"] = str(found.total)
            os.environ["SLURM_NNODES"] = str(found.nodes)
        if found.nodes == 1:
            os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
            _use_loopback()
        cluster = _cluster()
        os.environ |= {
            "MASTER_ADDR": cluster.main_address,
            "MASTER_PORT": str(cluster.main_port),
        }
        if device.type == "cuda":
            torch.cuda.set_device(cluster.local_rank())
        distributed.init_process_group(_backend(device), rank=found.rank, world_size=found.total)
        try:
            _connected = Ranks(found.rank, found.total, _control_group())
            yield _connected
        finally:
            _connected = None
            distributed.destroy_process_group()


def make_fabric(trainer: TrainerConfig, device: torch.device, precision: Any) -> Fabric:
    """Fabric for the processes of `ranks` or `connected`, or for this one alone.

    Args:
        trainer: the keys.
        device: of the models.
        precision: Fabric's name of it.
    """
    # Imported here: it takes as long as all other imports, and few stages train.
    from lightning_fabric import Fabric
    from lightning_fabric.plugins.environments.lightning import LightningEnvironment
    from lightning_fabric.strategies.ddp import DDPStrategy

    if not trainer.grouped:
        # Named explicitly: in a Slurm job Fabric would otherwise wait for all tasks of the job.
        alone = LightningEnvironment()
        return Fabric(accelerator=device.type, devices=1, precision=precision, plugins=[alone])
    made = Fabric(
        accelerator=device.type,
        devices=trainer.devices,
        num_nodes=trainer.nodes,
        strategy=DDPStrategy(),
        precision=precision,
        plugins=[_cluster()],
    )
    with environment.kept():  # Fabric sets the number of threads there where it is not set
        os.environ.setdefault("OMP_NUM_THREADS", str(threads(trainer)))
        made.launch()
    return made


def _cluster() -> ClusterEnvironment:
    from lightning_fabric.plugins.environments.lightning import LightningEnvironment
    from lightning_fabric.plugins.environments.slurm import SLURMEnvironment
    from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment

    found = started()
    if found is None:
        return LightningEnvironment()
    return TorchElasticEnvironment() if found.by == "torchrun" else SLURMEnvironment()


@contextlib.contextmanager
def _own_processes(trainer: TrainerConfig, device: torch.device) -> Iterator[Ranks]:
    """Start the other ranks of this node, and end them."""
    size = trainer.devices
    _use_loopback()
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    count = os.environ.get("OMP_NUM_THREADS", str(threads(trainer)))
    processes = [_start(rank, size, store.port, device, count) for rank in range(1, size)]
    os.environ["LOCAL_RANK"] = "0"  # or Fabric starts them as well
    try:
        for rank, process in enumerate(processes, start=1):
            assert process.stdout is not None
            if not process.stdout.readline():
                raise TrainingError(
                    f"trainer.devices={size}: process {rank} ended while it started (exit code"
                    f" {process.wait()}); its output says why"
                )
        made = _join(0, size, store, device)
        yield made
        made.call({"code": 0})
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECONDS)
    finally:
        for process in processes:
            process.kill()  # it writes nothing, so nothing is lost
            process.communicate()
        if distributed.is_initialized():
            distributed.destroy_process_group()


def _start(
    rank: int, size: int, port: int, device: torch.device, count: str
) -> subprocess.Popen[bytes]:
    variables = {"LOCAL_RANK": str(rank), "OMP_NUM_THREADS": count}
    words = [str(rank), str(size), str(port), device.type]
    return subprocess.Popen(
        [sys.executable, "-m", _FOLLOWER, *words],
        stdin=subprocess.PIPE,  # it ends when this process does, however that ends
        stdout=subprocess.PIPE,
        env=os.environ | variables,
        start_new_session=True,  # Ctrl-C reaches rank 0 alone, which ends the others
    )


@contextlib.contextmanager
def joined(rank: int, size: int, port: int, device: torch.device) -> Iterator[Ranks]:
    """The process group of the rank 0 that has started this process, for as long as it trains.

    Args:
        rank: of this process.
        size: number of processes.
        port: of rank 0, on this machine.
        device: that this process computes on.
    """
    _use_loopback()
    try:
        yield _join(rank, size, TCPStore("127.0.0.1", port), device)
    finally:
        # A thread of gloo that still runs while the interpreter ends aborts the process.
        if distributed.is_initialized():
            distributed.destroy_process_group()


def _join(rank: int, size: int, store: TCPStore, device: torch.device) -> Ranks:
    if device.type == "cuda":
        torch.cuda.set_device(rank)
    distributed.init_process_group(_backend(device), store=store, rank=rank, world_size=size)
    return Ranks(rank, size, _control_group())


def _control_group() -> distributed.ProcessGroup:
    """A group of all ranks for messages between them, also on GPUs."""
    group = distributed.new_group(backend="gloo", timeout=_EVER)
    assert isinstance(group, distributed.ProcessGroup)
    return group


def _backend(device: torch.device) -> str:
    return "nccl" if device.type == "cuda" else "gloo"


def _use_loopback() -> None:
    """Let gloo connect processes of one machine whatever its host name resolves to."""
    for _, name in socket.if_nameindex():
        if name in ("lo", "lo0"):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
