"""Training of a controller by gradients of its returns in the learned model, with a critic.

Each update simulates short episodes from moments of recorded ones. Their returns are functions of
the controller's parameters by way of actions, latents, states and rewards, all of them
differentiable, and so is the value that a critic gives to the last state (Dreamer, Hafner et al.
2020, "Dream to Control"). The critic learns the same returns, so that its values are those of the
present controller. In an ensemble every member takes every step; the next latent and the
termination of an episode are predicted by a member that is drawn for it, each with equal
probability. Shapes are in the letters of docs/shapes.md: B episodes, T steps, F features, M
members.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.nn import functional as F

from worldmodels.models.actor_critic import ActorCritic
from worldmodels.models.dynamics import State, select_rows, unweighted
from worldmodels.models.ensemble import Ensemble
from worldmodels.models.features import FeatureSpec
from worldmodels.training.compiling import compiled

BOUND, BOUND_WEIGHT = 2.0, 1e-3
"""Outputs of the controller beyond the bound, before they become actions, are penalised by so much
times their squared excess: at 2 the slope of tanh is 0.07, and a saturated action learns little."""
LEAST_VARIANCE = 1e-12
"""Of the members' rewards where pessimism lowers them: the square root has no slope at 0."""


class Moments(NamedTuple):
    """Where episodes begin: moments of recorded episodes, S rows each, on the device.

    Args:
        mean: of the posterior of z_t, (S, Z).
        std: its standard deviation, (S, Z).
        actions: a_{t-1}, (S, A).
        state: of the members after z_{t-1} and a_{t-1}.
    """

    mean: Tensor
    std: Tensor
    actions: Tensor
    state: State


@dataclass(frozen=True)
class ImaginationOptions:
    """Options of the episodes and their returns.

    Args:
        updates: steps of the optimiser.
        batch_size: episodes for each of them, B.
        horizon: steps of an episode, T.
        discount: factor of a step.
        return_lambda: see `lambda_returns`.
        action_noise: standard deviation of the noise on the controller's outputs.
        temperature: of the distribution of the next latent.
        termination_penalty: subtracted from the reward of a step that terminates the episode.
        each_step: the member of an episode is drawn in each step, else once.
        pessimism: standard deviations (of the population of members) of the predicted rewards that
            are subtracted from their mean.
        frame_skip: steps of the simulator for each step: the reward of a step that does not
            terminate where the dynamics model predicts none.
        seed: of the order of the moments.
    """

    updates: int
    batch_size: int
    horizon: int
    discount: float
    return_lambda: float
    action_noise: float
    temperature: float
    termination_penalty: float
    each_step: bool
    pessimism: float
    frame_skip: int
    seed: int


def lambda_returns(rewards: Tensor, discounts: Tensor, values: Tensor, decay: float) -> Tensor:
    """Returns that mix those of all lengths up to T, each ended by the value of its last state.

    The return of step t is r_t + d_t ((1 - decay) v_{t+1} + decay G_{t+1}), with G_T = v_T (Sutton
    and Barto 2018, section 12.1).

    Args:
        rewards: (T, B).
        discounts: of what follows each step, 0 where the episode ends, (T, B).
        values: of the states before each step and after the last, (T + 1, B).
        decay: lambda, 0 to 1.

    Returns:
        (T, B).
    """
    following, found = values[-1], []
    for reward, discount, value in zip(
        reversed(rewards.unbind()),
        reversed(discounts.unbind()),
        reversed(values[1:].unbind()),
        strict=True,
    ):
        following = reward + discount * ((1 - decay) * value + decay * following)
        found.append(following)
    return torch.stack(found[::-1])


class Imagined(NamedTuple):
    """Episodes in the learned model.

    Args:
        features: of each state, (T + 1, B, F).
        outputs: of the controller in each step, without noise, (T, B, A).
        rewards: predicted ones, (T, B).
        continues: predicted probabilities that the episode does not terminate, (T, B).
    """

    features: Tensor
    outputs: Tensor
    rewards: Tensor
    continues: Tensor


