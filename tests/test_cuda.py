"""The native CarRacing on a GPU beside itself on the CPU.

Where there is no GPU, the same tests run in numba's simulator of one.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from worldmodels.envs.carracing.cuda import usable
from worldmodels.envs.carracing.vector import CarRacingVectorEnv
from worldmodels.errors import WorldModelsError

needs_gpu = pytest.mark.skipif(not usable(), reason="no GPU here, and numba does not simulate one")
Pair = tuple[CarRacingVectorEnv, CarRacingVectorEnv]


@pytest.mark.skipif(usable(), reason="they run here as they are")
@pytest.mark.system
def test_in_numbas_simulator() -> None:
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "1"}
    line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Two environments on the GPU and on the CPU, with frames of 64x64 or of the test's own
    choice."""
    size = getattr(request, "param", 64)
    with ExitStack() as stack:
        envs = [
            CarRacingVectorEnv(2, None, size=size, autoreset_mode="Disabled", device=place)
            for place in ("cuda", "cpu")
        ]
        for env in envs:
            stack.callback(env.close)
        yield envs[0], envs[1]


def assert_alike(gpu: torch.Tensor, cpu: NDArray[np.uint8]) -> None:
    """Equal pictures, but for samples on an edge, which float32 may put on its other side."""
    assert isinstance(gpu, torch.Tensor)
    assert gpu.dtype == torch.uint8
    difference = np.abs(gpu.cpu().numpy().astype(int) - cpu)
    assert difference.mean() < 0.01
    assert (difference > 40).mean() < 1e-3


@needs_gpu
@pytest.mark.parametrize("pair", [64, 96], indirect=True)
def test_an_episode(pair: Pair) -> None:
    gpu, cpu = pair
    assert_alike(gpu.reset(seed=3)[0], cpu.reset(seed=3)[0])
    rng = np.random.default_rng(0)
    actions = rng.uniform((-1, 0, 0), 1, (2, 3)).astype(np.float32)
    ours, theirs = gpu.step(torch.from_numpy(actions)), cpu.step(actions)
    assert_alike(ours[0], theirs[0])
    np.testing.assert_allclose(ours[1], theirs[1])
    np.testing.assert_array_equal(ours[2], theirs[2])
    states, others = gpu.get_state(), cpu.get_state()
    assert states.keys() == others.keys()
    for name in states:
        if name != "frames":
            np.testing.assert_allclose(states[name], others[name], rtol=1e-4, atol=1e-4)


@needs_gpu
def test_states_move_between_devices_and_envs_are_dropped(pair: Pair) -> None:
    gpu, cpu = pair
    gpu.reset(seed=[0, 1])
    cpu.reset(seed=[5, 6])
    for step in range(60):  # past the first second, and on
        cpu.step(np.array([(0.1, 1.0, 0.0), (-0.2, 0.6 * (step < 40), 0.0)], np.float32))
    gpu.set_state(cpu.get_state())
    for env in pair:
        env.keep(np.array([False, True]))
    actions = np.array([(0.5, 0.0, 0.3)], np.float32)
    ours, theirs = gpu.step(actions), cpu.step(actions)
    assert_alike(ours[0], theirs[0])
    np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-4)


@needs_gpu
def test_a_env_begins_anew_alone(pair: Pair) -> None:
    for env in pair:
        env.reset(seed=3)
    options = {"reset_mask": np.array([True, False])}
    ours, theirs = (env.reset(seed=[7, None], options=options)[0] for env in pair)
    assert_alike(ours, theirs)
    with pytest.raises(WorldModelsError, match=r"actions: .* of environment 1 is not finite"):
        pair[0].step(torch.tensor([(0.0, 0.0, 0.0), (0.0, float("inf"), 0.0)]))


@pytest.mark.skipif(usable(), reason="there is a GPU here")
def test_without_a_gpu_it_says_what_to_do() -> None:
    with pytest.raises(WorldModelsError, match=r"device=cuda: .* use device=cpu"):
        CarRacingVectorEnv(1, device="cuda")
