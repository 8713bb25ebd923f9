"""The native CarRacing as a Gymnasium vector environment: autoreset, states, torch tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.envs.box2d.car_racing import CarRacing
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit

from worldmodels.envs.carracing.simulator import CpuSimulator
from worldmodels.envs.carracing.single import CarRacingEnv
from worldmodels.envs.carracing.snapshot import State, select_state
from worldmodels.envs.carracing.vector import CarRacingVectorEnv
from worldmodels.errors import WorldModelsError

MODES = list(AutoresetMode)
LAP_AT_ONCE = 0.0
"""A lap counts when the first tile is touched: every first step terminates."""


def gymnasiums(percent: float) -> gymnasium.Env[Any, Any]:
    env = CarRacing(lap_complete_percent=percent)
    # Drawing takes nearly all of its time.
    env._render = lambda mode: np.zeros((96, 96, 3), np.uint8)  # type: ignore[method-assign]
    return env


def native(percent: float) -> gymnasium.Env[Any, Any]:
    return CarRacingEnv(lap_complete_percent=percent, size=64)


def assert_same_infos(found: dict[str, Any], wanted: dict[str, Any], frames: bool) -> None:
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        if isinstance(value, dict):
            assert_same_infos(found[key], value, frames)
        elif key == "final_obs":
            assert found[key].dtype == value.dtype == object
            for one, other in zip(found[key], value, strict=True):
                assert (one is None) == (other is None)
                if frames and other is not None:
                    np.testing.assert_array_equal(one, other)
        else:
            np.testing.assert_array_equal(found[key], value)
            assert found[key].dtype == value.dtype


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("percent", [LAP_AT_ONCE, 0.95])
@pytest.mark.parametrize("make", [gymnasiums, native])
def test_steps_and_infos_are_those_of_sync_vector_env(
    make: Any, percent: float, mode: AutoresetMode
) -> None:
    """Tracks, rewards, flags and infos beside Gymnasium's game; frames beside our single one."""
    limit, frames = 5, make is native
    theirs = SyncVectorEnv([lambda: TimeLimit(make(percent), limit)] * 3, autoreset_mode=mode)
    ours = CarRacingVectorEnv(3, limit, percent, size=64, autoreset_mode=mode)
    assert ours.metadata["autoreset_mode"] is theirs.metadata["autoreset_mode"] is mode
    rng = np.random.default_rng(0)
    with closing(theirs), closing(ours):
        pairs = [(ours.reset(seed=[4, 9, 4]), theirs.reset(seed=[4, 9, 4]))]
        for number in range(14):
            actions = rng.uniform(0, 1, (3, 3)).astype(np.float32)
            found, wanted = ours.step(actions), theirs.step(actions)
            for one, other in zip(found[1:4], wanted[1:4], strict=True):
                np.testing.assert_array_equal(one, other)
                assert one.dtype == other.dtype
            pairs.append(((found[0], found[4]), (wanted[0], wanted[4])))
            ended = found[2] | found[3]
            if mode is AutoresetMode.DISABLED and ended.any():
                reset = [
                    # A seed for one environment; the others continue with their generators.
                    env.reset(seed=[None, 7, None], options={"reset_mask": ended.copy()})
                    for env in (ours, theirs)
                ]
                pairs.append((reset[0], reset[1]))
            if mode is AutoresetMode.DISABLED and number == 2:  # in the middle of an episode
                mask = np.array([True, False, False])
                both = [env.reset(options={"reset_mask": mask}) for env in (ours, theirs)]
                pairs.append((both[0], both[1]))
        for (observations, infos), (expected, their_infos) in pairs:
            assert_same_infos(infos, their_infos, frames)
            if frames:
                np.testing.assert_array_equal(observations, expected)


def test_a_disabled_environment_keeps_its_last_result_until_it_is_reset() -> None:
    with closing(CarRacingVectorEnv(2, 3, size=64, autoreset_mode="Disabled")) as env:
        env.reset(seed=1)
        actions = np.tile([0.0, 1.0, 0.0], (2, 1))
        for _ in range(3):
            last = env.step(actions)
        after = env.step(actions)
        np.testing.assert_array_equal(after[0], last[0])
        np.testing.assert_array_equal(after[3], [True, True])
        np.testing.assert_array_equal(after[1], [0, 0])
        env.reset(options={"reset_mask": np.array([False, True])})
        np.testing.assert_array_equal(env.step(actions)[3], [True, False])