class ImaginationTask:
    """The `Task` of training an `ActorCritic`; throughput is counted in steps in the model.

    Args:
        module: what is trained.
        ensemble: the learned model, which is not trained.
        features: input of the controller.
        moments: where episodes begin.
        options: of episodes and returns.
        fabric: device and precision.
    """

    unit = "steps"
    memory_key = "actor_critic.horizon"

    def __init__(
        self,
        module: ActorCritic,
        ensemble: Ensemble,
        features: FeatureSpec,
        moments: Moments,
        options: ImaginationOptions,
        fabric: Fabric,
    ) -> None:
        self.module: nn.Module = module
        self._policy, self._ensemble = module, ensemble
        self._features, self._moments = features, moments
        self._options, self._fabric = options, fabric
        self._loss = self._returns_loss

    def steps(self, epoch: int) -> int:
        """The number of updates."""
        return self._options.updates

    def batches(self, epoch: int, start: int) -> Iterator[np.ndarray]:
        """Rows (B,) of the moments, for each update from number `start` on: passes over all of
        them, each in an order of its own."""
        generator = np.random.default_rng((self._options.seed, epoch))
        size, left = self._options.batch_size, np.empty(0, np.int64)
        for number in range(self._options.updates):
            while len(left) < size:
                left = np.append(left, generator.permutation(len(self._moments.mean)))
            chosen, left = left[:size], left[size:]
            if number >= start:
                yield chosen

    def validation(self) -> Iterator[np.ndarray]:
        """One batch, of the first moments."""
        yield np.arange(min(self._options.batch_size, len(self._moments.mean)))

    def count(self, batch: np.ndarray) -> int:
        """The number of steps in the model."""
        return len(batch) * self._options.horizon

    def rows(self, batch: np.ndarray) -> int:
        """The number of episodes."""
        return len(batch)

    def part(self, batch: np.ndarray, rows: slice) -> np.ndarray:
        """Some of the episodes."""
        return batch[rows]

    def stepped(self) -> None:
        """Move the target critic."""
        self._policy.follow()

    def compile(self) -> None:
        """Compile the loss; see `worldmodels.training.compiling`."""
        self._loss = compiled(self._loss)

    def loss(self, batch: np.ndarray, carry: object) -> tuple[Tensor, dict[str, Tensor], None]:
        """The loss of the controller and the critic.

        Args:
            batch: rows (B,) of the moments.
            carry: None; batches are independent.

        Returns:
            the loss, a scalar; what is logged, detached scalars: ``reward`` (mean of a step,
            without the penalty), ``return`` (discounted), ``termination`` (mean probability of a
            step), ``critic_loss`` and ``explained_variance`` of the returns by the critic; None.
        """
        index = self._fabric.to_device(torch.from_numpy(batch))
        loss, logs = self._loss(index)
        return loss, logs, None

    def _returns_loss(self, index: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        options, module = self._options, self._policy
        episodes = self._imagine(index)
        discounts = options.discount * episodes.continues
        with self._fabric.autocast():
            values = module.values(episodes.features)
            learned = module.learned_values(episodes.features[:-1].detach())
        rewards = episodes.rewards - options.termination_penalty * (1 - episodes.continues)
        returns = lambda_returns(rewards, discounts, values, options.return_lambda)
        # A state counts as much as it is likely to be reached.
        reached = torch.cumprod(torch.cat([torch.ones_like(discounts[:1]), discounts[:-1]]), dim=0)
        weight, scale = reached.detach(), 1 - options.discount
        excess = F.relu(episodes.outputs.abs() - BOUND).square().mean()
        actor_loss = -(weight * returns).mean() * scale + BOUND_WEIGHT * excess
        target = returns.detach()
        critic_loss = (weight * (scale * (learned - target)).square()).mean()
        unexplained = (learned.detach() - target).square().mean()
        logs = {
            "reward": episodes.rewards.mean(),
            "return": target.mean(),
            "termination": 1 - episodes.continues.mean(),
            "critic_loss": critic_loss,
            "explained_variance": 1 - unexplained / target.var(correction=0).clamp(min=1e-12),
        }
        return actor_loss + critic_loss, {name: value.detach() for name, value in logs.items()}

    def _imagine(self, index: Tensor) -> Imagined:
        """Episodes from the moments of these rows (B,)."""
        options, moments = self._options, self._moments
        rows, device = len(index), index.device
        size, action_size = moments.mean.shape[1], moments.actions.shape[1]
        latents = moments.mean[index] + moments.std[index] * torch.randn(rows, size, device=device)
        actions, state = moments.actions[index], select_rows(moments.state, index)
        features = [self._state_features(latents, actions, state)]
        outputs, rewards, continues = [], [], []
        members: Tensor | None = None
        for _ in range(options.horizon):
            output = self._policy.outputs(features[-1])
            noise = options.action_noise * torch.randn(rows, action_size, device=device)
            actions = self._policy.actions(output + noise)
            state = self._ensemble.advance(latents, actions, state)
            uniform = torch.rand(rows, size, device=device)
            normal = torch.randn(rows, size, device=device)
            if len(self._ensemble) > 1 and (members is None or options.each_step):
                members = (torch.rand(rows, device=device) * len(self._ensemble)).long()
            latents, reward, survived = self._predict(state, uniform, normal, members)
            rewards.append(reward)
            continues.append(survived)
            outputs.append(output)
            features.append(self._state_features(latents, actions, state))
        stacked = (torch.stack(part) for part in (features, outputs, rewards, continues))
        return Imagined(*stacked)

    def _state_features(self, latents: Tensor, actions: Tensor, state: State) -> Tensor:
        ensemble = self._ensemble
        return self._features.features(latents, actions, ensemble.first(state), ensemble.dynamics)

    def _predict(
        self, state: State, uniform: Tensor, normal: Tensor, members: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """z_{t+1} (B, Z), the reward (B,) and the probability (B,) that the episode does not
        terminate.

        Args:
            state: of the members after z_t and a_t.
            uniform: in [0, 1), (B, Z).
            normal: standard normal, (B, Z).
            members: number of the member that predicts an episode, (B,) int64; None for one model.
        """
        dynamics, reward = self._ensemble.dynamics, None
        if members is None:
            prediction = dynamics.predict(state)
            latents = prediction.latent.sample(uniform, normal, self._options.temperature)
            logits = prediction.termination
            if dynamics.predicts_reward:
                reward = prediction.reward
        else:
            latents, logits = self._sample(state, uniform, normal, members)
            if dynamics.predicts_reward:
                reward = self._reward(state)
        survived = torch.sigmoid(-unweighted(dynamics, logits))
        if reward is None:
            reward = self._options.frame_skip * survived
        return latents, reward, survived

    def _sample(
        self, state: State, uniform: Tensor, normal: Tensor, members: Tensor
    ) -> tuple[Tensor, Tensor]:
        """z_{t+1} and the logit of the termination, each from its own member; see `_predict`."""
        order = members.argsort(stable=True)  # the episodes of each member together
        rows = order.split(members.bincount(minlength=len(self._ensemble)).tolist())
        found = []
        for (model, own), chosen in zip(self._ensemble.each(state), rows, strict=True):
            prediction = model.predict(select_rows(own, chosen))
            noise = uniform[chosen], normal[chosen]
            latents = prediction.latent.sample(*noise, self._options.temperature)
            found.append((latents, prediction.termination))
        latents, logits = (torch.cat(part)[order.argsort()] for part in zip(*found, strict=True))
        return latents, logits

    def _reward(self, state: State) -> Tensor:
        """The reward (B,): the mean of the members' rewards, lowered by the pessimism."""
        rewards, pessimism = self._ensemble.rewards(state), self._options.pessimism
        mean = rewards.mean(dim=0)
        if not pessimism:
            return mean
        variance = (rewards - mean).square().mean(dim=0)
        return mean - pessimism * variance.clamp(min=LEAST_VARIANCE).sqrt()
