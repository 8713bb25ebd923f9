"""Value functions: returns they learn, their training, their file, and truncated episodes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_starts import ACTION, LATENT, episodes

from worldmodels.agents.value_file import VALUE, load_values, save_values
from worldmodels.data.latents import FirstLatents, LatentSet, write_latents
from worldmodels.data.returns import future_returns
from worldmodels.data.sequences import FailureEnd
from worldmodels.errors import ArtifactError
from worldmodels.files import weights
from worldmodels.models.controller import ControllerSpec
from worldmodels.models.features import FeatureSpec
from worldmodels.models.gru import GRUDynamics
from worldmodels.models.mdnrnn import MDNRNN
from worldmodels.models.transformer import TransformerDynamics
from worldmodels.models.value import ValueEnsemble
from worldmodels.training.values import ValueRows, explained_variance, fit_values, value_rows
from worldmodels.worlds.dream import DreamWorld
from worldmodels.worlds.members import SamplingRule
from worldmodels.worlds.rollout import PopulationPolicy, rollout
from worldmodels.worlds.terminal_value import TerminalValue

CPU = torch.device("cpu")


@pytest.fixture
def latents(tmp_path: Path) -> LatentSet:
    write_latents(tmp_path / "latents.h5", episodes(), {})
    return LatentSet(tmp_path / "latents.h5")


# --- returns


def test_a_future_return_is_the_sum_of_the_next_rewards() -> None:
    rewards = np.arange(1.0, 7.0)  # 1 to 6
    assert future_returns(rewards, 2, ended=True).tolist() == [3, 5, 7, 9, 11, 6]
    assert future_returns(rewards, 2, ended=False).tolist() == [3, 5, 7, 9, 11]
    assert future_returns(rewards, 9, ended=True).tolist() == [21, 20, 18, 15, 11, 6]
    assert not len(future_returns(rewards, 9, ended=False))


@torch.no_grad()
@pytest.mark.parametrize("build", [MDNRNN, GRUDynamics, TransformerDynamics])
@pytest.mark.parametrize("updated", [False, True])
def test_rows_are_the_features_of_a_controller_and_what_followed(
    build: Callable[..., Any], updated: bool, latents: LatentSet
) -> None:
    torch.manual_seed(0)
    model = build(LATENT, ACTION, 8).eval()
    spec = FeatureSpec(sampled=False, updated=updated)
    end = FailureEnd(9, 40)
    rows = value_rows(latents, np.arange(3), model, spec, 50, end, 0.0, 1, CPU)
    recorded = episodes()
    # Of the third episode the 11 frames that 50 steps follow, of the second the 40 until its end.
    expected = [50.0] * 11 + [recorded[1].rewards[t : min(t + 50, 40)].sum() for t in range(40)]
    np.testing.assert_allclose(rows.returns, expected, rtol=1e-6)
    at = 0
    for episode, frames in ((recorded[2], 11), (recorded[1], 40)):
        state, before = model.initial_state(1), torch.zeros(1, ACTION)
        for time in range(frames):
            latent = torch.from_numpy(episode.mean[time : time + 1])
            wanted = spec.features(latent, before, state, model)
            torch.testing.assert_close(rows.features[at].float(), wanted[0], rtol=0, atol=3e-3)
            before = torch.from_numpy(episode.actions[time : time + 1])
            state = model.advance(latent, before, state)
            at += 1
    assert at == len(rows.features)
    none = value_rows(latents, np.array([0]), model, spec, 50, end, 0.0, 1, CPU)
    assert none.features.shape == (0, spec.size(LATENT, model))
    assert np.isnan(explained_variance(ValueEnsemble(13, 2, 50), none))


@pytest.mark.parametrize("end", ["stall", "failure", "completed task"])
def test_a_penalty_lowers_the_returns_before_a_failure_alone(end: str, tmp_path: Path) -> None:
    recorded, stall = episodes()[1], FailureEnd(9, 40)  # it stalls from step 30 on
    steps = 40
    if end != "stall":
        steps = len(recorded.rewards)
        recorded.terminated[-1] = True
        recorded.rewards[-1] = 9 if end == "completed task" else -9
    write_latents(tmp_path / "latents.h5", [recorded], {})
    latents, model = LatentSet(tmp_path / "latents.h5"), GRUDynamics(LATENT, ACTION, 8).eval()
    without, lowered = (
        value_rows(latents, np.array([0]), model, FeatureSpec(), 20, stall, penalty, 1, CPU).returns
        for penalty in (0.0, 500.0)
    )
    # In the last 20 frames the end is among the next 20 steps.
    expected = np.where(np.arange(steps) >= steps - 20, 500.0, 0.0) * (end != "completed task")
    np.testing.assert_allclose(without - lowered, expected, atol=1e-3)


def test_sampled_latents_are_drawn_from_their_posterior(latents: LatentSet) -> None:
    model = GRUDynamics(LATENT, ACTION, 8).eval()
    both = [
        value_rows(latents, np.array([2]), model, FeatureSpec((), sampled), 30, None, 0.0, 1, CPU)
        for sampled in (False, True)
    ]
    noise = (both[1].features - both[0].features).float().numpy()
    scaled = noise / np.exp(episodes()[2].logvar[: len(noise)] / 2)
    assert abs(scaled.mean()) < 0.25
    assert 0.8 < scaled.std() < 1.2


# --- training


def example(count: int) -> ValueRows:
    """Features, and returns that are a nonlinear function of them."""
    features = np.random.default_rng(count).normal(size=(count, 6)).astype(np.float32)
    returns = 100 * np.abs(features[:, 0]) + 50 * features[:, 1]
    return ValueRows(torch.from_numpy(features).half(), torch.from_numpy(returns))


def test_training_explains_returns_and_depends_on_the_seed_alone() -> None:
    rows, other = example(40_000), example(500)

    def trained(seed: int) -> ValueEnsemble:
        torch.manual_seed(0)
        values = ValueEnsemble(6, 2, 40)
        values.normalise(rows.features.float())
        fit_values(values, rows, seed)
        return values

    one, same, another = trained(1), trained(1), trained(2)
    features = other.features.float()
    with torch.no_grad():
        found = one(features)
        assert (found == same(features)).all()
        assert (found != another(features)).any()
        assert (found[0] != found[1]).any()  # two functions
        # One of them alone, by its own weights.
        hidden = (features.double() - one.mean) / one.std
        for weight, bias in zip(one.weights, one.biases, strict=True):
            hidden = hidden @ weight[1].double() + bias[1].double()
            if weight.shape[2] > 1:
                hidden = hidden * torch.sigmoid(hidden)
        torch.testing.assert_close(found[1].double(), hidden.squeeze(1) * 40, rtol=1e-4, atol=1e-3)
        explained = explained_variance(one, other)
        residual = np.var(other.returns.numpy())
        error = np.mean((found.mean(dim=0).numpy() - other.returns.numpy()) ** 2)
    assert explained == pytest.approx(1 - error / residual, abs=1e-4)
    assert explained > 0.9


# --- file


def _other(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda tree: tree["tensors"].update({name: value})


def _size(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda tree: tree["sizes"].update({name: value})


@pytest.mark.parametrize(
    "change",
    [
        lambda tree: tree.pop("sizes"),
        lambda tree: tree.pop("tensors"),
        lambda tree: tree["tensors"].pop("mean"),
        _size("more", 1),
        _size("members", 33),
        _size("members", "2"),
        _size("horizon", 0),
        _size("horizon", 2.5),
        _size("penalty", -1.0),
        _size("penalty", float("nan")),
        _other("more", torch.zeros(1)),
        _other("std", torch.zeros(8)),
        _other("std", torch.zeros(7).half()),
        _other("std", torch.full((7,), torch.nan)),
    ],
)
def test_a_damaged_file_of_value_functions_is_refused(
    change: Callable[[dict[str, Any]], None], tmp_path: Path
) -> None:
    path, values = tmp_path / VALUE, ValueEnsemble(7, 2, 40, 7.5)
    save_values(path, values)
    found = load_values(path, 7)
    features = torch.randn(3, 7)
    assert (found.horizon, found.penalty) == (40, 7.5)
    torch.testing.assert_close(found(features), values(features), rtol=0, atol=0)
    with pytest.raises(ArtifactError, match=f"^{path} does not hold value functions of 8 features"):
        load_values(path, 8)
    tree = weights.load(path)
    change(tree)
    weights.save(path, tree)
    with pytest.raises(ArtifactError, match=rf"^{path}.*copy it again$"):
        load_values(path, 7)


# --- episodes in the learned model


def test_a_truncated_episode_earns_the_value_of_what_follows() -> None:
    torch.manual_seed(0)
    model = MDNRNN(LATENT, ACTION, 8, mixtures=2)
    first = FirstLatents(*np.random.default_rng(0).normal(size=(2, 5, LATENT)).astype(np.float32))
    values = ValueEnsemble(LATENT + 8, 3, 40)
    rule = SamplingRule(sampled_termination=True)

    class Kept:
        """The features after the last step of each episode."""

        def begin(self, world: Any) -> None:
            self.last = torch.zeros(60, world.feature_size)

        def record(self, indices: np.ndarray, actions: Any, step: Any, world: Any) -> None:
            self.last[torch.from_numpy(indices)] = step.features

    def outcome(terminal: TerminalValue | None) -> Any:
        world = DreamWorld(model, first, 1.0, FeatureSpec(), rule=rule, terminal=terminal)
        spec = ControllerSpec(("tanh",) * ACTION)
        candidate = np.zeros((1, (world.feature_size + 1) * ACTION), np.float32)
        policy = PopulationPolicy(candidate, 60, world.feature_size, spec, CPU)
        kept = Kept()
        return rollout(world, policy, range(60), 4 if terminal is None else 9, kept), kept.last

    plain, last = outcome(None)
    with torch.no_grad():
        found = values(last).double().numpy()
    assert 0 < plain.terminated.sum() < 60
    for pessimism in (0.0, 2.0):
        ended, _ = outcome(TerminalValue(values, 4, pessimism))
        np.testing.assert_array_equal(ended.lengths, plain.lengths)
        np.testing.assert_array_equal(ended.terminated, plain.terminated)
        value = found.mean(axis=0) - pessimism * found.std(axis=0)
        value[plain.terminated] = 0
        np.testing.assert_allclose(ended.returns, plain.returns + value, rtol=1e-5)
