"""The learned environment: the dynamics model, sampled at a temperature (paper, section 4)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from worldmodels.data.latents import FirstLatents
from worldmodels.models.dynamics import DynamicsModel, reset_rows, select_rows
from worldmodels.models.features import FeatureSpec
from worldmodels.worlds.noise import EpisodeNoise
from worldmodels.worlds.world import Step

START_STREAM, MIXTURE_STREAM, NORMAL_STREAM = 1, 2, 3


class DreamWorld:
    """Episodes in the dynamics model, each from the first latent of a recorded one.

    Args:
        dynamics: the model.
        first: first latents of recorded episodes; where they are sampled, `features` says so.
        temperature: of the latents' distribution (paper, section 4): higher is less certain, and
            harder to exploit.
        features: what the controller sees.
        device: of the model and of all tensors.
        dtype: of the model's products.
    """

    def __init__(
        self,
        dynamics: DynamicsModel,
        first: FirstLatents,
        temperature: float,
        features: FeatureSpec,
        device: torch.device = torch.device("cpu"),  # noqa: B008  (immutable)
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._dynamics = dynamics.to(device, dtype).eval()
        self._first_mean = torch.from_numpy(first.mean).to(device)
        self._first_std = torch.from_numpy(features.sampled * np.exp(0.5 * first.logvar)).to(device)
        self._temperature = temperature
        self._spec = features
        self.device = device
        self.feature_size = features.size(dynamics.latent_size, dynamics)

    @property
    def latents(self) -> Tensor:
        """z of the environments now: (num_envs, latent)."""
        return self._latents

    @torch.inference_mode()
    def reset(self, seeds: Sequence[int]) -> Tensor:
        """Begin one dream a seed; features (num_envs, features)."""
        return self.begin(self._begin(seeds), seeds)

    @torch.inference_mode()
    def begin(self, latents: Tensor, seeds: Sequence[int]) -> Tensor:
        """Begin one dream at each of `latents` (num_envs, latent); features (num_envs,
        features)."""
        self._uniform = EpisodeNoise(seeds, MIXTURE_STREAM, self.device)
        self._normal = EpisodeNoise(seeds, NORMAL_STREAM, self.device)
        self._latents = latents.to(self.device)
        self._state = self._dynamics.initial_state(len(seeds), self.device)
        self._actions = torch.zeros(len(seeds), self._dynamics.action_size, device=self.device)
        self._time = torch.zeros(len(seeds), dtype=torch.int64, device=self.device)
        return self.features()

    @torch.inference_mode()
    def step(self, actions: Tensor) -> Step:
        """Sample z_{t+1}, predict the reward, and terminate where that is likelier than not.

        With a model that does not predict rewards, each step that does not terminate is worth 1.

        Args:
            actions: (num_envs, action), in the environment's own ranges.
        """
        size = self._dynamics.latent_size
        self._state = self._dynamics.advance(self._latents, actions, self._state)
        prediction = self._dynamics.predict(self._state)
        uniform = self._uniform.uniform(self._time, size)
        normal = self._normal.normal(self._time, size)
        self._latents = prediction.latent.sample(uniform, normal, self._temperature)
        self._actions = actions
        self._time = self._time + 1
        terminated = (prediction.termination > 0).cpu().numpy()
        if self._dynamics.predicts_reward:
            reward = prediction.reward.cpu().double().numpy()
        else:
            reward = (~terminated).astype(np.float64)
        return Step(self.features(), reward, terminated, np.zeros_like(terminated))

    @torch.inference_mode()
    def features(self) -> Tensor:
        """What the controller sees now: (num_envs, features)."""
        return self._spec.features(self._latents, self._actions, self._state, self._dynamics)

    @torch.inference_mode()
    def restart(self, mask: np.ndarray, seeds: Sequence[int]) -> None:
        """Begin new dreams, one a seed, in the environments where `mask` (num_envs,) is True."""
        index = torch.from_numpy(mask).to(self.device)
        self._uniform.restart(index, seeds)
        self._normal.restart(index, seeds)
        self._latents[index] = self._begin(seeds)
        keep = (~index).unsqueeze(1)
        self._state = reset_rows(self._dynamics, self._state, index)
        self._actions = self._actions * keep
        self._time = self._time * ~index

    def keep(self, mask: np.ndarray) -> None:
        """Drop the environments where `mask` (num_envs,) is False."""
        index = torch.from_numpy(mask).to(self.device)
        self._latents, self._actions = self._latents[index], self._actions[index]
        self._state = select_rows(self._state, index)
        self._time = self._time[index]
        self._uniform.keep(index)
        self._normal.keep(index)

    def close(self) -> None:
        """Do nothing: there are no processes and no files."""

    def _begin(self, seeds: Sequence[int]) -> Tensor:
        """First latents (num_envs, latent): of an episode drawn by the seed, sampled by the
        seed."""
        start = EpisodeNoise(seeds, START_STREAM, self.device)
        chosen = (start.uniform(0, 1).squeeze(1) * len(self._first_mean)).long()  # (num_envs,)
        noise = start.normal(1, self._dynamics.latent_size)
        return self._first_mean[chosen] + self._first_std[chosen] * noise
