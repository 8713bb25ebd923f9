"""The learned model with an intrinsic reward, for controllers that explore.

Shapes are in the letters of docs/shapes.md: N environments, A action, F features, Z latent.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from worldmodels.models.distillation import Distillation
from worldmodels.worlds.dream import DreamWorld
from worldmodels.worlds.world import Step


class NoveltyWorld:
    """Episodes in the learned model, with the novelty of z_{t+1} in place of the task's reward.

    The novelty is the error of random network distillation in units of its mean on recorded latents
    (Burda et al. 2018); without `distillation`, the variance over the members of an ensemble of the
    mean that they predict for z_{t+1}, averaged over its dimensions (Pathak et al. 2019; Sekar et
    al. 2020), in squared units of the latents; `Imagined.disagreement` is the standard deviation.
    An episode terminates as the learned model says.

    Args:
        dream: the learned model; with two members or more for the variance.
        distillation: networks for its latents.
    """

    def __init__(self, dream: DreamWorld, distillation: Distillation | None = None) -> None:
        self._dream = dream
        self._distillation = None if distillation is None else distillation.to(dream.device)
        self.feature_size, self.device = dream.feature_size, dream.device

    @property
    def latents(self) -> Tensor:
        """The current latents z_t: (N, Z) float32."""
        return self._dream.latents

    def reset(self, seeds: Sequence[int], temperature: float | None = None) -> Tensor:
        """Start one episode per seed; features (N, F). See `DreamWorld.reset`."""
        return self._dream.reset(seeds, temperature)

    def step(self, actions: Tensor) -> Step:
        """Take a step with actions (N, A); see `DreamWorld.step`. The reward is the novelty."""
        return self._dream.step(actions)._replace(reward=self._novelty())

    def keep(self, mask: np.ndarray) -> None:
        """Drop the environments where `mask` (N,) bool is False."""
        self._dream.keep(mask)

    def close(self) -> None:
        """Do nothing: there are no processes and no files."""

    @torch.inference_mode()
    def _novelty(self) -> np.ndarray:
        """Of the current latents, (N,) float64."""
        if self._distillation is None:
            found = self._dream.predicted_variance()
        else:
            found = self._distillation.novelty(self._dream.latents)
        novelty: np.ndarray = found.cpu().double().numpy()
        return novelty
