"""Recipes: small descriptions from which any process builds a world."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from gymnasium.vector import VectorEnv

from worldmodels.agent import load_first_latents, load_memory, load_vision
from worldmodels.envs.engines import EnvSpec, make_lanes
from worldmodels.worlds.dream import DreamWorld
from worldmodels.worlds.real import Perception, RealWorld


@dataclass(frozen=True)
class RealRecipe:
    """A `RealWorld`.

    Args:
        env: the environment and its engine.
        env_processes: processes that step it, when its worker is the only one.
        vision: file of V, or None for a world without features.
        memory: file of M, or None for features of V alone.
        sampled: see `Perception`.
        hidden_after: see `Perception`.
        use_cell: see `Perception`.
        device: of the models.
        bfloat16: V's arithmetic is bfloat16.
    """

    env: EnvSpec
    env_processes: int = 1
    vision: Path | None = None
    memory: Path | None = None
    sampled: bool = True
    hidden_after: bool = False
    use_cell: bool = False
    device: str = "cpu"
    bfloat16: bool = False

    def build(self) -> RealWorld:
        """Load the models and make the world."""
        device = torch.device(self.device)
        perception = Perception(
            vision=load_vision(self.vision).to(device) if self.vision else None,
            memory=load_memory(self.memory).to(device) if self.memory else None,
            sampled=self.sampled,
            hidden_after=self.hidden_after,
            use_cell=self.use_cell,
            device=device,
            dtype=torch.bfloat16 if self.bfloat16 else torch.float32,
        )
        return RealWorld(self._make_env, perception)

    def _make_env(self, lanes: int) -> VectorEnv:
        return make_lanes(self.env, lanes, self.env_processes, self.device)


@dataclass(frozen=True)
class DreamRecipe:
    """A `DreamWorld`.

    Args:
        memory: file of M, with the first latents that it was saved with.
        temperature: of the mixture.
        use_hidden: features hold M's hidden state.
        sampled: first latents are drawn from their posteriors.
        hidden_after: see `Perception`.
        use_cell: features hold M's cell state.
        device: of M and the lanes.
        bfloat16: M's products are bfloat16.
    """

    memory: Path
    temperature: float
    use_hidden: bool = True
    sampled: bool = True
    hidden_after: bool = False
    use_cell: bool = False
    device: str = "cpu"
    bfloat16: bool = False

    def build(self) -> DreamWorld:
        """Load the model and make the world."""
        return DreamWorld(
            load_memory(self.memory),
            load_first_latents(self.memory),
            self.temperature,
            self.use_hidden,
            self.sampled,
            self.hidden_after,
            self.use_cell,
            torch.device(self.device),
            torch.bfloat16 if self.bfloat16 else torch.float32,
        )


Recipe = RealRecipe | DreamRecipe
