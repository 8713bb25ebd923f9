"""Dreams, noise and the rollout loop."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import VectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from worldmodels.data.latents import FirstLatents
from worldmodels.errors import WorldModelsError
from worldmodels.evolution.fitness import EpisodeSpec, Evaluation, eval_batches, wanted_episodes
from worldmodels.evolution.search import Search
from worldmodels.models.controller import ControllerSpec
from worldmodels.models.features import FeatureSpec
from worldmodels.models.mdnrnn import MDNRNN
from worldmodels.models.vae import ConvVAE
from worldmodels.workers.queue import Batch
from worldmodels.worlds.dream import DreamWorld
from worldmodels.worlds.dream_env import DreamEnv, DreamVectorEnv
from worldmodels.worlds.noise import EpisodeNoise
from worldmodels.worlds.rollout import Outcome, PopulationPolicy, rollout
from worldmodels.worlds.world import Step

CPU = torch.device("cpu")
SQUASH = ControllerSpec(("tanh", "half_tanh", "clipped_tanh"))


def dream(
    temperature: float = 1.0,
    ends: float = -10.0,
    latent: int = 6,
    dtype: torch.dtype = torch.float32,
    reward_weight: float = 0.1,
    state: tuple[str, ...] = ("h",),
) -> DreamWorld:
    """A small untrained dream whose termination logit is about `ends`."""
    torch.manual_seed(0)
    memory = MDNRNN(latent, 3, 12, 3, reward_weight=reward_weight)
    with torch.no_grad():
        memory.head.bias[-1] = ends
    rng = np.random.default_rng(0)
    first = FirstLatents(
        rng.normal(size=(5, latent)).astype(np.float32),
        rng.normal(size=(5, latent)).astype(np.float32),
    )
    return DreamWorld(memory, first, temperature, FeatureSpec(state), dtype=dtype)


def population(world: DreamWorld, candidates: int, episodes: int) -> PopulationPolicy:
    rng = np.random.default_rng(1)
    size = SQUASH.size(world.feature_size)
    parameters = rng.normal(size=(candidates, size)).astype(np.float32)
    return PopulationPolicy(parameters, episodes, world.feature_size, SQUASH, CPU)


def test_features_that_were_given_stay_when_episodes_are_replaced() -> None:
    world = dream(state=())
    world.reset(range(4))
    given = world.features()
    before = given.clone()
    world.restart(np.array([False, True, False, True]), [70, 71])
    torch.testing.assert_close(given, before)
    assert not torch.equal(world.features()[1], before[1])


def test_noise_is_uniform_and_normal_and_uncorrelated() -> None:
    noise = EpisodeNoise(range(2000), 0, CPU)
    assert stats.kstest(noise.uniform(3, 8).numpy().ravel(), "uniform").pvalue > 1e-3
    normal = noise.normal(3, 8).numpy()
    assert stats.kstest(normal.ravel(), "norm").pvalue > 1e-3
    assert abs(np.corrcoef(normal.T) - np.eye(8)).max() < 0.1
    later = noise.normal(4, 8).numpy()
    assert abs(np.corrcoef(normal.ravel(), later.ravel())[0, 1]) < 0.05
    other = EpisodeNoise(range(2000), 1, CPU).normal(3, 8).numpy()
    assert abs(np.corrcoef(normal.ravel(), other.ravel())[0, 1]) < 0.05


def test_noise_belongs_to_the_episode_and_not_to_the_env() -> None:
    together = EpisodeNoise([5, 6, 7], 0, CPU).normal(9, 4)
    alone = EpisodeNoise([6], 0, CPU).normal(9, 4)
    assert torch.equal(together[1:2], alone)


def test_a_dream_does_not_depend_on_its_neighbours() -> None:
    seeds = [11, 12, 13, 14]
    together = rollout(dream(), population(dream(), 1, 4), seeds, 30)
    alone = [rollout(dream(), population(dream(), 1, 1), [seed], 30).returns[0] for seed in seeds]
    np.testing.assert_allclose(together.returns, alone, rtol=1e-4)


def test_equal_seeds_give_equal_dreams_and_others_differ() -> None:
    outcome = rollout(dream(), population(dream(), 1, 3), [4, 4, 5], 30)
    assert outcome.returns[0] == pytest.approx(outcome.returns[1], rel=1e-5)
    assert outcome.returns[0] != pytest.approx(outcome.returns[2], rel=1e-5)


def test_a_dream_ends_where_its_head_says_so() -> None:
    world = dream(ends=10.0)
    outcome = rollout(world, population(world, 1, 4), range(4), 30)
    assert (outcome.lengths == 1).all()
    assert outcome.terminated.all()


def test_a_dream_of_no_rewards_is_worth_the_steps_survived() -> None:
    world = dream(ends=-0.05, reward_weight=0.0)
    outcome = rollout(world, population(world, 4, 16), range(64), 30)
    assert 0 < outcome.terminated.sum() < 64
    np.testing.assert_array_equal(outcome.returns, outcome.lengths - outcome.terminated)


def test_a_dream_in_bfloat16_is_nearly_that_in_float32() -> None:
    latents = []
    for dtype in (torch.float32, torch.bfloat16):
        world = dream(dtype=dtype)
        world.reset(range(500))
        for _ in range(20):
            features = world.step(torch.zeros(500, 3)).features
        assert features.dtype == torch.float32
        latents.append(world.latents)
    apart = (latents[0] - latents[1]).abs()
    assert apart.max() > 0
    assert apart.median() < 0.01 * latents[0].std()


def test_colder_dreams_vary_less() -> None:
    spread = []
    for temperature in (0.05, 1.0):
        world = dream(temperature)
        world.reset(range(500))
        world.step(torch.zeros(500, 3))
        spread.append(world.latents.std(dim=0).mean().item())
    assert spread[0] < 0.8 * spread[1]


class Countdown:
    """A world whose environment of seed n lives n steps, and whose feature is the step's number."""

    feature_size = 1
    device = CPU

    def reset(self, seeds: Sequence[int]) -> Tensor:
        self.left = np.array(seeds)
        self.widths: list[int] = []
        return torch.zeros(len(seeds), 1)

    def step(self, actions: Tensor) -> Step:
        assert len(actions) == len(self.left)
        self.widths.append(len(self.left))
        self.left = self.left - 1
        ended = self.left == 0
        reward = actions[:, 0].double().numpy()
        return Step(torch.zeros(len(ended), 1), reward, ended, np.zeros_like(ended))

    def keep(self, mask: np.ndarray) -> None:
        self.left = self.left[mask]

    def close(self) -> None:
        pass


