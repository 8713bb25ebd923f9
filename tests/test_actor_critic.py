"""Training of a controller by gradients in the learned model: controller.optimizer=actor_critic."""

import csv
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
import torch
from command import ALONE, BRIEFLY, FEW_FRAMES, composed, error_line, run
from lightning_fabric import Fabric
from safetensors.torch import load_file
from torch import Tensor

from worldmodels.agents.folder import read_agent
from worldmodels.config.limits import check
from worldmodels.errors import ConfigError
from worldmodels.files.atomic import read_json
from worldmodels.models.actor_critic import ActorCritic
from worldmodels.models.controller import Controllers, ControllerSpec
from worldmodels.models.dynamics import DynamicsModel
from worldmodels.models.ensemble import Ensemble
from worldmodels.models.features import FeatureSpec
from worldmodels.models.gru import GRUDynamics
from worldmodels.models.mdnrnn import MDNRNN
from worldmodels.models.transformer import TransformerDynamics
from worldmodels.training.imagination import (
    ImaginationOptions,
    ImaginationTask,
    Moments,
    lambda_returns,
)

Z, A, H = 3, 2, 8
SPEC = ControllerSpec(("tanh", "half_tanh"))
LATENT = "controller.latent=sampled"
OPTIONS = ImaginationOptions(
    updates=4,
    batch_size=6,
    horizon=5,
    discount=0.9,
    return_lambda=0.8,
    action_noise=0.3,
    temperature=1.0,
    termination_penalty=2.0,
    each_step=True,
    pessimism=0.0,
    frame_skip=1,
    seed=3,
)
GRADIENTS = ("controller.world=dream", "controller.optimizer=actor_critic")
BRIEF = (
    *("preset=smoke", "run=it", *GRADIENTS, *BRIEFLY, *FEW_FRAMES, ALONE, "env.frame_skip=2"),
    *("actor_critic.updates=6", "actor_critic.batch_size=8", "actor_critic.horizon=4"),
    *("trainer.checkpoint_seconds=0", "trainer.log_every=1"),
    *("rollouts.stall_steps=5", "controller.failure_starts=0.5"),
)


def moments(dynamics: DynamicsModel, count: int) -> Moments:
    """Random latents and actions, and the states after them."""
    generator = torch.Generator().manual_seed(5)
    mean, before = torch.randn(2, count, Z, generator=generator)
    actions = torch.rand(count, A, generator=generator)
    with torch.no_grad():
        state = dynamics.advance(before, actions, dynamics.initial_state(count))
    return Moments(mean, torch.full_like(mean, 0.1), actions, state)


def task(dynamics: DynamicsModel, module: ActorCritic, count: int = 6) -> ImaginationTask:
    fabric = Fabric(accelerator="cpu", devices=1)
    starts = moments(dynamics, count)
    return ImaginationTask(module, Ensemble([dynamics]), FeatureSpec(), starts, OPTIONS, fabric)


def frozen(dynamics: Any) -> Any:
    return dynamics.requires_grad_(False).eval()


# --- the models


@pytest.mark.parametrize("model", [MDNRNN, GRUDynamics, TransformerDynamics])
def test_a_step_with_gradients_is_the_step_without(model: type) -> None:
    torch.manual_seed(0)
    dynamics = frozen(model(Z, A, hidden_size=H))
    latents, actions = torch.randn(4, Z), torch.rand(4, A)
    state = dynamics.advance(latents, actions, dynamics.initial_state(4))
    without = dynamics.advance(latents, actions, state)
    varied = actions.clone().requires_grad_()
    found = dynamics.advance(latents, varied, state)
    for one, other in zip(found, without, strict=True):
        torch.testing.assert_close(one.detach(), other, atol=1e-6, rtol=1e-5)
    dynamics.predict(found).reward.sum().backward()
    gradient = varied.grad
    assert gradient is not None
    for number in range(A):  # a central difference of each action
        step = torch.zeros(A)
        step[number] = 1e-2
        ends = [
            dynamics.predict(dynamics.advance(latents, actions + sign * step, state)).reward
            for sign in (1, -1)
        ]
        slope = (ends[0] - ends[1]) / 2e-2
        torch.testing.assert_close(gradient[:, number], slope, atol=1e-4, rtol=2e-2)


