"""Ensembles of dynamics models: which member predicts, the reward, disagreement, files, seeds."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from worldmodels import seeds
from worldmodels.agents.model_files import load_dynamics, load_members, save_dynamics
from worldmodels.data.latents import FirstLatents
from worldmodels.errors import ArtifactError, ConfigError
from worldmodels.files import weights
from worldmodels.models.controller import ControllerSpec
from worldmodels.models.features import FeatureSpec
from worldmodels.models.gru import GRUDynamics
from worldmodels.models.heads import MixtureDynamics
from worldmodels.models.mdnrnn import MDNRNN
from worldmodels.models.transformer import TransformerDynamics
from worldmodels.worlds.dream import MIXTURE_STREAM, NORMAL_STREAM, DreamWorld
from worldmodels.worlds.members import (
    DISAGREEMENT_STEPS,
    MEMBER_STREAM,
    SamplingRule,
    check_rule,
)
from worldmodels.worlds.noise import EpisodeNoise
from worldmodels.worlds.rollout import Outcome, PopulationPolicy, rollout

CPU = torch.device("cpu")
LATENT, ACTION, TEMPERATURE = 6, 3, 1.25
FIRST = FirstLatents(*np.random.default_rng(0).normal(size=(2, 5, LATENT)).astype(np.float32))
MODELS: dict[str, Callable[..., MixtureDynamics]] = {
    "mdn_rnn": MDNRNN,
    "gru": GRUDynamics,
    "transformer": partial(TransformerDynamics, heads=2, context=6),
}
every_model = pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)


def members(build: Callable[..., MixtureDynamics], count: int, **other: Any) -> list[Any]:
    torch.manual_seed(0)
    return [build(LATENT, ACTION, 12, mixtures=3, **other) for _ in range(count)]


def dream(models: list[Any], rule: SamplingRule = SamplingRule()) -> DreamWorld:  # noqa: B008
    return DreamWorld(models[0], FIRST, TEMPERATURE, FeatureSpec(), others=models[1:], rule=rule)


def uniform(seed: int, step: int) -> float:
    """The first uniform number of a step in the stream of the draws, by Python's integers."""
    mask, golden = 2**64 - 1, 0x9E3779B97F4A7C15

    def mix(x: int) -> int:
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
        return x ^ (x >> 31)

    key = mix(mix(seed * golden & mask) ^ mix(MEMBER_STREAM))
    return (mix((key + (step + 1) * golden) & mask) >> 40) * 2.0**-24


def mixture_means(model: MixtureDynamics, state: tuple[Tensor, ...]) -> np.ndarray:
    """The mean of each dimension's mixture, (N, Z), in float64."""
    latent = model.predict(state).latent
    logits, mean = latent.logits.double().numpy(), latent.mean.double().numpy()
    share = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    return np.asarray((share * mean).sum(axis=-1))


@torch.no_grad()
@pytest.mark.parametrize("each_step", [True, False], ids=["step", "episode"])
@every_model
def test_a_step_is_that_of_the_members_alone(
    build: Callable[..., MixtureDynamics], each_step: bool
) -> None:
    """With the drawn member's sample and end, the features of the first, and numpy's reward."""
    models, episodes = members(build, 3), [21, 22, 23, 24, 25, 26]
    world = dream(models, SamplingRule(each_step, pessimism=0.7))
    features, noise = world.reset(episodes), EpisodeNoise(episodes, MIXTURE_STREAM, CPU)
    normal = EpisodeNoise(episodes, NORMAL_STREAM, CPU)
    states = [model.initial_state(6) for model in models]
    used = set()
    for time in range(DISAGREEMENT_STEPS + 1):
        actions, before = torch.full((6, ACTION), 0.1 * time), world.latents
        step = world.step(actions)
        states = [m.advance(before, actions, s) for m, s in zip(models, states, strict=True)]
        predictions = [m.predict(s) for m, s in zip(models, states, strict=True)]
        drawn = [int(uniform(seed, time if each_step else 0) * 3) for seed in episodes]
        used.add(tuple(drawn))
        numbers = noise.uniform(time, LATENT), normal.normal(time, LATENT)
        samples = [p.latent.sample(*numbers, TEMPERATURE) for p in predictions]
        for row, number in enumerate(drawn):
            torch.testing.assert_close(world.latents[row], samples[number][row])
            assert step.terminated[row] == (predictions[number].termination[row] > 0)
        rewards = np.stack([p.reward.double().numpy() for p in predictions])
        wanted = rewards.mean(axis=0) - 0.7 * rewards.std(axis=0)
        np.testing.assert_allclose(step.reward, wanted, rtol=1e-5, atol=1e-6)
        assert step.disagreement is not None
        means = np.stack([mixture_means(m, s) for m, s in zip(models, states, strict=True)])
        apart = means.std(axis=0).mean(axis=1) if time % DISAGREEMENT_STEPS == 0 else np.nan
        np.testing.assert_allclose(step.disagreement, np.broadcast_to(apart, 6), rtol=1e-4)
        features = step.features
        torch.testing.assert_close(features[:, LATENT:], models[0].features(states[0], ["h"]))
    assert (len(used) > 1) == each_step
    assert {number for drawn in used for number in drawn} == {0, 1, 2}