def test_ended_envs_leave_the_batch_and_results_keep_their_order() -> None:
    world = Countdown()
    # Candidate 0 always answers tanh(1), candidate 1 tanh(-1): biases only.
    candidates = np.array([[0, 1], [0, -1]], np.float32)
    policy = PopulationPolicy(candidates, 3, 1, ControllerSpec(("tanh",)), CPU)
    outcome = rollout(world, policy, [1, 4, 2, 3, 9, 1], max_steps=6)
    assert outcome.lengths.tolist() == [1, 4, 2, 3, 6, 1]
    assert outcome.terminated.tolist() == [True, True, True, True, False, True]
    signs = np.array([1, 1, 1, -1, -1, -1])
    np.testing.assert_allclose(outcome.returns, signs * outcome.lengths * np.tanh(1), rtol=1e-6)
    assert world.widths == [6, 4, 3, 2, 1, 1]


def test_a_stuck_env_ends_and_is_charged_for_the_steps_that_were_left() -> None:
    candidates = np.array([[0, 1], [0, -1]], np.float32)  # one gains each step, one only loses
    outcomes = []
    for stall_steps in (None, 5):
        world = Countdown()
        policy = PopulationPolicy(candidates, 2, 1, ControllerSpec(("tanh",)), CPU)
        outcomes.append(rollout(world, policy, [100, 3, 100, 3], 20, stall_steps=stall_steps))
    whole, cut = outcomes
    np.testing.assert_allclose(cut.returns, whole.returns)
    assert whole.lengths.tolist() == [20, 3, 20, 3]
    assert cut.lengths.tolist() == [20, 3, 6, 3]
    assert cut.terminated.tolist() == [False, True, False, True]


