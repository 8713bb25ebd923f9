import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from worldmodels.envs.actions import ActionPolicy, make_action_policy
from worldmodels.errors import ConfigError

LOW = np.array([-1.0, 0.0, 0.0], np.float32)
HIGH = np.array([1.0, 1.0, 1.0], np.float32)
NAMES = ["brownian", "uniform", "sticky_brownian", "sticky_uniform", "persistent_uniform"]
ALL_NAMES = pytest.mark.parametrize("name", NAMES)


def car_policy(name: str) -> ActionPolicy:
    return make_action_policy(name, LOW, HIGH)


def run(name: str, seeds: list[int], steps: int) -> NDArray[np.float32]:
    """The first actions of these episodes ``(T, N, A)``."""
    policy = car_policy(name)
    policy.reset(seeds)
    return np.stack([policy.act() for _ in range(steps)])


def holds(actions: NDArray[np.float32]) -> NDArray[np.int64]:
    """How many steps each action of one environment ``(T, A)`` was held, but for the last one."""
    changes = np.flatnonzero((actions[1:] != actions[:-1]).any(axis=1)) + 1
    return np.diff(changes, prepend=0)


@ALL_NAMES
def test_actions_lie_in_the_box_and_use_all_of_it(name: str) -> None:
    actions = run(name, list(range(8)), 600)
    assert actions.shape == (600, 8, 3)
    assert actions.dtype == "float32"
    assert (actions >= LOW).all()
    assert (actions <= HIGH).all()
    spread = (actions.max(axis=(0, 1)) - actions.min(axis=(0, 1))) / (HIGH - LOW)
    assert (spread > 0.95).all()


@ALL_NAMES
def test_envs_differ_and_a_second_reset_repeats(name: str) -> None:
    policy = car_policy(name)
    episodes = []
    for seeds in ([1, 2], [3], [1, 2]):
        policy.reset(seeds)
        episodes.append(np.stack([policy.act() for _ in range(20)]))
    np.testing.assert_array_equal(episodes[0], episodes[2])
    assert (episodes[0][:, 0] != episodes[0][:, 1]).any()


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(NAMES),
    st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 264), st.integers(0, 31)), max_size=3),
)
def test_an_episodes_actions_depend_on_its_seed_alone(
    name: str, seeds: list[int], drops: list[tuple[int, int]]
) -> None:
    """Whatever environments run beside it, and whichever of them are dropped and when."""
    drop_at = dict(drops)
    policy = car_policy(name)
    policy.reset(seeds)
    alone = {seed: run(name, [seed], 265)[:, 0] for seed in seeds}
    for step in range(265):
        if step in drop_at:
            kept = np.array([bool(drop_at[step] >> index & 1) for index in range(len(seeds))], bool)
            policy.keep(kept)
            seeds = [seed for seed, is_kept in zip(seeds, kept, strict=True) if is_kept]
        actions = policy.act()
        assert actions.shape == (len(seeds), 3)
        for seed, action in zip(seeds, actions, strict=True):
            assert (action == alone[seed][step]).all()


@ALL_NAMES
def test_returned_actions_are_the_callers(name: str) -> None:
    expected = run(name, [4], 12)
    policy = car_policy(name)
    policy.reset([4])
    for row in expected:
        actions = policy.act()
        np.testing.assert_array_equal(actions, row)
        actions[:] = 99


def test_brownian_steps_are_gaussian_with_variance_a_fiftieth() -> None:
    wide = np.array([1000.0])  # so wide that nothing is clipped
    policy = make_action_policy("brownian", -wide, wide)
    policy.reset(list(range(200)))
    steps = np.diff(np.stack([policy.act() for _ in range(300)]), axis=0)
    assert steps.mean() == pytest.approx(0.0, abs=0.003)
    assert steps.var() == pytest.approx(1 / 50, rel=0.03)
    assert (np.abs(steps) < np.sqrt(1 / 50)).mean() == pytest.approx(0.6827, abs=0.01)


def test_brownian_stays_at_a_bound_and_leaves_it() -> None:
    actions = run("brownian", list(range(20)), 300)[:, :, 0]
    at_bound = np.abs(actions[:-1]) == 1
    moved_inward = at_bound & (np.abs(actions[1:]) < 1)
    assert 0.3 < moved_inward.sum() / at_bound.sum() < 0.7, "half of the steps point inward"


def test_uniform_actions_are_uniform_and_independent() -> None:
    actions = (run("uniform", list(range(50)), 400) - LOW) / (HIGH - LOW)
    shares, _ = np.histogram(actions, bins=10, range=(0, 1))
    np.testing.assert_allclose(shares / actions.size, 0.1, atol=0.01)
    flat = actions[..., 0]
    assert np.corrcoef(flat[1:].ravel(), flat[:-1].ravel())[0, 1] == pytest.approx(0, abs=0.03)


@pytest.mark.parametrize("name", ["brownian", "uniform"])
def test_plain_policies_change_at_every_step(name: str) -> None:
    assert holds(run(name, [1], 400)[:, 0]).max() == 1


@pytest.mark.parametrize("name", ["sticky_brownian", "sticky_uniform"])
def test_sticky_actions_are_held_uniformly_for_1_to_10_steps(name: str) -> None:
    actions = run(name, list(range(40)), 1000)
    lengths = np.concatenate([holds(actions[:, index]) for index in range(40)])
    shares = np.bincount(lengths, minlength=12) / lengths.size
    assert shares[0] == 0
    np.testing.assert_allclose(shares[1:11], 0.1, atol=0.015)
    # A Brownian proposal from a corner of the box can be clipped onto the same corner, which
    # looks like one longer hold.
    assert shares[11:].sum() < 0.02


def test_persistent_episodes_have_longest_holds_of_their_own_of_1_to_200_steps() -> None:
    steps, num_envs = 12_000, 150
    actions = run("persistent_uniform", list(range(num_envs)), steps)
    longest = np.array([holds(actions[:, index]).max() for index in range(num_envs)])
    assert longest.max() <= 200
    # Log-uniform: the logarithm has the mean and the spread of a uniform on 0..log 200, but that
    # an environment of long holds has had too few of them to show its longest.
    logs = np.log(longest) / np.log(200)
    assert logs.mean() == pytest.approx(1 / 2, abs=0.08)
    assert logs.std() == pytest.approx(np.sqrt(1 / 12), abs=0.05)
    # And in each environment a hold is uniform up to that longest.
    typical = np.array([holds(actions[:, index]).mean() for index in range(num_envs)])
    np.testing.assert_allclose(typical, (longest + 1) / 2, rtol=0.25)


def test_the_actions_are_not_the_environments_random_numbers() -> None:
    same_seed = np.random.default_rng(7).uniform(LOW, HIGH)
    assert (np.abs(run("uniform", [7], 1)[0, 0] - same_seed) > 1e-6).all()


def test_unknown_policies_and_unbounded_boxes_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"pink.*brownian, uniform, sticky_brownian"):
        car_policy("pink")
    with pytest.raises(ConfigError, match="unbounded"):
        make_action_policy("uniform", LOW, np.array([1.0, np.inf, 1.0]))