@pytest.mark.parametrize("hidden", [0, 5])
def test_its_actions_are_those_of_the_controller_that_it_becomes(hidden: int) -> None:
    torch.manual_seed(0)
    spec = ControllerSpec(("tanh", "half_tanh"), hidden_units=hidden)
    module, features = ActorCritic(Z + H, spec, 0.9), torch.randn(7, Z + H)
    with torch.no_grad():
        module.actor.mul_(50)
    agents = Controllers(module.actor.detach().expand(7, -1), Z + H, spec)
    with torch.no_grad():
        found = module.actions(module.outputs(features))
    torch.testing.assert_close(found, agents.act(features))


@pytest.mark.parametrize("hidden", [0, 64])
def test_a_new_controller_is_at_rest_and_its_hidden_units_differ(hidden: int) -> None:
    torch.manual_seed(0)
    spec = ControllerSpec(("tanh", "half_tanh"), hidden_units=hidden)
    module, features = ActorCritic(288, spec, 0.9), torch.randn(512, 288)
    with torch.no_grad():
        assert module.outputs(features).abs().max() < 1
        (weight, bias), *rest = Controllers(module.actor[None], 288, spec).layers
        if rest:
            units = features @ weight[0] + bias[0]
            assert units.std() == pytest.approx(1, abs=0.1)


# --- the returns


def test_returns_are_the_mixture_of_the_returns_of_all_lengths() -> None:
    generator = torch.Generator().manual_seed(0)
    steps, decay = 6, 0.7
    rewards, discounts = torch.rand(2, steps, 3, generator=generator, dtype=torch.float64)
    values = torch.randn(steps + 1, 3, generator=generator, dtype=torch.float64)

    def of_length(first: int, length: int) -> Tensor:
        total, factor = torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
        for time in range(first, first + length):
            total, factor = total + factor * rewards[time], factor * discounts[time]
        return total + factor * values[first + length]

    found = lambda_returns(rewards, discounts, values, decay)
    for first in range(steps):
        longest = steps - first
        expected = decay ** (longest - 1) * of_length(first, longest)
        for length in range(1, longest):
            expected += (1 - decay) * decay ** (length - 1) * of_length(first, length)
        torch.testing.assert_close(found[first], expected)


def test_the_gradient_is_that_of_finite_differences() -> None:
    torch.manual_seed(0)
    # With one component no sample jumps where a parameter changes a little.
    dynamics = frozen(MDNRNN(Z, A, H, mixtures=1))
    module = ActorCritic(Z + H, SPEC, OPTIONS.discount)
    with torch.no_grad():
        module.actor.mul_(30)
        for parameter in [*module.critic.parameters(), *module.target.parameters()]:
            parameter.normal_(std=0.1)
    trained, rows = task(dynamics, module), np.arange(6)

    def actor_loss() -> Tensor:
        torch.manual_seed(1)
        loss, logs, _ = trained.loss(rows, None)
        return loss - logs["critic_loss"]  # whose target is no function of the controller

    torch.manual_seed(1)
    loss, _, _ = trained.loss(rows, None)
    (gradient,) = torch.autograd.grad(loss, [module.actor])
    for number in range(0, len(module.actor), 5):
        ends = []
        for step in (1e-2, -1e-2):
            with torch.no_grad():
                module.actor[number] += step
                ends.append(float(actor_loss()))
                module.actor[number] -= step
        slope = (ends[0] - ends[1]) / 2e-2
        assert float(gradient[number]) == pytest.approx(slope, rel=0.05, abs=2e-4)


def test_a_penalty_lowers_the_return_of_steps_that_may_terminate() -> None:
    torch.manual_seed(0)
    dynamics = frozen(MDNRNN(Z, A, H))
    module, fabric = (
        ActorCritic(Z + H, SPEC, OPTIONS.discount),
        Fabric(accelerator="cpu", devices=1),
    )
    logs = []
    for penalty in (0.0, 7.0):
        options = replace(OPTIONS, horizon=1, termination_penalty=penalty)
        starts, ensemble = moments(dynamics, 6), Ensemble([dynamics])
        trained = ImaginationTask(module, ensemble, FeatureSpec(), starts, options, fabric)
        torch.manual_seed(1)
        logs.append(trained.loss(np.arange(6), None)[1])
    assert logs[0]["reward"] == logs[1]["reward"]
    lowered = logs[0]["return"] - 7.0 * logs[0]["termination"]
    assert logs[1]["return"].item() == pytest.approx(lowered.item(), abs=1e-5)


