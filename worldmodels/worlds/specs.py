"""Picklable descriptions from which a worker process builds its world."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch
from gymnasium.vector import VectorEnv

from worldmodels.agents.distillation_file import load_distillation
from worldmodels.agents.model_files import (
    load_dynamics,
    load_encoder,
    load_first_latents,
    load_members,
)
from worldmodels.agents.starts_file import load_starts
from worldmodels.data.latents import FirstLatents
from worldmodels.data.starts import Starts
from worldmodels.envs.engines import EnvSpec, make_vector_env, prepare
from worldmodels.envs.mirror import MirroredEpisodes, Mirroring
from worldmodels.models.dynamics import DynamicsModel
from worldmodels.models.features import FeatureSpec
from worldmodels.workers.jobs import READ
from worldmodels.worlds.dream import DreamWorld
from worldmodels.worlds.members import SamplingRule
from worldmodels.worlds.novelty import NoveltyWorld
from worldmodels.worlds.real import Perception, RealWorld


@dataclass(frozen=True)
class RealWorldSpec:
    """What a worker builds a `RealWorld` from.

    Args:
        env: the environment and its engine.
        env_processes: processes that step it, if there is one worker only.
        encoder: its file, or None for a world without features.
        dynamics: file of the dynamics model; it is read only if `features` contain its state.
        features: input of the controller.
        device: of the models.
        bfloat16: the encoder computes in bfloat16.
        compiles: compile the engine first, if it is compiled and that was not done on this machine.
        mirroring: of some of the episodes; None for the environment alone.
    """

    env: EnvSpec
    env_processes: int = 1
    encoder: Path | None = field(default=None, metadata=READ)
    dynamics: Path | None = field(default=None, metadata=READ)
    features: FeatureSpec = FeatureSpec()  # noqa: RUF009  (immutable)
    device: str = "cpu"
    bfloat16: bool = False
    compiles: bool = False
    mirroring: Mirroring | None = None

    def build(self) -> RealWorld:
        """Load the models and make the world.

        Raises:
            ArtifactError: a file of a model is missing or damaged.
        """
        if self.compiles:
            prepare(self.env, self.device)
        return RealWorld(self._make_env, self.perception())

    def perception(self) -> Perception:
        """The models; raises `ArtifactError` where a file is missing or damaged."""
        device = torch.device(self.device)
        return Perception(
            encoder=load_encoder(self.encoder).to(device) if self.encoder else None,
            dynamics=(
                load_dynamics(self.dynamics).to(device)
                if self.dynamics and self.features.state
                else None
            ),
            features=self.features,
            device=device,
            dtype=torch.bfloat16 if self.bfloat16 else torch.float32,
        )

    def _make_env(self, num_envs: int) -> VectorEnv:
        env = make_vector_env(self.env, num_envs, self.env_processes, self.device)
        return env if self.mirroring is None else MirroredEpisodes(env, self.mirroring)


@dataclass(frozen=True)
class DreamWorldSpec:
    """What a worker builds a `DreamWorld` from.

    Args:
        dynamics: file of the dynamics model, with the first latents that it was saved with.
        temperature: of the distribution of the next latent.
        features: input of the controller.
        device: of the model and of all tensors.
        bfloat16: the model computes its matrix products in bfloat16.
        rule: how predictions become steps.
        starts: file of moments at which episodes begin; None for the first latents.
    """

    dynamics: Path = field(metadata=READ)
    temperature: float
    features: FeatureSpec
    device: str = "cpu"
    bfloat16: bool = False
    rule: SamplingRule = SamplingRule()  # noqa: RUF009  (immutable)
    starts: Path | None = field(default=None, metadata=READ)

    def build(self) -> DreamWorld:
        """Load the model and make the world.

        Raises:
            ArtifactError: a file is missing or damaged.
        """
        dynamics, *others = load_members(self.dynamics)
        return DreamWorld(
            dynamics,
            self._begin(dynamics),
            self.temperature,
            self.features,
            torch.device(self.device),
            torch.bfloat16 if self.bfloat16 else torch.float32,
            others,
            self.rule,
        )

    def _begin(self, dynamics: DynamicsModel) -> FirstLatents | Starts:
        if self.starts is None:
            return load_first_latents(self.dynamics)
        return load_starts(self.starts, dynamics.latent_size, dynamics.action_size)


@dataclass(frozen=True)
class NoveltyWorldSpec:
    """What a worker builds a `NoveltyWorld` from.

    Args:
        dream: the learned model.
        distillation: file of the networks; None for the variance of an ensemble's members.
    """

    dream: DreamWorldSpec
    distillation: Path | None = field(default=None, metadata=READ)

    @property
    def device(self) -> str:
        """Of the models and of all tensors."""
        return self.dream.device

    def build(self) -> NoveltyWorld:
        """Load models and networks and make the world.

        Raises:
            ArtifactError: a file is missing or damaged.
        """
        dream = self.dream.build()
        if self.distillation is None:
            return NoveltyWorld(dream)
        return NoveltyWorld(dream, load_distillation(self.distillation, dream.latent_size))


WorldSpec = RealWorldSpec | DreamWorldSpec | NoveltyWorldSpec
