"""The members of an ensemble of dynamics models in N environments of the learned model.

In each step, every member takes its own step from the same latent and action. One of them, drawn
for each environment, predicts the next latent and the termination; the reward is from all of them.
Shapes are in the letters of docs/shapes.md: M members, N environments, Z latent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from worldmodels.errors import ConfigError
from worldmodels.models.dynamics import DynamicsModel, State, select_rows
from worldmodels.models.ensemble import Ensemble
from worldmodels.worlds.noise import EpisodeNoise
from worldmodels.worlds.sampling import sample

MEMBER_STREAM = 4
DISAGREEMENT_STEPS = 20
"""The disagreement is measured in the first of so many steps of an episode: it takes all members'
distributions, where a step needs one."""


@dataclass(frozen=True)
class SamplingRule:
    """How the predictions of a learned model, or of an ensemble, become steps.

    Args:
        each_step: a member is drawn in each step, else for each episode.
        pessimism: standard deviations (of the population of members) of the predicted rewards that
            are subtracted from their mean.
        sampled_termination: an episode terminates with the predicted probability, else where the
            predicted logit is above 0 (`worldmodels.models.dynamics.unweighted`).
        frame_skip: steps of the simulator for each step: the reward of a step that does not
            terminate, where the model predicts none.
    """

    each_step: bool = True
    pessimism: float = 0.0
    sampled_termination: bool = False
    frame_skip: int = 1


def check_rule(prefix: str, rule: SamplingRule, members: Sequence[DynamicsModel]) -> None:
    """Raise `ConfigError` for a pessimism that these members make no use of.

    Args:
        prefix: of the names of the keys.
        rule: that is given.
        members: of the dynamics model.
    """
    pessimism, key = rule.pessimism, f"{prefix}pessimism"
    if pessimism and len(members) == 1:
        raise ConfigError(
            f"{key}={pessimism}: the dynamics model has one member; give 0, or train a model with"
            " rnn.members=2 or more"
        )
    if pessimism and not members[0].predicts_reward:
        raise ConfigError(
            f"{key}={pessimism}: the dynamics model predicts no reward; give 0, or train a model"
            " with rnn.reward_weight above 0"
        )


class Imagined(NamedTuple):
    """The predictions of a step in N environments.

    Args:
        latents: z_{t+1}, sampled.
        termination: the logit of the drawn member.
        reward: None where the members predict none.
        disagreement: standard deviation over the members of the mean of z_{t+1}, averaged over its
            dimensions, in units of the latents; NaN in the steps in which it is not measured; None
            for one model.
    """

    latents: Tensor  # (N, Z) float32
    termination: Tensor  # (N,)
    reward: np.ndarray | None  # (N,) float64
    disagreement: np.ndarray | None  # (N,) float64


class Members:
    """The members of an ensemble in N environments, and which of them is drawn where; one model is
    drawn always.

    Args:
        ensemble: the members.
        rule: how they are used.
        device: of all tensors.
    """

    def __init__(self, ensemble: Ensemble, rule: SamplingRule, device: torch.device) -> None:
        self._ensemble, self._rule, self._device = ensemble, rule, device

    def begin(self, seeds: Sequence[int]) -> None:
        """Begin episodes."""
        self._draws = EpisodeNoise(seeds, MEMBER_STREAM, self._device)

    def restart(self, mask: Tensor, seeds: Sequence[int]) -> None:
        """Begin new episodes where `mask` (N,) bool is True, with `seeds` in order."""
        self._draws.restart(mask, seeds)

    def keep(self, mask: Tensor) -> None:
        """Drop the environments where `mask` (N,) bool is False."""
        self._draws.keep(mask)

    def imagine(
        self, state: State, time: Tensor, uniform: Tensor, normal: Tensor, temperature: float
    ) -> Imagined:
        """Sample z_{t+1} and predict the rest.

        Args:
            state: of the members after z_t and a_t.
            time: t of each episode, (N,) int64.
            uniform: in [0, 1), (N, Z).
            normal: standard normal, (N, Z).
            temperature: of the distribution of the next latent.
        """
        dynamics = self._ensemble.dynamics
        predicts_reward = dynamics.predicts_reward
        if len(self._ensemble) == 1:
            prediction = dynamics.predict(state)
            latents = sample(prediction.latent, uniform, normal, temperature)
            reward = prediction.reward.cpu().double().numpy() if predicts_reward else None
            return Imagined(latents, prediction.termination, reward, None)
        latents, termination = self._sample(state, time, uniform, normal, temperature)
        reward = self._reward(state) if predicts_reward else None
        return Imagined(latents, termination, reward, self._disagreement(state, time))

    def _drawn(self, time: Tensor) -> Tensor:
        """The number of the member that is drawn in each environment, (N,) int64."""
        uniform = self._draws.uniform(time if self._rule.each_step else 0, 1).squeeze(1)
        return (uniform * len(self._ensemble)).long()

    def _sample(
        self, state: State, time: Tensor, uniform: Tensor, normal: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        """z_{t+1} and the logit of the termination, of the drawn members; see `imagine`."""
        drawn = self._drawn(time)
        order = drawn.argsort(stable=True)  # the environments of each member together
        rows = order.split(drawn.bincount(minlength=len(self._ensemble)).tolist())
        latents, termination = torch.empty_like(normal), torch.empty_like(normal[:, 0])
        for (model, own), chosen in zip(self._ensemble.each(state), rows, strict=True):
            prediction = model.predict(select_rows(own, chosen))
            noise = uniform[chosen], normal[chosen]
            latents[chosen] = sample(prediction.latent, *noise, temperature)
            termination[chosen] = prediction.termination
        return latents, termination

    def _reward(self, state: State) -> np.ndarray:
        """The reward (N,): the mean of the members' rewards, lowered by the pessimism."""
        rewards = self._ensemble.rewards(state).cpu().double().numpy()  # (M, N)
        lowered: np.ndarray = rewards.mean(axis=0) - self._rule.pessimism * rewards.std(axis=0)
        return lowered

    def _disagreement(self, state: State, time: Tensor) -> np.ndarray:
        """See `Imagined.disagreement`."""
        found = np.full(len(time), np.nan)
        rows = (time % DISAGREEMENT_STEPS == 0).nonzero().squeeze(1)
        if len(rows):
            deviation = self._ensemble.variance(select_rows(state, rows)).sqrt()  # (n, Z)
            found[rows.cpu().numpy()] = deviation.mean(dim=-1).cpu().double().numpy()
        return found