def test_odds_that_a_weight_of_terminations_has_made_larger_are_divided_by_it() -> None:
    torch.manual_seed(0)
    plain = frozen(MDNRNN(Z, A, H))
    weighted = frozen(MDNRNN(Z, A, H, termination_pos_weight=10.0))
    weighted.load_state_dict(plain.state_dict())
    with torch.no_grad():
        weighted.head.bias[-1] += np.log(10.0)
    module = ActorCritic(Z + H, SPEC, OPTIONS.discount)
    logs = []
    for dynamics in (plain, weighted):
        torch.manual_seed(1)
        logs.append(task(dynamics, module).loss(np.arange(6), None)[1])
    assert logs[0]["termination"] > 0.1
    for name, value in logs[0].items():
        torch.testing.assert_close(logs[1][name], value)


def test_training_raises_the_return_and_the_critic_learns_it() -> None:
    torch.manual_seed(0)
    dynamics = frozen(MDNRNN(Z, A, H))
    module = ActorCritic(Z + H, SPEC, OPTIONS.discount)
    trained = task(dynamics, module, count=64)
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
    logged = []
    for update in range(150):
        torch.manual_seed(update)
        loss, logs, _ = trained.loss(np.arange(64), None)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        trained.stepped()
        logged.append({name: float(value) for name, value in logs.items()})
    assert logged[-1]["reward"] > logged[0]["reward"] + 0.02
    assert logged[-1]["critic_loss"] < 0.5 * logged[5]["critic_loss"]


def test_the_target_critic_follows_the_critic() -> None:
    torch.manual_seed(0)
    module = ActorCritic(Z + H, SPEC, OPTIONS.discount)
    features = torch.randn(5, Z + H)
    assert not module.values(features).any(), "a critic begins with zero"
    torch.testing.assert_close(module.values(features), module.learned_values(features))
    before = [weight.clone() for weight in module.target.parameters()]
    with torch.no_grad():
        for weight in module.critic.parameters():
            weight.normal_()
    module.follow()
    for old, new, followed in zip(
        before, module.target.parameters(), module.critic.parameters(), strict=True
    ):
        torch.testing.assert_close(new, 0.98 * old + 0.02 * followed)
    trained = [name for name, weight in module.named_parameters() if weight.requires_grad]
    assert not [name for name in trained if name.startswith("target")]


def test_a_batch_that_goes_on_is_the_same_batch() -> None:
    dynamics = frozen(MDNRNN(Z, A, H))
    trained = task(dynamics, ActorCritic(Z + H, SPEC, 0.9), count=10)
    whole = [batch.tolist() for batch in trained.batches(0, 0)]
    assert [batch.tolist() for batch in trained.batches(0, 2)] == whole[2:]
    drawn = [row for batch in whole for row in batch]
    assert sorted(drawn[:10]) == sorted(drawn[10:20]) == list(range(10)), "passes over all moments"


# --- the stage


