"""The dream: M alone, sampled at a temperature (paper, section 4)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from worldmodels.data.latents import FirstLatents
from worldmodels.models.mdnrnn import MDNRNN, State
from worldmodels.worlds.noise import LaneNoise
from worldmodels.worlds.world import Step

START_STREAM, MIXTURE_STREAM, NORMAL_STREAM = 1, 2, 3


class DreamWorld:
    """Imagined episodes, each begun from a recorded first latent.

    Args:
        memory: M.
        first: where dreams begin.
        temperature: of the mixture (paper, section 4): higher is less certain, and harder to
            exploit.
        use_hidden: the controller sees M's hidden state beside z.
        use_cell: and M's cell state.
        sampled: first latents are drawn from their posteriors; as in `Perception`.
        hidden_after: as in `Perception`.
        device: of M and the lanes.
        dtype: of M's products.
    """

    def __init__(
        self,
        memory: MDNRNN,
        first: FirstLatents,
        temperature: float,
        use_hidden: bool = True,
        sampled: bool = True,
        hidden_after: bool = False,
        use_cell: bool = False,
        device: torch.device = torch.device("cpu"),  # noqa: B008  (immutable)
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._memory = memory.to(device, dtype).eval()
        self._first_mean = torch.from_numpy(first.mean).to(device)
        self._first_std = torch.from_numpy(sampled * np.exp(0.5 * first.logvar)).to(device)
        self._temperature = temperature
        self._use_hidden, self._use_cell = use_hidden, use_cell
        self._hidden_after = hidden_after
        self.device = device
        self.feature_size = memory.latent_size + memory.hidden_size * (use_hidden + use_cell)

    @property
    def latents(self) -> Tensor:
        """z of the lanes now: (lanes, latent)."""
        return self._latents

    @torch.inference_mode()
    def reset(self, seeds: Sequence[int]) -> Tensor:
        """Begin one dream a seed; features (lanes, features)."""
        return self.begin(self._begin(seeds), seeds)

    @torch.inference_mode()
    def begin(self, latents: Tensor, seeds: Sequence[int]) -> Tensor:
        """Begin one dream at each of `latents` (lanes, latent); features (lanes, features)."""
        self._uniform = LaneNoise(seeds, MIXTURE_STREAM, self.device)
        self._normal = LaneNoise(seeds, NORMAL_STREAM, self.device)
        self._latents = latents.to(self.device)
        self._state = self._memory.initial(len(seeds), self.device)
        self._actions = torch.zeros(len(seeds), self._memory.action_size, device=self.device)
        self._time = torch.zeros(len(seeds), dtype=torch.int64, device=self.device)
        return self.features()

    @torch.inference_mode()
    def step(self, actions: Tensor) -> Step:
        """Dream on: sample z_{t+1}, expect the reward, end where that is likelier than not.

        Of an M that does not predict rewards, each step that is survived is worth 1.
        """
        size = self._memory.latent_size
        self._state = self._memory.advance(self._latents, actions, self._state)
        prediction = self._memory.predict(self._state.h)
        uniform = self._uniform.uniform(self._time, size)
        normal = self._normal.normal(self._time, size)
        self._latents = prediction.latent.sample(uniform, normal, self._temperature)
        self._actions = actions
        self._time = self._time + 1
        terminated = (prediction.termination > 0).cpu().numpy()
        if self._memory.reward_weight:
            reward = prediction.reward.cpu().double().numpy()
        else:
            reward = (~terminated).astype(np.float64)
        return Step(self.features(), reward, terminated, np.zeros_like(terminated))

    @torch.inference_mode()
    def features(self) -> Tensor:
        """What the controller sees now: (lanes, features)."""
        if not self._use_hidden:
            return self._latents
        state = self._state
        if self._hidden_after:
            state = self._memory.advance(self._latents, self._actions, state)
        return torch.cat([self._latents, state.seen(self._use_cell)], dim=1)  # (lanes, features)

    @torch.inference_mode()
    def restart(self, mask: np.ndarray, seeds: Sequence[int]) -> None:
        """Begin new dreams, one a seed, in the lanes where `mask` (lanes,) is True."""
        index = torch.from_numpy(mask).to(self.device)
        self._uniform.restart(index, seeds)
        self._normal.restart(index, seeds)
        self._latents[index] = self._begin(seeds)
        keep = (~index).unsqueeze(1)
        self._state = State(self._state.h * keep, self._state.c * keep)
        self._actions = self._actions * keep
        self._time = self._time * ~index

    def keep(self, mask: np.ndarray) -> None:
        """Drop the lanes where `mask` (lanes,) is False."""
        index = torch.from_numpy(mask).to(self.device)
        self._latents, self._actions = self._latents[index], self._actions[index]
        self._state = State(self._state.h[index], self._state.c[index])
        self._time = self._time[index]
        self._uniform.keep(index)
        self._normal.keep(index)

    def close(self) -> None:
        """Nothing to let go of."""

    def _begin(self, seeds: Sequence[int]) -> Tensor:
        """First latents (lanes, latent): of an episode drawn by the seed, sampled by the seed."""
        start = LaneNoise(seeds, START_STREAM, self.device)
        chosen = (start.uniform(0, 1).squeeze(1) * len(self._first_mean)).long()  # (lanes,)
        noise = start.normal(1, self._memory.latent_size)
        return self._first_mean[chosen] + self._first_std[chosen] * noise