class Script:
    """A policy whose actions, which are Countdown's rewards, are written down."""

    def __init__(self, actions: list[float]) -> None:
        self.actions = iter(actions)

    def act(self, features: Tensor) -> Tensor:
        return torch.full((len(features), 1), next(self.actions))

    def keep(self, mask: np.ndarray) -> None:
        pass


def test_a_gain_on_the_step_that_cuts_a_env_is_not_counted_for_the_rest() -> None:
    script = Script([1.0, -1.0, -1.0, -1.0, -1.0, 2.0])  # 2 down from its best, in 5 steps
    outcome = rollout(Countdown(), script, [100], 20, stall_steps=5)
    assert outcome.lengths.tolist() == [6]
    np.testing.assert_allclose(outcome.returns, [-1.0 - (20 - 6) * 2 / 5])


def test_returns_over_the_first_steps_are_those_of_whole_and_of_failed_episodes() -> None:
    script = Script([1.0, 2.0, 3.0, -1.0, 5.0])
    outcome = rollout(Countdown(), script, [2, 4, 9], 5, horizons=(1, 2, 4, 5, 6))
    nan = np.nan  # the first episode ends with a reward above its mean, the last by the time limit
    wanted = [[1, 3, nan, nan, nan], [1, 3, 5, 5, 5], [1, 3, 5, 10, nan]]
    np.testing.assert_array_equal(outcome.partial, wanted)
    assert rollout(Countdown(), Script([1.0]), [1], 5).partial is None


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40))
def test_batches_hold_every_episode_once_and_are_about_equal(
    count: int, episodes: int, num_envs: int
) -> None:
    candidates = np.arange(count, dtype=np.float32)[:, None]
    spec = EpisodeSpec(num_envs, 10, ControllerSpec(("tanh",)))
    cut = eval_batches(candidates, range(episodes), spec)
    played = [(row[0], seed) for batch in cut for row in batch.candidates for seed in batch.seeds]
    assert played == [(row, seed) for row in range(count) for seed in range(episodes)]
    widths = [len(part.candidates) * len(part.seeds) for part in cut]
    assert max(widths) <= num_envs
    if episodes <= num_envs:
        assert max(widths) - min(widths) <= episodes


def test_results_of_jobs_keep_their_names_where_one_is_missing() -> None:
    class Pool:
        def results(self, batch: Batch) -> list[Outcome]:
            parts = np.arange(2.0), np.ones(2, int), np.zeros(2, bool)
            return [Outcome(*parts, partial=np.full(2, 7.0))] * 3

    pool: Any = Pool()
    found = Evaluation(Batch(3), (2, 3)).outcome(pool)
    assert found.disagreement is None
    assert found.partial is not None
    assert (found.partial == np.full((2, 3), 7.0)).all()
    assert found.returns.tolist() == [[0, 1, 0], [1, 0, 1]]


def test_as_many_episodes_as_it_takes_to_tell_candidates_apart() -> None:
    rng = np.random.default_rng(0)
    candidates, seeds, noise = (
        rng.normal(0, scale, size)
        for scale, size in ((3, (4000, 1)), (20, (1, 12)), (6, (4000, 12)))
    )
    wanted = wanted_episodes(candidates + seeds + noise, 0.7)
    assert wanted == pytest.approx(36 / 9 * 0.7 / 0.3, rel=0.1)
    assert wanted_episodes(candidates + noise - 50, 0.7) == pytest.approx(wanted)
    assert wanted_episodes(candidates + 0.01 * noise, 0.7) < 1
    opposed = np.array([[1.0, -1.0], [-1.0, 1.0]])  # no candidate is better than another
    assert wanted_episodes(opposed, 0.7) == np.inf