def trained(folder: Path, *words: str) -> dict[str, Any]:
    """The manifest of a controller that the program trains."""
    done = run(folder, "stage=all", *BRIEF, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(read_json(folder / "it/controller/manifest.json"))


@pytest.mark.system
def test_a_training_killed_at_any_moment_gives_the_agent_of_one_that_was_not(
    tmp_path: Path,
) -> None:
    whole = trained(tmp_path / "whole")
    assert whole["summary"]["steps"] == 6 * 8 * 4
    for stage in ("rollouts", "vae", "rnn"):
        copytree(tmp_path / "whole/it" / stage, tmp_path / "killed/it" / stage)
    for write in (2, 4, 6):
        done = run(tmp_path / "killed", "stage=controller", *BRIEF, kill_at_write=write)
        assert done.returncode == -9, done.stdout + done.stderr
    resumed = trained(tmp_path / "killed")
    assert resumed["fingerprint"] == whole["fingerprint"]
    agents = [read_agent(tmp_path / name / "it/controller/agent") for name in ("whole", "killed")]
    np.testing.assert_array_equal(agents[0].parameters, agents[1].parameters)
    assert agents[0].config.frame_skip == 2
    assert np.abs(agents[0].parameters).max() > 0
    scores = read_json(tmp_path / "whole/it/evaluate/scores.json")
    assert {"agent", "agent in the dream"} <= scores.keys()
    report = (tmp_path / "whole/it/report/index.html").read_text()
    assert "Trained by gradients in the learned model" in report
    assert (
        "trained by gradients in the learned model with a critic"
        in (tmp_path / "whole/it/report/reproducibility.html").read_text()
    )


@pytest.mark.system
def test_a_round_goes_on_with_controller_and_critic_of_the_round_before(tmp_path: Path) -> None:
    words = ("stage=iterate", "iterate.rounds=2", "actor_critic.learning_rate=1e-9")
    done = run(tmp_path, *BRIEF, *words, "actor_critic.final_learning_rate=1e-9")
    assert done.returncode == 0, done.stdout + done.stderr
    folders = [tmp_path / f"it/round-{number}/controller" for number in (1, 2)]
    one, other = (read_agent(folder / "agent").parameters for folder in folders)
    np.testing.assert_allclose(one, other, atol=1e-7)
    for number, entry in enumerate(read_json(tmp_path / "it/rounds.json")["rounds"], 1):
        horizons = read_json(tmp_path / f"it/round-{number}/evaluate/horizons.json")["horizons"]
        assert entry["by_horizon"] == horizons
        assert horizons
        report = (tmp_path / f"it/round-{number}/report/index.html").read_text()
        assert f"{horizons[0]['predicted']:.1f}" in report
    losses = [
        [row["value"] for row in csv.DictReader((folder / "metrics.csv").open())]
        for folder in folders
    ]
    assert losses[0] != losses[1]


@pytest.mark.system
def test_after_a_search_it_goes_on_with_the_controller_that_was_found(tmp_path: Path) -> None:
    words = ("stage=iterate", "iterate.rounds=2", "actor_critic.learning_rate=1e-9")
    later = "iterate.schedule=[{round: 2, controller: {optimizer: actor_critic}}]"
    search = ("controller.optimizer=cma_es", "controller.features=z", "controller.failure_starts=0")
    rate = "actor_critic.final_learning_rate=1e-9"
    done = run(tmp_path, *BRIEF, *words, later, *search, rate)
    assert done.returncode == 0, done.stdout + done.stderr
    agents = [read_agent(tmp_path / f"it/round-{number}/controller/agent") for number in (1, 2)]
    np.testing.assert_allclose(agents[0].parameters, agents[1].parameters, atol=1e-7)


@pytest.mark.system
def test_a_search_in_the_environment_starts_at_the_controller_of_the_gradients(
    tmp_path: Path,
) -> None:
    search = "optimizer: cma_es, world: real, sigma: 1e-6, termination_penalty: 0"
    later = f"iterate.schedule=[{{round: 2, rnn: {{epochs: 0}}, controller: {{{search}}}}}]"
    words = ("stage=iterate", "iterate.rounds=2", "controller.failure_starts=0")
    done = run(tmp_path, *BRIEF, *words, later, "controller.pca_components=null")
    assert done.returncode == 0, done.stdout + done.stderr
    agents = [read_agent(tmp_path / f"it/round-{number}/controller/agent") for number in (1, 2)]
    assert np.abs(agents[0].parameters).max() > 1e-3  # a search that starts at rest is told apart
    np.testing.assert_allclose(agents[0].parameters, agents[1].parameters, atol=1e-4)
    before, after = (load_file(tmp_path / f"it/round-{k}/rnn/rnn.safetensors") for k in (1, 2))
    kept = [name for name in before if "first_latents" not in name]  # those of all rounds so far
    assert kept
    assert all(torch.equal(before[name], after[name]) for name in kept)
    entries = read_json(tmp_path / "it/rounds.json")["rounds"]
    assert entries[0]["predicted"] is not None
    assert entries[1]["predicted"] is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["controller.world=real"], "trains in the learned model; give controller.world=dream"),
        (["controller.pessimism=0.5", LATENT], "several members; give rnn.members=2 or"),
        (["actor_critic.discount=1"], "actor_critic.discount=1: choose a number below 1"),
        (["actor_critic.horizon=0"], "actor_critic.horizon=0: choose 1 to 1000"),
        (["trainer.devices=2"], "trains in one process; give trainer.devices=1"),
        (
            ["controller.exploitation_patience=1"],
            "controller.exploitation_patience=1: needs controller.optimizer=cma_es",
        ),
        (
            ["controller.starts=recorded"],
            "controller.starts=recorded: needs controller.optimizer=cma_es",
        ),
    ],
)
def test_what_it_does_not_take_is_refused_in_one_line(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        check(composed(*GRADIENTS, *words))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_controller_without_a_gradient_is_refused_in_one_line(tmp_path: Path) -> None:
    discrete = ("env.kwargs={continuous: false}", "env.squash=null")
    done = run(tmp_path, "stage=all", *BRIEF, *discrete)
    assert "a choice between discrete actions has no gradient" in error_line(done)


def test_an_agent_without_episodes_is_refused_in_one_line(tmp_path: Path) -> None:
    done = run(
        tmp_path, "stage=controller", "run=it", "base=pretrained/carracing", *GRADIENTS, LATENT
    )
    assert "has no recorded episodes to begin at" in error_line(done)
