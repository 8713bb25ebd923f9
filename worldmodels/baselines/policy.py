"""The policy of a baseline in the rollouts of this project, from its file."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from stable_baselines3.common.policies import BasePolicy
from torch import Tensor

from worldmodels.baselines.algorithms import PolicySpec
from worldmodels.baselines.frames import FrameStack
from worldmodels.errors import ArtifactError
from worldmodels.files import weights
from worldmodels.workers.jobs import READ
from worldmodels.worlds.real import RealWorld
from worldmodels.worlds.rollout import Policy
from worldmodels.worlds.world import World


def save_policy(path: Path, policy: BasePolicy) -> None:
    """Write the weights of a policy; raises `ArtifactError` where that fails."""
    weights.save(path, {"policy": policy.state_dict()})


def load_policy(path: Path, spec: PolicySpec) -> BasePolicy:
    """Read a policy.

    Args:
        path: of its weights.
        spec: of its network.

    Raises:
        ArtifactError: the file is missing, damaged, or of another network.
    """
    tree = weights.load(path)
    try:
        policy = spec.build()
        policy.load_state_dict(tree["policy"])
    except (KeyError, TypeError, AttributeError, RuntimeError, AssertionError) as error:
        raise ArtifactError(
            f"{path}: is not of this network; give the keys env.* of its training, or make its"
            " stage again with overwrite=true"
        ) from error
    policy.set_training_mode(False)
    return policy


@dataclass(frozen=True)
class BaselinePolicy:
    """A trained baseline that acts without exploration.

    Args:
        path: of its weights.
        spec: of its network.
    """

    path: Path = field(metadata=READ)
    spec: PolicySpec

    def policy(self, world: World, seeds: tuple[int, ...]) -> Policy:
        """The policy for one environment per seed.

        Args:
            world: that it acts in.
            seeds: not used: it draws nothing.

        Raises:
            ArtifactError: the file is missing, damaged, or of another network.
        """
        network = load_policy(self.path, self.spec).to(world.device)
        if self.spec.frame_stack is None:
            return _FeaturePolicy(network, self.spec)
        assert isinstance(world, RealWorld)
        return _FramePolicy(network, self.spec, world, self.spec.frame_stack)


class _FeaturePolicy:
    """Acts on the features of a world."""

    def __init__(self, network: BasePolicy, spec: PolicySpec) -> None:
        self._network, self._actions = network, spec.actions

    def act(self, features: Tensor) -> Tensor:
        chosen, _ = self._network.predict(features.cpu().numpy(), deterministic=True)
        return torch.from_numpy(self._actions.vectors(chosen)).to(features.device)

    def keep(self, mask: np.ndarray) -> None:
        pass


class _FramePolicy:
    """Acts on the latest frames of the environment."""

    def __init__(
        self, network: BasePolicy, spec: PolicySpec, world: RealWorld, frame_stack: int
    ) -> None:
        self._network, self._actions, self._world = network, spec.actions, world
        self._frames = FrameStack(frame_stack)
        self._begun = False

    def act(self, features: Tensor) -> Tensor:
        add = self._frames.add if self._begun else self._frames.begin
        self._begun = True
        chosen, _ = self._network.predict(add(self._world.frames), deterministic=True)
        return torch.from_numpy(self._actions.vectors(chosen)).to(features.device)

    def keep(self, mask: np.ndarray) -> None:
        self._frames.keep(mask)
