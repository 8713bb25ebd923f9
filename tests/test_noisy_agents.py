"""Noise and bursts of an agent that collects: their random numbers are independent."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from worldmodels.agents.folder import read_agent
from worldmodels.data.shards import Episode
from worldmodels.envs.action_spec import ActionBounds
from worldmodels.worlds.branches import PERTURBATIONS, branches_of
from worldmodels.worlds.collect import ACTION_STREAM, NoisyAgent
from worldmodels.worlds.noise import EpisodeNoise
from worldmodels.worlds.real import Perception, RealWorld

ACTIONS = ActionBounds((-1.0, 0.0, 0.0), (1.0, 1.0, 1.0))


def no_envs(num_envs: int) -> Any:
    raise AssertionError("nothing is played here")


def test_noise_is_on_the_parameters_and_another_for_each_episode(smoke: Path) -> None:
    folder = smoke / "smoke/controller/agent"
    agent = read_agent(folder)
    world = RealWorld(no_envs, Perception(agent.encoder, agent.dynamics, agent.config.features))
    seeds = tuple(range(4000))
    blind = torch.zeros(len(seeds), world.feature_size)  # leaves the biases alone
    policy = NoisyAgent(folder, 0.3, 0.0, ACTIONS).policy(world, seeds)
    steering = policy.act(blind)[:, 0]
    torch.testing.assert_close(policy.act(blind)[:, 0], steering)
    added = torch.atanh(steering) - agent.parameters[-3].item()
    assert added.std().item() == pytest.approx(0.3, rel=0.05)
    assert added.mean().item() == pytest.approx(0.0, abs=0.02)
    one = NoisyAgent(folder, 0.3, 0.0, ACTIONS).policy(world, seeds[7:8]).act(blind[:1])[:, 0]
    torch.testing.assert_close(one, steering[7:8])
    # Of 0.3 times a cubed uniform number: the mean of its sixth power is a seventh.
    varied = NoisyAgent(folder, 0.3, 0.0, ACTIONS, noise_exponent=3.0).policy(world, seeds)
    added = torch.atanh(varied.act(blind)[:, 0]) - agent.parameters[-3].item()
    assert added.std().item() == pytest.approx(0.3 / 7**0.5, rel=0.08)
    assert added.abs().median().item() < 0.03


def test_how_much_noise_an_episode_has_says_nothing_of_its_parameters(smoke: Path) -> None:
    folder = smoke / "smoke/controller/agent"
    agent = read_agent(folder)
    world = RealWorld(no_envs, Perception(agent.encoder, agent.dynamics, agent.config.features))
    seeds = tuple(range(1000))
    size = world.feature_size

    def weights(noise: float, exponent: float) -> torch.Tensor:
        """Those of the first output, (episodes, features)."""
        noisy = NoisyAgent(folder, noise, 0.0, ACTIONS, noise_exponent=exponent)
        policy = noisy.policy(world, seeds)
        one_hot = torch.eye(size)[:, None].expand(-1, len(seeds), -1)
        outputs = [policy.act(row)[:, 0] for row in (torch.zeros(one_hot.shape[1:]), *one_hot)]
        bias, *rest = torch.atanh(torch.stack(outputs).double())
        without_bias: torch.Tensor = torch.stack(rest) - bias
        return without_bias.T

    of_agent = weights(0.0, 0.0)
    drawn, varied = weights(0.1, 0.0) - of_agent, weights(0.1, 1.0) - of_agent
    amount = (varied / drawn).median(dim=1).values  # uniform, the same for all parameters
    pairs = torch.cat([amount[None], drawn.abs().T])
    assert torch.corrcoef(pairs)[0, 1:].abs().max().item() < 0.2


def test_noise_on_outputs_changes_slowly_and_depends_on_the_episode_alone(smoke: Path) -> None:
    folder = smoke / "smoke/controller/agent"
    agent = read_agent(folder)
    world = RealWorld(no_envs, Perception(agent.encoder, agent.dynamics, agent.config.features))
    seeds = tuple(range(2000))
    blind = torch.zeros(len(seeds), world.feature_size)
    noisy = NoisyAgent(folder, 0.0, 0.0, ACTIONS, action_noise=0.3)
    policy = noisy.policy(world, seeds)
    steering = torch.stack([policy.act(blind)[:, 0] for _ in range(12)])  # (steps, environments)
    added = torch.atanh(steering) - agent.parameters[-3].item()
    assert added.std(dim=1).numpy() == pytest.approx(0.3, rel=0.08)
    for lag in (1, 2, 4):
        pairs = torch.stack([added[5], added[5 + lag]])
        assert torch.corrcoef(pairs)[0, 1].item() == pytest.approx(0.8**lag, abs=0.06)
    few = noisy.policy(world, seeds)
    few.act(blind)
    few.keep(np.arange(len(seeds)) >= 1990)
    torch.testing.assert_close(few.act(blind[1990:])[:, 0], steering[1, 1990:])


def test_bursts_begin_and_last_as_they_should(smoke: Path) -> None:
    folder, ez_greedy_epsilon, steps = smoke / "smoke/controller/agent", 0.05, 400
    agent = read_agent(folder)
    world = RealWorld(no_envs, Perception(agent.encoder, agent.dynamics, agent.config.features))
    seeds = tuple(range(50))
    blind = torch.zeros(len(seeds), world.feature_size)
    own = NoisyAgent(folder, 0.0, 0.0, ACTIONS).policy(world, seeds).act(blind)  # as long as blind
    policy = NoisyAgent(folder, 0.0, ez_greedy_epsilon, ACTIONS).policy(world, seeds)
    acted = torch.stack([policy.act(blind) for _ in range(steps)])  # (steps, environments, actions)
    bursting = (acted != own).any(dim=2)
    # A burst of 15.5 steps in the mean, then 1 / epsilon - 1 steps before the next begins.
    assert bursting.float().mean().item() == pytest.approx(
        15.5 / (15.5 + 1 / ez_greedy_epsilon - 1), abs=0.03
    )
    assert (acted.abs() <= 1).all()
    few = NoisyAgent(folder, 0.0, ez_greedy_epsilon, ACTIONS).policy(world, seeds)
    few.keep(np.arange(len(seeds)) >= 45)
    torch.testing.assert_close(
        torch.stack([few.act(blind[45:]) for _ in range(50)]), acted[:50, 45:]
    )


def test_what_a_branch_is_says_nothing_of_the_noise_on_its_outputs() -> None:
    rewards = np.full(200, -0.1, np.float32)
    rewards[149] = 100.0  # the failure began in step 150
    frames, actions = np.zeros((201, 1, 1, 3), np.uint8), np.zeros((200, 3), np.float32)
    terminated, truncated = np.arange(200) == 199, np.zeros(200, bool)
    parent = Episode(frames, actions, rewards, terminated, truncated, 2**28)
    drawn = branches_of(parent, 2000, 100, None)
    noise = EpisodeNoise([branch.seed for branch in drawn], ACTION_STREAM, torch.device("cpu"))
    gas = noise.normal(0, 3)[:, 1].numpy()
    for kind in PERTURBATIONS:
        of_kind = [branch.perturbation == kind for branch in drawn]
        assert gas[of_kind].std() == pytest.approx(1, abs=0.12)