@pytest.mark.parametrize("decoded", [False, True])
def test_the_dream_is_a_gymnasium_vector_environment(decoded: bool) -> None:
    low, high = np.array([-1.0, 0, 0]), np.array([1.0, 1, 1])
    env: VectorEnv = DreamVectorEnv(dream(ends=0.0), 5, low, high, 7, ConvVAE(6), decoded)
    first, _ = env.reset(seed=3)
    assert env.observation_space.contains(first)
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(40)]
    ended_before = np.zeros(5, bool)
    lengths = np.zeros(5, int)
    seen_truncation = False
    trace = [first]
    for action in actions:
        observation, reward, terminated, truncated, _ = env.step(action)
        assert env.observation_space.contains(observation)
        assert reward.shape == terminated.shape == truncated.shape == (5,)
        assert not (terminated & truncated).any()
        # NEXT_STEP autoreset: the step after the end is a reset, with no reward and no end.
        assert (reward[ended_before] == 0).all()
        assert not (terminated | truncated)[ended_before].any()
        lengths = np.where(ended_before, 0, lengths + 1)
        assert (lengths[truncated] == 7).all()
        assert (lengths <= 7).all()
        seen_truncation |= bool(truncated.any())
        ended_before = terminated | truncated
        trace.append(observation)
    assert seen_truncation
    again, _ = env.reset(seed=3)
    replay = [again] + [env.step(action)[0] for action in actions]
    for one, two in zip(trace, replay, strict=True):
        np.testing.assert_array_equal(one, two)
    env.close()


@pytest.mark.filterwarnings("ignore:.*Box observation space")  # latents have no bounds
@pytest.mark.parametrize("decoded", [False, True])
def test_a_single_dream_passes_gymnasiums_own_checker(decoded: bool) -> None:
    low, high = np.array([-1.0, 0, 0]), np.array([1.0, 1, 1])
    num_envs = DreamVectorEnv(dream(), 1, low, high, 20, ConvVAE(6), decoded)
    check_env(DreamEnv(num_envs), skip_render_check=True)


def test_a_misused_dream_is_refused_as_the_simulator_refuses_it() -> None:
    low, high = np.array([-1.0, 0, 0]), np.array([1.0, 1, 1])
    env = DreamVectorEnv(dream(), 2, low, high, 20, ConvVAE(6))
    alone = DreamEnv(DreamVectorEnv(dream(), 1, low, high, 20))
    actions = np.zeros((2, 3), np.float32)
    for early in (
        lambda: env.step(actions),
        lambda: alone.step(actions[0]),
        env.frames,
        lambda: env.reset(options={"reset_mask": np.array([False, True])}),
    ):
        with pytest.raises(ResetNeeded, match=r"^environment 0: was never reset; call reset"):
            early()
    seeds: tuple[Any, ...] = (3, np.int64(3), [3, 4], np.array([3, 4]))
    given = [env.reset(seed=seed)[0] for seed in seeds]
    for observation in given:
        np.testing.assert_array_equal(observation, given[0])
    np.testing.assert_array_equal(alone.reset(seed=seeds[1])[0], given[0][0])
    with pytest.raises(WorldModelsError, match=r"^actions have shape \(2, 2\), not "):
        env.step(actions[:, :2])
    with pytest.raises(WorldModelsError, match=r"^environment 1: action .* is not finite"):
        env.step(np.array([[0, 0, 0], [0, np.nan, 0]], np.float32))


@pytest.mark.parametrize("overlap", [False, True])
def test_a_search_told_again_from_its_log_goes_on_as_if_never_stopped(overlap: bool) -> None:
    def score(candidates: np.ndarray) -> np.ndarray:
        return np.asarray(-((candidates - 0.5) ** 2).sum(axis=1))

    one = Search(30, 8, 0.1, seed=3)
    log = []
    asked = [one.ask()] if overlap else []
    for _ in range(12):
        asked.append(one.ask())
        log.append(score(asked.pop(0)))
        one.tell(log[-1])
    two = Search(30, 8, 0.1, seed=3)
    if overlap:
        two.ask()
    for fitness in log:
        two.ask()
        two.tell(fitness)
    np.testing.assert_array_equal(one.ask(), two.ask())
    np.testing.assert_array_equal(one.mean, two.mean)
    assert score(one.mean[None])[0] > score(np.zeros((1, 30)))[0]
