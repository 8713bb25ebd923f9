"""The dynamics model as an environment, sampled at a temperature (paper, section 4)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from worldmodels.data.latents import FirstLatents
from worldmodels.data.starts import Starts
from worldmodels.models.dynamics import DynamicsModel, State, select_rows, unweighted
from worldmodels.models.ensemble import Ensemble
from worldmodels.models.features import FeatureSpec
from worldmodels.system.spent import spending
from worldmodels.worlds.members import Members, SamplingRule
from worldmodels.worlds.noise import EpisodeNoise
from worldmodels.worlds.starts import beginnings
from worldmodels.worlds.world import Step

START_STREAM, MIXTURE_STREAM, NORMAL_STREAM, TERMINATION_STREAM = 1, 2, 3, 5


class DreamWorld:
    """Episodes in the dynamics model; each starts from a recorded one: its first latent, or another
    moment of it.

    Shapes are in the letters of docs/shapes.md: N environments, A action, F features, Z latent.

    Args:
        dynamics: the model, whose state is in the features; of an ensemble the first member.
        starts: first latents of recorded episodes, or moments of them; sampled where
            ``features.sampled``, else their means are used.
        temperature: of the distribution of the next latent (paper, section 4): above 1 it is less
            certain, and its errors are harder to exploit.
        features: input of the controller.
        device: of the model and of all tensors.
        dtype: of the model's matrix products.
        others: the other members of an ensemble, of the same class and sizes.
        rule: how predictions become steps.
    """

    def __init__(
        self,
        dynamics: DynamicsModel,
        starts: FirstLatents | Starts,
        temperature: float,
        features: FeatureSpec,
        device: torch.device = torch.device("cpu"),  # noqa: B008  (immutable)
        dtype: torch.dtype = torch.float32,
        others: Sequence[DynamicsModel] = (),
        rule: SamplingRule = SamplingRule(),  # noqa: B008  (immutable)
    ) -> None:
        self._dynamics = dynamics.to(device, dtype).eval()
        members = [self._dynamics, *(model.to(device, dtype).eval() for model in others)]
        self._ensemble = Ensemble(members)
        self._members = Members(self._ensemble, rule, device)
        self._starts = beginnings(starts, members, features.sampled, device)
        self._own_temperature, self._rule = temperature, rule
        self._spec = features
        self.device = device
        self.feature_size = features.size(dynamics.latent_size, dynamics)
        self.latent_size = dynamics.latent_size

    @property
    def latents(self) -> Tensor:
        """The current latents z_t: (N, Z) float32."""
        return self._latents

    @torch.inference_mode()
    def reset(self, seeds: Sequence[int], temperature: float | None = None) -> Tensor:
        """Start one episode per seed from a start that the seed chooses.

        Args:
            seeds: of the N episodes.
            temperature: of these episodes; None for that of the world.

        Returns:
            features (N, F) float32.
        """
        latents, actions, state = self._begin(seeds)
        return self.begin(latents, seeds, state, actions, temperature)

    @torch.inference_mode()
    def begin(
        self,
        latents: Tensor,
        seeds: Sequence[int],
        state: State | None = None,
        actions: Tensor | None = None,
        temperature: float | None = None,
    ) -> Tensor:
        """Start episodes from given latents.

        Args:
            latents: z_0 of each episode, (N, Z) float32.
            seeds: of the N episodes; they determine all samples.
            state: of the model before z_0, N rows; None for that of an episode's start.
            actions: before z_0, (N, A) float32; None for zeros.
            temperature: of these episodes; None for that of the world.

        Returns:
            features (N, F) float32.
        """
        self._temperature = self._own_temperature if temperature is None else temperature
        self._uniform = EpisodeNoise(seeds, MIXTURE_STREAM, self.device)
        self._normal = EpisodeNoise(seeds, NORMAL_STREAM, self.device)
        self._termination = EpisodeNoise(seeds, TERMINATION_STREAM, self.device)
        self._latents = latents.to(self.device)
        self._members.begin(seeds)
        if state is None:
            state = self._ensemble.initial_state(len(seeds), self.device)
        self._state = state
        if actions is None:
            actions = torch.zeros(len(seeds), self._dynamics.action_size, device=self.device)
        self._actions = actions
        self._time = torch.zeros(len(seeds), dtype=torch.int64, device=self.device)
        return self.features()

    @torch.inference_mode()
    def step(self, actions: Tensor) -> Step:
        """Sample z_{t+1}, predict the reward, and terminate where the predicted logit is above 0;
        with `sampled_termination`, with the probability of `unweighted` logits.

        With a model that does not predict rewards, the reward of each step that does not terminate
        is the number of the simulator's steps, `SamplingRule.frame_skip`. What the members of an
        ensemble do is in `worldmodels.worlds.members`. No step is truncated: `rollout` and
        `DreamVectorEnv` have the time limit. Episodes that have ended continue until they are
        dropped by `keep` or replaced by `restart`.

        Args:
            actions: a_t, (N, A) float32, in the ranges of the environment's action space.

        Returns:
            features of t + 1 (N, F) float32; rewards (N,) float64; terminated and truncated (N,)
            bool.
        """
        size = self._dynamics.latent_size
        with spending("predicting"):
            self._state = self._ensemble.advance(self._latents, actions, self._state)
            uniform = self._uniform.uniform(self._time, size)
            normal = self._normal.normal(self._time, size)
            imagined = self._members.imagine(
                self._state, self._time, uniform, normal, self._temperature
            )
        self._latents, self._actions = imagined.latents, actions
        terminated = self._terminated(imagined.termination)
        reward = imagined.reward
        if reward is None:
            reward = self._rule.frame_skip * (~terminated).astype(np.float64)
        self._time = self._time + 1
        truncated = np.zeros_like(terminated)
        return Step(self.features(), reward, terminated, truncated, imagined.disagreement)

    @torch.inference_mode()
    def predicted_variance(self) -> Tensor:
        """The variance over the members of an ensemble of the means that they predicted for the
        present latents, averaged over the dimensions: (N,). After `reset` there are none yet."""
        return self._ensemble.variance(self._state).mean(dim=-1)

    def _terminated(self, logits: Tensor) -> np.ndarray:
        """Which episodes terminate, (N,) bool, from logits (N,)."""
        if not self._rule.sampled_termination:
            return (logits > 0).cpu().numpy()
        drawn = self._termination.uniform(self._time, 1).squeeze(1)
        return (drawn < unweighted(self._dynamics, logits).sigmoid()).cpu().numpy()

    @torch.inference_mode()
    def features(self) -> Tensor:
        """The current features: (N, F) float32."""
        state = self._ensemble.first(self._state)
        return self._spec.features(self._latents, self._actions, state, self._dynamics)

    @torch.inference_mode()
    def restart(self, mask: np.ndarray, seeds: Sequence[int]) -> None:
        """Start new episodes in some environments.

        Args:
            mask: (N,) bool, the environments whose episode is replaced.
            seeds: one for each True of `mask`, in order.
        """
        index = torch.from_numpy(mask).to(self.device)
        self._uniform.restart(index, seeds)
        self._normal.restart(index, seeds)
        self._termination.restart(index, seeds)
        self._members.restart(index, seeds)
        # These are the caller's: the actions it gave, and latents are features that it was given.
        self._latents, self._actions = self._latents.clone(), self._actions.clone()
        self._latents[index], self._actions[index], begun = self._begin(seeds)
        if begun is None:
            begun = self._ensemble.initial_state(len(seeds), self.device)
        for part, first in zip(self._state, begun, strict=True):
            part[index] = first
        self._time = self._time * ~index

    def keep(self, mask: np.ndarray) -> None:
        """Drop the environments where `mask` (N,) bool is False."""
        index = torch.from_numpy(mask).to(self.device)
        self._latents, self._actions = self._latents[index], self._actions[index]
        self._state = select_rows(self._state, index)
        self._time = self._time[index]
        self._uniform.keep(index)
        self._normal.keep(index)
        self._termination.keep(index)
        self._members.keep(index)

    def close(self) -> None:
        """Do nothing: there are no processes and no files."""

    def _begin(self, seeds: Sequence[int]) -> tuple[Tensor, Tensor, State | None]:
        """z_t (N, Z), a_{t-1} (N, A) and the state before z_t, N rows or None for the initial one:
        the seed chooses the start and samples its posterior."""
        starts, noise = self._starts, EpisodeNoise(seeds, START_STREAM, self.device)
        chosen = (noise.uniform(0, 1).squeeze(1) * len(starts.mean)).long()  # (N,)
        normal = noise.normal(1, self._dynamics.latent_size)
        latents = starts.mean[chosen] + starts.std[chosen] * normal
        state = None if starts.state is None else select_rows(starts.state, chosen)
        return latents, starts.actions[chosen], state
