"""Gradients in an ensemble of dynamics models: which member predicts, rewards, pessimism, files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command import ALONE, BRIEFLY, FEW_FRAMES, run
from lightning_fabric import Fabric

from worldmodels.agents.folder import read_agent
from worldmodels.files.atomic import read_json
from worldmodels.models.actor_critic import ActorCritic
from worldmodels.models.controller import ControllerSpec
from worldmodels.models.ensemble import Ensemble
from worldmodels.models.features import FeatureSpec
from worldmodels.models.gru import GRUDynamics
from worldmodels.models.mdnrnn import MDNRNN
from worldmodels.models.transformer import TransformerDynamics
from worldmodels.training.imagination import ImaginationOptions, ImaginationTask, Moments
from worldmodels.training.parts import Parts, mean
from worldmodels.training.ranks import Ranks

LATENT, ACTION, HIDDEN, ROWS, STEPS, DISCOUNT = 3, 2, 8, 6, 4, 0.9
TERMINATION, REWARD = -1, -2  # rows of the last layer
GRADIENTS = (
    *("preset=smoke", "run=it", *BRIEFLY, *FEW_FRAMES, ALONE, "env.frame_skip=2"),
    *("controller.world=dream", "controller.optimizer=actor_critic", "actor_critic.updates=2"),
    *("actor_critic.batch_size=8", "actor_critic.horizon=3", "controller.failure_starts=0"),
)


def member(seed: int, build: Any = MDNRNN, **other: Any) -> Any:
    torch.manual_seed(seed)
    return build(LATENT, ACTION, hidden_size=HIDDEN, **other).requires_grad_(False).eval()


def constant(row: int, value: float, seed: int = 0) -> Any:
    """A member whose reward, or logit of termination, is the same in every step."""
    model = member(seed)
    model.head.weight[row] = 0
    model.head.bias[row] = value
    return model


class Recorded(ActorCritic):
    """It keeps the features that it is given."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.features: list[torch.Tensor] = []

    def outputs(self, features: torch.Tensor) -> torch.Tensor:
        self.features.append(features.detach())
        return super().outputs(features)


def prepared(
    models: list[Any],
    each_step: bool = False,
    pessimism: float = 0,
    penalty: float = 0,
    noise: float = 1,
    frame_skip: int = 1,
) -> tuple[Recorded, Moments, ImaginationTask]:
    """A controller, where its episodes begin, and its task; with hardly any noise the episodes are
    the same whatever random numbers are drawn."""
    torch.manual_seed(5)
    module = Recorded(LATENT + HIDDEN, ControllerSpec(("tanh", "half_tanh")), DISCOUNT)
    mean, before = torch.randn(2, ROWS, LATENT)
    actions, parts = torch.rand(ROWS, ACTION), []
    for model in models:
        parts.extend(model.advance(before, actions, model.initial_state(ROWS)))
    moments = Moments(mean, torch.full_like(mean, 0.1 * noise), actions, tuple(parts))
    options = ImaginationOptions(
        updates=1,
        batch_size=ROWS,
        horizon=STEPS,
        discount=DISCOUNT,
        return_lambda=1,
        action_noise=0.3 * noise,
        temperature=noise,
        termination_penalty=penalty,
        each_step=each_step,
        pessimism=pessimism,
        frame_skip=frame_skip,
        seed=0,
    )
    fabric = Fabric(accelerator="cpu", devices=1)
    task = ImaginationTask(module, Ensemble(models), FeatureSpec(), moments, options, fabric)
    return module, moments, task


def imagined(models: list[Any], **options: Any) -> tuple[dict[str, float], torch.Tensor]:
    """What one batch logs, and the gradient of the controller."""
    module, _, task = prepared(models, **options)
    torch.manual_seed(6)
    loss, logs, _ = task.loss(np.arange(ROWS), None)
    loss.backward()
    assert module.actor.grad is not None
    return {name: float(value) for name, value in logs.items()}, module.actor.grad


@pytest.mark.parametrize("build", [MDNRNN, GRUDynamics, TransformerDynamics])
def test_members_that_are_equal_are_one_model(build: Any) -> None:
    one, gradient = imagined([member(0, build)], noise=1e-10)
    several, same = imagined([member(0, build) for _ in range(3)], pessimism=0.7, noise=1e-10)
    assert several == pytest.approx(one, rel=1e-4, abs=1e-6)
    torch.testing.assert_close(same, gradient, rtol=1e-3, atol=1e-6)


