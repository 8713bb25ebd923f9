"""The compiled loops of the worlds against tensor operations and Python's integers, to the bit."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from worldmodels.data.latents import FirstLatents
from worldmodels.models.features import FeatureSpec
from worldmodels.models.heads import Mixture, MixtureHead
from worldmodels.models.mdnrnn import MDNRNN, tanh
from worldmodels.worlds.dream import MIXTURE_STREAM, NORMAL_STREAM, DreamWorld
from worldmodels.worlds.noise import EpisodeNoise, tensor_normal, tensor_uniform
from worldmodels.worlds.sampling import sample

CPU = torch.device("cpu")
SEEDS = (0, 1, 7, 2**31 - 1, 2**62 + 12345)
WORD = 2**64


def mixed(x: int) -> int:
    """SplitMix64's finaliser."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % WORD
    return x ^ (x >> 31)


def words(seeds: Sequence[int], stream: int, steps: Sequence[int], size: int) -> list[list[int]]:
    """The 64 random bits of each number, by Python's integers."""
    golden = 0x9E3779B97F4A7C15
    keys = [mixed(mixed(seed * golden % WORD) ^ mixed(stream)) for seed in seeds]
    return [
        [mixed((key + (step * size + i) * golden) % WORD) for i in range(1, size + 1)]
        for key, step in zip(keys, steps, strict=True)
    ]


def normals(bits: list[list[int]], size: int) -> Tensor:
    """Box and Muller's transform of these bits, by tensor operations."""
    high = torch.tensor([[word >> 32 for word in row] for row in bits], dtype=torch.float64)
    low = torch.tensor([[word % 2**32 for word in row] for row in bits], dtype=torch.float64)
    radius = torch.sqrt(-2.0 * torch.log((high + 0.5) * 2.0**-32))
    angle = low * (2.0 * math.pi * 2.0**-32)
    return torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)], 1)[:, :size].float()


@pytest.mark.parametrize("size", [1, 2, 5, 32, 33])
@pytest.mark.parametrize("step", [0, 1, 999, 10**9, (3, 0, 8, 1, 10**6)])
def test_noise_is_that_of_python_integers(step: int | tuple[int, ...], size: int) -> None:
    steps = step if isinstance(step, tuple) else (step,) * len(SEEDS)
    given = torch.tensor(step) if isinstance(step, tuple) else step
    noise = EpisodeNoise(SEEDS, 2, CPU)
    expected = [[(word >> 40) * 2.0**-24 for word in row] for row in words(SEEDS, 2, steps, size)]
    assert torch.equal(noise.uniform(given, size), torch.tensor(expected))
    assert torch.equal(tensor_uniform(noise.keys, given, size), torch.tensor(expected))
    pairs = words(SEEDS, 2, steps, (size + 1) // 2)
    assert torch.equal(noise.normal(given, size), normals(pairs, size))
    assert torch.equal(tensor_normal(noise.keys, given, size), normals(pairs, size))


def test_noise_depends_on_seed_and_step_and_on_no_other_row() -> None:
    steps = torch.arange(1000) % 7
    noise = EpisodeNoise(range(1000), 3, CPU)
    uniform, normal = noise.uniform(steps, 32), noise.normal(steps, 32)
    kept = torch.arange(1000) % 3 == 1
    noise.keep(kept)
    assert torch.equal(noise.uniform(steps[kept], 32), uniform[kept])
    assert torch.equal(noise.normal(steps[kept], 32), normal[kept])
    alone = EpisodeNoise([17], 3, CPU)
    assert torch.equal(alone.normal(17 % 7, 32), normal[17:18])


def drawn(rows: int, size: int) -> tuple[Tensor, Tensor]:
    noise = EpisodeNoise(range(rows), 1, CPU)
    return noise.uniform(0, size), noise.normal(1, size)


def mixture(rows: int, size: int, mixtures: int, shared: bool, scale: float) -> Mixture:
    """What a head predicts: slices of one tensor."""
    torch.manual_seed(0)
    head = MixtureHead(16, size, mixtures, shared)
    with torch.no_grad():
        latent: Mixture = head(scale * torch.randn(rows, 16)).latent
    return latent


@pytest.mark.parametrize("temperature", [0.01, 0.3, 1.0, 1.15])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    ("rows", "size", "mixtures"), [(256, 32, 5), (1, 32, 5), (7, 6, 3), (3, 5, 1), (2, 1, 2)]
)
def test_a_compiled_sample_is_that_of_the_mixture(
    rows: int, size: int, mixtures: int, shared: bool, temperature: float
) -> None:
    for scale in (0.1, 3.0, 300.0):  # at the last, weights underflow to 0
        latent = mixture(rows, size, mixtures, shared, scale)
        expected = latent.sample(*drawn(rows, size), temperature)
        assert torch.equal(sample(latent, *drawn(rows, size), temperature), expected)


