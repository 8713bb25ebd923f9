"""The sections of the configuration about how and where a command runs; see ``sections.py``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from worldmodels import seeds
from worldmodels.config.choices import (
    Backend,
    Device,
    Engine,
    LoggerMode,
    Precision,
    Strategy,
    SweepMethod,
    Target,
)
from worldmodels.config.keys import MANY, number

_WEEK = 7 * 24 * 3600


@dataclass
class PlayConfig:
    """Page of stage=play."""

    port: int = number(8000, 0, 65_535)
    """Port on 127.0.0.1; 0: a free one."""


@dataclass
class WatchConfig:
    """An agent or a person in the environment: stage=watch."""

    engine: Engine = Engine.gymnasium
    """Simulator, as env.engine."""
    port: int = number(8001, 0, 65_535)
    """Port on 127.0.0.1 of the page; 0: a free one."""
    first_seed: int = number(0, 0, seeds.EVALUATION_END - 1)
    """Seed of the first episode; the next has the next seed."""
    episodes: int | None = number(None, 1, 100_000)
    """Episodes after which the stage ends; null: it goes on until Ctrl-C."""
    record: bool = False
    """Write the episodes in which a person drives as the run's rollouts; their seeds are those of
    collection."""


@dataclass
class SweepConfig:
    """Search for the best values of keys: stage=sweep."""

    target: Target = Target.vae
    """The stage that is tried with different values."""
    method: SweepMethod = SweepMethod.tpe
    """tpe: trials, whose values are chosen by the results so far; population: population-based
    training of the learning rate of vae or rnn."""
    space: dict[str, Any] = field(default_factory=dict)
    """Keys, each with a list of values or a range: {vae.batch_size: [32, 100], vae.learning_rate:
    {low: 1e-4, high: 1e-2, log: true}}."""
    metric: str | None = None
    """Name in metrics.csv of what is optimised; null: validation/loss, validation/nll of the rnn,
    selection/mean of controller and baseline (controller.optimizer=actor_critic has none). The
    lowest is best for vae and rnn, the highest for controller and baseline."""
    trials: int = number(20, 1, 100_000)
    """Trials in all, each a run in the folder of this one."""
    random_trials: int = number(5, 1, 100_000)
    """Trials with random values, before the others are chosen by the results so far."""
    early_stopping: bool = True
    """Stop a trial whose best value so far is worse than the median of those before it at the same
    epoch or evaluation."""
    members: int = number(8, 4, 256)
    """Members of a population, each of which trains for all epochs; they differ in their learning
    rates alone."""
    interval: int = number(1, 1, MANY, unit="epochs")
    """Epochs after which the worst quarter of a population is replaced by copies of the best."""


@dataclass
class TrainerConfig:
    """Training of the networks."""

    precision: Precision = Precision.auto
    """Arithmetic of the networks: auto is bfloat16 where the hardware has it."""
    devices: int = number(1, 1, 1024)
    """Processes on each node that train one model: one for each GPU, or with device=cpu, sharing
    the cores. A batch stays what vae.batch_size and rnn.batch_size say."""
    nodes: int = number(1, 1, 4096)
    """Nodes, on each of which torchrun or srun starts trainer.devices processes."""
    strategy: Strategy = Strategy.auto
    """auto: one process, or a process group for more; ddp: a process group always."""
    accumulate: int = number(1, 1, 8192)
    """Parts in which each process computes its rows of a batch, with gradients added up: less
    memory, the same result up to rounding. It grows by itself where memory does not suffice. One
    process on a CPU computes at least two, side by side."""
    compile: bool = False
    """Compile the loss with torch.compile, which takes a minute first and needs a C++ compiler."""
    checkpoint_seconds: float = number(30.0, 0, _WEEK, unit="seconds")
    """Time between checkpoints."""
    log_every: int = number(20, 1, 1_000_000, unit="steps")
    """Steps of the optimiser between log lines."""

    @property
    def grouped(self) -> bool:
        """Whether training joins a process group."""
        return self.devices * self.nodes > 1 or self.strategy is Strategy.ddp


@dataclass
class WorkersConfig:
    """Worker processes for episodes; neither their number nor their place changes a result."""

    backend: Backend = Backend.local
    """Where they are: local is this machine; ray is a Ray cluster, on whose CPUs they compute."""
    address: str = "auto"
    """Ray cluster: auto is that of $RAY_ADDRESS or one that runs on this machine; host:port of one
    that this machine is part of; ray://host:port of another; local starts one here for this
    command."""
    processes: int | None = number(None, 0, 1024)
    """Worker processes. 0: none, this process works (not with ray). null: one for each core, none
    for a world on a GPU; with ray one for each core of the cluster, also of machines that join it
    later."""
    device: Device = Device.cpu
    """Where episodes in the environment are played, with encoder and dynamics model; the learned
    model is a world on device. A GPU is worth it for a large env.num_envs and few cores; not with
    ray."""
    timeout: float = number(120.0, 0, _WEEK, above=True, unit="seconds")
    """Time without progress after which a worker is replaced."""


@dataclass
class LoggerConfig:
    """Metrics in addition to metrics.csv."""

    name: str = "csv"
    """Registered name of a tracker: tensorboard, wandb or one of another package; csv: none but
    metrics.csv."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of a tracker of another package."""
    project: str = "worldmodels"
    """Project at W&B."""
    mode: LoggerMode = LoggerMode.offline
    """Mode of W&B; offline needs no account."""


@dataclass
class MirrorConfig:
    """Copy of the run in store=."""

    interval: float = number(5.0, 0.05, 3600, unit="seconds")
    """Least time between two looks for new files."""
    cpu_share: float = number(0.02, 0, 1, above=True)
    """Share of one core that copying uses on average while stages run."""
    timeout: float = number(3600.0, 0, _WEEK, unit="seconds")
    """Time that the end of a finished run waits for the copy to be complete."""
    stop_timeout: float = number(60.0, 0, _WEEK, unit="seconds")
    """The same after SIGTERM, SIGINT or an error."""