# ------------------------------------------------------------------------------- saved states


@pytest.fixture
def saved() -> Iterator[tuple[CarRacingVectorEnv, State]]:
    """Three environments in the middle of their second episodes, and their state."""
    env = CarRacingVectorEnv(3, 25, size=64, domain_randomize=True)
    with closing(env):
        env.reset(seed=5)
        for actions in np.random.default_rng(0).uniform(0, 1, (40, 3, 3)):
            env.step(actions)
        yield env, env.get_state()


def assert_same_steps(found: list[Any], wanted: list[Any]) -> None:
    for one, other in zip(found, wanted, strict=True):
        for a, b in zip(one[:4], other[:4], strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_restored_state_continues_to_the_bit(
    saved: tuple[CarRacingVectorEnv, State], tmp_path: Path
) -> None:
    """Through the ends of episodes, with the random tracks and colours that follow."""
    env, state = saved
    actions = np.random.default_rng(1).uniform(0, 1, (60, 3, 3))
    first = [env.step(action) for action in actions]
    env.set_state(state)
    np.testing.assert_array_equal(state["frames"], env.get_state()["frames"])
    assert_same_steps([env.step(action) for action in actions], first)
    np.savez(tmp_path / "state.npz", **state)  # type: ignore[arg-type]  # numpy's own hint
    with (
        closing(CarRacingVectorEnv(3, 25, size=64, domain_randomize=True)) as other,
        np.load(tmp_path / "state.npz", allow_pickle=False) as stored,
    ):
        other.set_state(dict(stored))
        assert_same_steps([other.step(action) for action in actions], first)


def test_one_state_branches_into_many(saved: tuple[CarRacingVectorEnv, State]) -> None:
    """Several sequences of actions from one state: at once, and one after the other."""
    env, state = saved
    plans = np.random.default_rng(2).uniform(0, 1, (40, 5, 3))
    settings: dict[str, Any] = {"max_episode_steps": 25, "size": 64, "domain_randomize": True}
    with (
        closing(CarRacingVectorEnv(5, **settings)) as branches,
        closing(CarRacingVectorEnv(1, **settings)) as alone,
    ):
        branches.set_state(env.get_state([1]))
        together = [branches.step(actions) for actions in plans]
        for plan in range(5):
            alone.set_state(select_state(state, [1]))
            steps = [alone.step(actions[plan : plan + 1]) for actions in plans]
            wanted = [[array[plan : plan + 1] for array in step[:4]] for step in together]
            assert_same_steps(steps, wanted)


def test_some_environments_are_overwritten_and_the_others_are_not(
    saved: tuple[CarRacingVectorEnv, State],
) -> None:
    env, state = saved
    with closing(CarRacingVectorEnv(4, 25, size=64, domain_randomize=True)) as other:
        other.reset(seed=50)
        before = other.get_state([3, 0])
        other.set_state(select_state(state, [2, 0]), envs=[1, 2])
        for name, array in other.get_state([3, 0]).items():
            np.testing.assert_array_equal(array, before[name])
        actions = np.random.default_rng(3).uniform(0, 1, (30, 4, 3))
        found = [other.step(action) for action in actions]
        other.reset(seed=[50, 1, 1, 53])
        unaffected = [other.step(action) for action in actions]
    wanted = [env.step(action[[2, 0, 1]]) for action in actions]
    for step, restored, alone in zip(found, wanted, unaffected, strict=True):
        for a, b, c in zip(step[:4], restored[:4], alone[:4], strict=True):
            np.testing.assert_array_equal(a[[1, 2]], b[[2, 0]])
            np.testing.assert_array_equal(a[[0, 3]], c[[0, 3]])


def test_states_that_do_not_fit_are_refused(saved: tuple[CarRacingVectorEnv, State]) -> None:
    env, state = saved
    body = state["envs.body"]
    damaged = {
        r"state\['steps'\]: is missing; give": {k: v for k, v in state.items() if k != "steps"},
        r"state\['envs.body'\]: is a list": state | {"envs.body": body.tolist()},
        r"is float64 of shape .*, not float32": state | {"envs.body": body.astype(np.float64)},
        r"of shape \(3, 5, 10\), not": state | {"envs.body": body[..., :10]},
        r"'frames'\]: is uint8 of shape \(2,": state | {"frames": state["frames"][:2]},
        r"'envs.course'\]: has values outside 0 to 2": state
        | {"envs.course": state["envs.course"] + np.int32(9)},
        r"'courses.near'\]: has values outside": state
        | {"courses.near": state["courses.near"] - np.int16(1)},
    }
    for message, wrong in damaged.items():
        with pytest.raises(WorldModelsError, match=message):
            env.set_state(wrong)
    with pytest.raises(WorldModelsError, match="of 3 environments, and 2 are to be overwritten"):
        env.set_state(state, envs=[0, 1])
    with pytest.raises(WorldModelsError, match="named twice"):
        env.set_state(state, envs=[0, 1, 1])
    with pytest.raises(WorldModelsError, match="outside 0 to 2"):
        env.get_state([3])
    with pytest.raises(WorldModelsError, match="give a list of indices"):
        env.get_state([0.5])
    with (
        closing(CarRacingVectorEnv(3, size=96)) as larger,
        pytest.raises(WorldModelsError, match="for frames of size 96"),
    ):
        larger.set_state(state)
    for name, array in env.get_state().items():
        np.testing.assert_array_equal(array, state[name])


# ------------------------------------------------------------------------------ torch tensors


def test_observations_are_tensors_without_a_copy() -> None:
    actions = np.tile([0.1, 1.0, 0.0], (2, 1))
    with ExitStack() as stack:
        shared, copied = (
            stack.enter_context(closing(CarRacingVectorEnv(2, 2, size=64, copy=copy)))
            for copy in (False, True)
        )
        observations, kept = shared.reset(seed=1)[0], copied.reset(seed=1)[0]
        tensor, before = torch.from_numpy(observations), kept.copy()
        assert tensor.data_ptr() == observations.ctypes.data
        for _ in range(3):  # an episode ends within them
            following, *_ = copied.step(actions)
            assert shared.step(actions)[0] is observations, "the same memory"
            np.testing.assert_array_equal(tensor.numpy(), following)
        state = copied.get_state()
        copied.step(actions)
        shared.step(actions)
        shared.set_state(state)
        np.testing.assert_array_equal(tensor.numpy(), state["frames"])
        np.testing.assert_array_equal(kept, before, "a copy is overwritten")


def test_the_last_observation_of_an_episode_is_a_copy() -> None:
    env = CarRacingVectorEnv(2, 2, size=64, autoreset_mode="SameStep", copy=False)
    actions = np.tile([0.1, 1.0, 0.0], (2, 1))
    with closing(env):
        env.reset(seed=1)
        env.step(actions)
        observations, *_, infos = env.step(actions)
        final = [frame.copy() for frame in infos["final_obs"]]
        env.step(actions)
        np.testing.assert_array_equal(np.stack(infos["final_obs"].tolist()), final)
        assert (final[0] != observations[0]).any()


def test_actions_may_be_torch_tensors() -> None:
    simulator = CpuSimulator(2, 64, 0.95, 1)
    actions = torch.rand((2, 3), dtype=torch.float64)
    assert np.shares_memory(simulator.controls(actions)[0], actions.numpy())
    with (
        closing(CarRacingVectorEnv(2, size=64)) as env,
        closing(CarRacingVectorEnv(2, size=64, continuous=False)) as discrete,
    ):
        for dtype in (torch.float32, torch.float64):
            results = []
            for given in (actions.to(dtype), actions.to(dtype).numpy()):
                env.reset(seed=3)
                results.append([env.step(given) for _ in range(10)])
            assert_same_steps(*results)
        with pytest.raises(WorldModelsError, match=r"give actions.detach\(\)"):
            env.step(actions.clone().requires_grad_())
        with pytest.raises(WorldModelsError, match=r"actions: .*; give numbers"):
            env.step(np.full((2, 3), "left"))
        discrete.reset(seed=3)
        discrete.step(torch.tensor([1, 3]))