def test_each_episode_goes_on_from_its_own_latent_whatever_its_member() -> None:
    one, gradient = imagined([member(0)], noise=1e-10)
    several, same = imagined([member(0) for _ in range(3)], each_step=True, noise=1e-10)
    assert several == pytest.approx(one, rel=1e-4, abs=1e-6)
    torch.testing.assert_close(same, gradient, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("each_step", [True, False])
def test_the_reward_is_the_mean_lowered_by_the_deviation(each_step: bool) -> None:
    rewards = np.array([0.3, 1.0, 2.6])
    models = [constant(REWARD, reward, seed) for seed, reward in enumerate(rewards)]
    logs, _ = imagined(models, each_step=each_step, pessimism=0.7)
    assert logs["reward"] == pytest.approx(rewards.mean() - 0.7 * rewards.std(), rel=1e-5)
    assert imagined(models, each_step=each_step)[0]["reward"] == pytest.approx(
        rewards.mean(), rel=1e-5
    )


@pytest.mark.parametrize("count", [1, 2])
def test_without_predicted_rewards_a_step_is_worth_its_steps_of_the_simulator(count: int) -> None:
    models = [member(seed, reward_weight=0.0) for seed in range(count)]
    once, skipping = (imagined(models, frame_skip=skip)[0] for skip in (1, 4))
    assert 0.1 < once["termination"] < 0.9
    assert once["reward"] == pytest.approx(1 - once["termination"], rel=1e-4)
    assert skipping["reward"] == pytest.approx(4 * once["reward"], rel=1e-4)


def test_the_member_that_is_drawn_for_an_episode_ends_it() -> None:
    """One of two members ends episodes; they are drawn in each step or once for an episode."""
    models = [constant(TERMINATION, logit) for logit in (40.0, -40.0)]
    for model in models:
        model.head.weight[REWARD] = 0
        model.head.bias[REWARD] = 1
    kept, drawn = imagined(models)[0], imagined(models, each_step=True)[0]
    ends, in_steps = kept["termination"], drawn["termination"]
    assert 0 < ends < 1
    assert ends * ROWS == pytest.approx(round(ends * ROWS), abs=1e-5)
    assert in_steps * ROWS * STEPS == pytest.approx(round(in_steps * ROWS * STEPS), abs=1e-5)
    lengths = np.arange(STEPS, 0, -1)
    survive = (1 - DISCOUNT**lengths) / (1 - DISCOUNT)  # returns of steps 0, 1, ..., without end
    assert kept["return"] == pytest.approx(ends + (1 - ends) * survive.mean(), rel=1e-5)
    assert 1 < drawn["return"] < in_steps + (1 - in_steps) * survive.mean()
    penalised = imagined(models, penalty=3)[0]
    assert penalised["return"] == pytest.approx(kept["return"] - 3 * ends, rel=1e-5)


@pytest.mark.parametrize("each_step", [True, False])
def test_the_members_of_the_episodes_do_not_depend_on_the_parts_of_a_batch(each_step: bool) -> None:
    models, found = [member(seed) for seed in range(3)], []
    for number in (1, 2, 4):  # of the last, a part has one or two episodes and not every member
        module, _, task = prepared(models, each_step=each_step)
        torch.manual_seed(6)
        with Parts(Ranks(), number, torch.device("cpu"), side_by_side=False) as parts:
            made, _ = parts.run(task, np.arange(ROWS), None, lambda loss: loss.backward())
        assert len(made) == number
        values = mean(made)
        del values["explained_variance"]  # no mean over episodes
        found.append((values, [p.grad for p in module.parameters() if p.grad is not None]))
    (whole, gradients), *others = found
    for values, own in others:
        assert values == pytest.approx(whole, rel=1e-4)
        for one, other in zip(own, gradients, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-6)


def test_without_predicted_rewards_a_step_that_goes_on_is_worth_one() -> None:
    logs, _ = imagined([member(seed, reward_weight=0.0) for seed in range(3)], each_step=True)
    assert logs["reward"] == pytest.approx(1 - logs["termination"], rel=1e-5)
    assert 0 < logs["termination"] < 1


def test_the_features_of_the_controller_are_those_of_the_first_member() -> None:
    models = [member(0), member(1)]
    module, moments, task = prepared(models, noise=1e-10)
    task.loss(np.arange(ROWS), None)
    before, after, *_ = module.features
    own, first = models[0], moments.state[: len(moments.state) // 2]
    torch.testing.assert_close(before[:, LATENT:], own.features(first, ["h"]))
    with torch.no_grad():
        actions = module.actions(module.outputs(before))
        state = own.advance(before[:, :LATENT], actions, first)
    torch.testing.assert_close(after[:, LATENT:], own.features(state, ["h"]))


@pytest.mark.system
def test_a_run_trains_in_all_members_and_its_agent_has_them(tmp_path: Path) -> None:
    """A training in three members, with pessimism; the rounds go on with each member's weights."""
    words = ("stage=iterate", "iterate.rounds=2", "rnn.members=3", "controller.pessimism=0.5")
    done = run(tmp_path, *GRADIENTS, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    for number in (1, 2):
        folder = tmp_path / f"it/round-{number}"
        assert len(read_agent(folder / "controller/agent").others) == 2
        assert "agent in the dream" in read_json(folder / "evaluate/scores.json")
    alone = run(tmp_path, "stage=controller", *GRADIENTS, "run=alone", "base=it/round-1")
    assert alone.returncode == 0, alone.stdout + alone.stderr
    agents = [read_agent(tmp_path / f"{run}/controller/agent") for run in ("it/round-1", "alone")]
    assert not np.array_equal(agents[0].parameters, agents[1].parameters)