@torch.no_grad()
@every_model
def test_one_member_is_the_model_itself_to_the_bit(build: Callable[..., MixtureDynamics]) -> None:
    (model,) = members(build, 1)
    world, state = dream([model], SamplingRule(False)), model.initial_state(4)
    world.reset(range(4))
    noise = EpisodeNoise(range(4), MIXTURE_STREAM, CPU)
    normal = EpisodeNoise(range(4), NORMAL_STREAM, CPU)
    for time in range(5):
        actions, before = torch.full((4, ACTION), 0.1), world.latents
        step = world.step(actions)
        state = model.advance(before, actions, state)
        prediction = model.predict(state)
        numbers = noise.uniform(time, LATENT), normal.normal(time, LATENT)
        assert torch.equal(world.latents, prediction.latent.sample(*numbers, TEMPERATURE))
        np.testing.assert_array_equal(step.reward, prediction.reward.double().numpy())
        assert step.disagreement is None


def played(models: list[Any], episodes: list[int], each_step: bool) -> Outcome:
    world = dream(models, SamplingRule(each_step, 1.0))
    spec = ControllerSpec(("tanh", "half_tanh", "clipped_tanh"))
    size = (1, spec.size(world.feature_size))
    parameters = np.random.default_rng(1).normal(size=size).astype(np.float32)
    policy = PopulationPolicy(parameters, len(episodes), world.feature_size, spec, CPU)
    return rollout(world, policy, episodes, 25)