def test_a_compiled_sample_chooses_components_as_often_as_they_weigh() -> None:
    rows, weights = 20_000, torch.tensor([0.1, 0.0, 0.6, 0.3])
    logits = weights.log().expand(rows, 1, 4)
    means = torch.arange(4.0).expand(rows, 1, 4)
    latent = Mixture(logits, means, torch.full_like(means, -7.0))
    chosen = sample(latent, *drawn(rows, 1), 1.0).round().long().flatten()
    shares = torch.bincount(chosen, minlength=4) / rows
    assert shares[1] == 0
    assert (shares - weights).abs().max() < 0.02


def test_a_sample_of_a_diverged_model_is_that_of_the_mixture() -> None:
    latent = mixture(8, 4, 3, False, 1.0)
    latent.logits[0, 0, 0] = latent.logits[1, 1, 1] = latent.mean[2, 2, 2] = math.nan
    latent.logits[3, 3, 2], latent.logits[4, 0, 0] = math.inf, -math.inf
    expected = latent.sample(*drawn(8, 4), 1.0)
    result = sample(latent, *drawn(8, 4), 1.0)
    torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)


def test_a_compiled_sample_depends_on_no_other_row() -> None:
    latent, (uniform, normal) = mixture(100, 32, 5, False, 3.0), drawn(100, 32)
    together = sample(latent, uniform, normal, 1.15)
    for rows in (slice(17, 18), slice(30, 67)):
        part = Mixture(*(array[rows] for array in latent))
        assert torch.equal(sample(part, uniform[rows], normal[rows], 1.15), together[rows])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_dream_is_that_of_tensor_operations(dtype: torch.dtype) -> None:
    """The steps of a world against an LSTM cell that is written out, and `Mixture.sample`."""
    torch.manual_seed(0)
    model = MDNRNN(6, 3, 64).to(dtype)
    first = FirstLatents(*np.random.default_rng(0).normal(size=(2, 5, 6)).astype(np.float32))
    world = DreamWorld(model, first, 1.15, FeatureSpec(), dtype=dtype)
    seeds = range(40)
    world.reset(seeds)
    z, (h, c) = world.latents, model.initial_state(len(seeds))
    noises = [EpisodeNoise(seeds, stream, CPU) for stream in (MIXTURE_STREAM, NORMAL_STREAM)]
    weight_ih, weight_hh, bias_ih, bias_hh = (part.detach() for part in model.lstm.parameters())
    for step in range(20):
        actions = torch.full((len(seeds), 3), 0.1 * step)
        inputs = torch.cat([z, actions], 1).to(dtype)
        gates = torch.nn.functional.linear(inputs, weight_ih, bias_ih + bias_hh)
        enter, forget, cell, output = (
            torch.addmm(gates, h.to(dtype), weight_hh.t()).float().chunk(4, 1)
        )
        c = torch.sigmoid(forget) * c + torch.sigmoid(enter) * tanh(cell)
        h = torch.sigmoid(output) * tanh(c)
        with torch.no_grad():
            latent = model.predict((h, c)).latent
        assert isinstance(latent, Mixture)
        z = latent.sample(noises[0].uniform(step, 6), noises[1].normal(step, 6), 1.15)
        features = world.step(actions).features
        assert torch.equal(features, torch.cat([z, h], 1))


def test_a_step_of_the_mdn_rnn_leaves_the_state_before_it_as_it_was() -> None:
    torch.manual_seed(0)
    model = MDNRNN(6, 3, 64)
    state = torch.randn(9, 64), torch.randn(9, 64)
    before = tuple(part.clone() for part in state)
    with torch.inference_mode():
        model.advance(torch.randn(9, 6), torch.randn(9, 3), state)
    assert all(map(torch.equal, state, before))
