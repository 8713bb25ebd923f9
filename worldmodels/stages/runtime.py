"""What a stage runs on: device, precision, worker processes and the environment."""

from __future__ import annotations

import logging
import warnings
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from worldmodels.agents.model_files import load_encoder
from worldmodels.config.choices import Backend, Engine, Precision
from worldmodels.config.environments import env_spec
from worldmodels.config.schema import Config, plain
from worldmodels.envs.action_spec import ActionBounds, ActionSpec, actions_of
from worldmodels.envs.engines import EnvSpec, make_vector_env, prepare
from worldmodels.errors import ConfigError
from worldmodels.models.features import FeatureSpec
from worldmodels.system.cores import available_cores
from worldmodels.system.devices import choose_device, device_in_words, has_bfloat16
from worldmodels.training import cpu, launch
from worldmodels.training.ranks import Ranks
from worldmodels.workers.jobs import Heartbeat, Pool
from worldmodels.workers.local import LocalPool
from worldmodels.worlds.members import SamplingRule
from worldmodels.worlds.specs import DreamWorldSpec, RealWorldSpec, WorldSpec

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@dataclass(frozen=True)
class Runtime:
    """Device, precision, worker processes and environment, as the configuration chooses them.

    Args:
        config: the whole configuration.
    """

    config: Config

    @property
    def device(self) -> torch.device:
        """The device that the models run on."""
        return choose_device(self.config.device.name)

    @property
    def real_device(self) -> torch.device:
        """The device that episodes in the environment are played on."""
        return choose_device(self.config.workers.device.name, "workers.device")

    @property
    def dream_device(self) -> torch.device:
        """The device of the learned model as a world; the machines of a cluster need no GPU."""
        return torch.device("cpu") if self._on_ray else self.device

    @property
    def bfloat16(self) -> bool:
        """Whether networks compute in bfloat16 while they are trained."""
        return self._bfloat16_on(self.device)

    @property
    def real_bfloat16(self) -> bool:
        """Whether networks compute in bfloat16 in episodes in the environment."""
        return self._bfloat16_on(self.real_device)

    @property
    def dream_bfloat16(self) -> bool:
        """Whether the learned model computes in bfloat16 as a world."""
        return self._bfloat16_on(self.dream_device)

    def in_words(self, device: torch.device) -> str:
        """A device and the arithmetic of networks there, for manifests."""
        return device_in_words(device, self._bfloat16_on(device))

    def ranks(self) -> AbstractContextManager[Ranks]:
        """The processes that train one model, this one being rank 0."""
        return launch.ranks(self.config.trainer, self.device)

    def fabric(self) -> Fabric:
        """Device and precision for training, within `ranks`."""
        trainer = self.config.trainer
        # It logs precisions and Slurm's srun, and sets its own level when imported.
        logging.getLogger("lightning_fabric").setLevel(logging.ERROR)
        warnings.filterwarnings("ignore", module="lightning_fabric")
        precision: Literal["bf16-mixed", "32-true"]
        precision = "bf16-mixed" if self.bfloat16 else "32-true"
        if self.device.type == "cpu":
            cpu.tune(launch.threads(trainer))
        return launch.make_fabric(trainer, self.device, precision)

    def env_spec(self, engine: Engine | None = None) -> EnvSpec:
        """The environment, on the configured engine or on another."""
        return env_spec(self.config.env, engine)

    def env_content(self, spec: EnvSpec) -> dict[str, object]:
        """The keys of the environment that determine recorded data, with their values."""
        keys = {f"env.{name}": plain(value) for name, value in vars(spec).items()}
        return keys | {"env.num_envs": self.config.env.num_envs}

    @cached_property
    def actions(self) -> ActionSpec:
        """The environment's own actions; makes the environment once to read them."""
        spec = self.env_spec()
        prepare(spec)
        with closing(make_vector_env(spec, 1)) as envs:
            return actions_of(envs)

    @property
    def controls(self) -> ActionBounds:
        """The vectors that a controller acts with.

        Raises:
            ConfigError: ``env.squash`` has another number of entries than there are actions.
        """
        env, controls = self.config.env, self.actions.bounds
        if env.squash is not None and len(controls.low) != len(env.squash):
            raise ConfigError(
                f"env.squash has {len(env.squash)} entries, {env.id} has"
                f" {len(controls.low)} actions"
            )
        return controls

    def processes(self, device: str) -> int:
        """Worker processes of this machine for a world on a device.

        One for each core; 0 on a GPU, where one large batch is faster than several small ones.
        """
        if self.config.workers.processes is not None:
            return self.config.workers.processes
        return available_cores() if device == "cpu" else 0

    def connect(self) -> None:
        """Connect to the cluster whose workers stages use, if the configuration names one.

        Raises:
            ConfigError: there is none, or one of another version.
        """
        if self._on_ray:
            # Imported here: Ray is optional.
            from worldmodels.workers.ray_cluster import connect

            workers = self.config.workers
            connect(workers.address, workers.processes or available_cores())

    def real(
        self,
        engine: Engine | None,
        encoder: Path | None = None,
        dynamics: Path | None = None,
        features: FeatureSpec = FeatureSpec(),  # noqa: B008  (immutable)
    ) -> RealWorldSpec:
        """How workers build the real environment as a world.

        Args:
            engine: of the environment; None is the configured one.
            encoder: its file; None for a world without features.
            dynamics: file of the dynamics model, where features contain its state.
            features: of the controller.

        Raises:
            ConfigError: the encoder takes frames of another size than those of the environment.
        """
        spec = self.env_spec(engine)
        if encoder is not None and (taken := load_encoder(encoder).frame_size) != spec.size:
            raise ConfigError(
                f"env.size={spec.size}: the encoder {encoder} takes frames of {taken} pixels;"
                f" choose env.size={taken}"
            )
        device = str(self.real_device)
        prepare(spec, device)
        return RealWorldSpec(
            env=spec,
            env_processes=1 if self._on_ray or self.processes(device) else available_cores(),
            encoder=encoder,
            dynamics=dynamics,
            features=features,
            device=device,
            bfloat16=self.real_bfloat16,
            compiles=self._on_ray,
        )

    def dream(
        self,
        dynamics: Path,
        features: FeatureSpec,
        temperature: float,
        rule: SamplingRule,
        starts: Path | None,
    ) -> DreamWorldSpec:
        """How workers build the learned model as a world.

        Args:
            dynamics: file of the dynamics model.
            features: of the controller.
            temperature: of the distribution of the next latent.
            rule: how predictions become steps.
            starts: file of moments at which episodes begin; None for first latents.
        """
        return DreamWorldSpec(
            dynamics=dynamics,
            temperature=temperature,
            features=features,
            device=str(self.dream_device),
            bfloat16=self.dream_bfloat16,
            rule=rule,
            starts=starts,
        )

    def pool(
        self, world_spec: WorldSpec, on_steps: Heartbeat = lambda steps: None, jobs: int = 10**9
    ) -> Pool[Any]:
        """Workers that each build the world of `world_spec`; at most one per job.

        Args:
            world_spec: of the world.
            on_steps: called with the number of environment steps that a worker reports.
            jobs: how many jobs there will be.
        """
        timeout = self.config.workers.timeout
        if not self._on_ray:
            processes = self.processes(world_spec.device)
            return LocalPool(world_spec, min(processes, jobs), timeout, on_steps)
        self.connect()
        from worldmodels.workers.ray_pool import RayPool

        return RayPool(world_spec, self.config.workers.processes, timeout, on_steps)

    @property
    def _on_ray(self) -> bool:
        return self.config.workers.backend is Backend.ray

    def _bfloat16_on(self, device: torch.device) -> bool:
        choice = self.config.trainer.precision
        return has_bfloat16(device) if choice is Precision.auto else choice is Precision.bfloat16