@pytest.mark.parametrize("each_step", [True, False], ids=["step", "episode"])
@every_model
def test_an_episode_does_not_depend_on_its_neighbours(
    build: Callable[..., MixtureDynamics], each_step: bool
) -> None:
    models, episodes = members(build, 3), [11, 12, 13, 14, 15]
    for number, model in enumerate(models):  # each ends its episodes at another time
        with torch.no_grad():
            model.head.bias[-1] = -0.2 * (number + 1)
    together = played(models, episodes, each_step)
    assert together.disagreement is not None
    for row, seed in enumerate(episodes):
        alone = played(models, [seed], each_step)
        assert alone.disagreement is not None
        assert alone.lengths[0] == together.lengths[row]
        np.testing.assert_allclose(alone.returns[0], together.returns[row], rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(alone.disagreement[0], together.disagreement[row], rtol=1e-3)


@every_model
def test_the_reward_alone_is_that_of_the_prediction(build: Callable[..., MixtureDynamics]) -> None:
    (model,) = members(build, 1)
    state = model.advance(torch.randn(5, LATENT), torch.randn(5, ACTION), model.initial_state(5))
    torch.testing.assert_close(model.predict_reward(state), model.predict(state).reward)


def test_members_that_predict_no_reward_survive_or_not() -> None:
    world = dream(members(MDNRNN, 2, reward_weight=0.0))
    world.reset(range(50))
    step = world.step(torch.zeros(50, ACTION))
    assert 0 < step.terminated.sum() < 50
    np.testing.assert_array_equal(step.reward, ~step.terminated)


def test_replaced_episodes_are_those_of_their_seeds() -> None:
    models = members(MDNRNN, 3)
    world, fresh = dream(models), dream(models)
    world.reset([1, 2, 3])
    world.step(torch.zeros(3, ACTION))
    world.restart(np.array([False, True, False]), [77])
    fresh.reset([77])
    for _ in range(4):
        step, wanted = world.step(torch.zeros(3, ACTION)), fresh.step(torch.zeros(1, ACTION))
        torch.testing.assert_close(step.features[1:2], wanted.features)
        np.testing.assert_allclose(step.reward[1], wanted.reward[0], rtol=1e-5)


@pytest.mark.parametrize(
    ("count", "other", "said"),
    [(1, {}, "one member; give 0"), (2, {"reward_weight": 0.0}, "no reward; give 0")],
)
def test_pessimism_without_effect_is_refused(count: int, other: dict[str, Any], said: str) -> None:
    models = members(MDNRNN, count, **other)
    check_rule("", SamplingRule(), models)
    with pytest.raises(ConfigError, match=rf"^pessimism=0\.5: the dynamics model .*{said}"):
        check_rule("", SamplingRule(pessimism=0.5), models)


# --- files


@every_model
def test_a_file_holds_all_members(build: Callable[..., MixtureDynamics], tmp_path: Path) -> None:
    models, path = members(build, 3), tmp_path / "rnn.safetensors"
    save_dynamics(path, models[0], FIRST, models[1:])
    for found, wanted in zip(load_members(path), models, strict=True):
        assert found.sizes == wanted.sizes
        for name, tensor in wanted.state_dict().items():
            assert torch.equal(found.state_dict()[name], tensor)
    first = load_dynamics(path).state_dict()
    assert all(torch.equal(first[name], part) for name, part in models[0].state_dict().items())


def test_a_file_of_one_member_is_as_it_was_before_there_were_ensembles(tmp_path: Path) -> None:
    (model,) = members(MDNRNN, 1)
    save_dynamics(tmp_path / "found", model, FIRST)
    before = {
        "model": {"class": "mdn_rnn", "format": 1, "sizes": dict(model.sizes)},
        "module": model.state_dict(),
        "first_latents": {name: torch.from_numpy(rows) for name, rows in vars(FIRST).items()},
    }
    weights.save(tmp_path / "before", before)
    assert (tmp_path / "found").read_bytes() == (tmp_path / "before").read_bytes()


def _other_shape(found: list[Any]) -> list[Any]:
    return [found[0] | {"head.bias": torch.zeros(3)}]


def _infinite(found: list[Any]) -> list[Any]:
    return [found[0] | {"head.bias": torch.full_like(found[0]["head.bias"], torch.inf)}]


@pytest.mark.parametrize(
    "change",
    [
        lambda found: [],
        lambda found: 5,
        lambda found: [5],
        lambda found: found * 32,
        lambda found: [{"head.bias": found[0]["head.bias"]}],
        _other_shape,
        _infinite,
    ],
    ids=["none", "a number", "numbers", "too many", "a part", "another shape", "infinite"],
)
def test_hostile_members_are_refused_in_one_line(
    change: Callable[[Any], Any], tmp_path: Path
) -> None:
    models, path = members(MDNRNN, 2), tmp_path / "rnn.safetensors"
    save_dynamics(path, models[0], FIRST, models[1:])
    content = weights.load(path)
    weights.save(path, content | {"members": change(content["members"])})
    with pytest.raises(ArtifactError, match=r"rnn\.safetensors.*: copy it again$") as raised:
        load_members(path)
    assert "\n" not in str(raised.value)


def test_members_have_seeds_of_their_own_and_the_first_that_of_the_run() -> None:
    found = {
        (seed, member): seeds.of_member(seed, member) for seed in (0, 1) for member in range(9)
    }
    assert found[0, 0] == 0
    assert found[1, 0] == 1
    assert len(set(found.values())) == 18
