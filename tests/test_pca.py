"""Where the search for a controller moves."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from worldmodels.data.latents import EncodedEpisode, LatentSet, write_latents
from worldmodels.evolution.pca import PCASubspace
from worldmodels.models.controller import Controllers, ControllerSpec
from worldmodels.models.features import FeatureSpec
from worldmodels.models.mdnrnn import MDNRNN
from worldmodels.training.moments import feature_moments


def drawn_features(seed: int, size: int = 9, count: int = 500) -> np.ndarray:
    """Rows (count, size) whose dimensions go together and differ in scale."""
    rng = np.random.default_rng(seed)
    return (
        rng.normal(2, 1, (count, size)) * np.logspace(0, -3, size) @ rng.normal(0, 1, (size, size))
    )


def subspace(rows: np.ndarray, components: int, head: ControllerSpec) -> PCASubspace:
    return PCASubspace.of(rows.mean(axis=0), rows.T @ rows / len(rows), components, head)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 12), st.sampled_from([0, 4]), st.booleans(), st.integers(0, 10**6))
def test_a_controller_acts_as_its_coordinates_do_on_the_components(
    components: int, hidden_units: int, bias: bool, seed: int
) -> None:
    head, rows = ControllerSpec(("tanh", "half_tanh"), hidden_units, bias), drawn_features(seed)
    search = subspace(rows, components, head)
    count = min(components, rows.shape[1])
    drawn = np.random.default_rng(seed).normal(0, 0.3, (4, search.size))
    assert search.size == head.size(count)
    centred = rows[:4] - rows.mean(axis=0) if bias else rows[:4]
    seen = centred @ search.axes  # (num_envs, components)
    expected = Controllers(torch.tensor(drawn, dtype=torch.float32), count, head).act(
        torch.tensor(seen, dtype=torch.float32)
    )
    parameters = torch.from_numpy(search.controllers(drawn))
    acted = Controllers(parameters, rows.shape[1], head).act(torch.tensor(rows[:4]).float())
    torch.testing.assert_close(acted, expected, rtol=1e-3, atol=1e-3)


@given(st.integers(1, 9), st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_components_are_uncorrelated_and_half_way_to_equal(components: int, seed: int) -> None:
    rows = drawn_features(seed)
    search = subspace(rows, components, ControllerSpec(("tanh",)))
    covariance = np.cov(((rows - rows.mean(axis=0)) @ search.axes).T, bias=True)
    covariance = covariance.reshape(components, components)
    largest = np.sqrt(np.linalg.eigvalsh(np.cov(rows.T, bias=True))[::-1][:components])
    np.testing.assert_allclose(covariance, np.diag(largest), rtol=1e-3, atol=1e-4 * largest[0])


@pytest.mark.parametrize("bias", [True, False])
def test_a_controller_is_found_where_it_is(tmp_path: Path, bias: bool) -> None:
    head, rows = ControllerSpec(("tanh", "tanh"), 3, bias), drawn_features(0)
    search = subspace(rows, 5, head)
    at = np.random.default_rng(0).normal(0, 1, (2, search.size))
    np.testing.assert_allclose(search.coordinates(search.controllers(at)), at, atol=1e-4)
    search.save(tmp_path / "pca_subspace.safetensors")
    loaded = PCASubspace.load(tmp_path / "pca_subspace.safetensors", head)
    np.testing.assert_array_equal(loaded.controllers(at), search.controllers(at))
    everything = PCASubspace(np.zeros(9), np.eye(9), head)
    parameters = np.random.default_rng(1).normal(0, 1, (2, head.size(9))).astype(np.float32)
    np.testing.assert_array_equal(everything.controllers(parameters), parameters)


@pytest.mark.parametrize("state_features", [("h",), ("c", "h"), ()])
def test_moments_are_those_of_what_a_controller_would_have_seen(
    tmp_path: Path, state_features: tuple[str, ...]
) -> None:
    torch.manual_seed(0)
    dynamics = MDNRNN(4, 2, 6, 2, is_first=len(state_features) == 2).eval()
    rng = np.random.default_rng(0)
    episodes = [
        EncodedEpisode(
            rng.normal(0, 1, (steps + 1, 4)).astype(np.float32),
            np.zeros((steps + 1, 4), np.float32),
            rng.uniform(-1, 1, (steps, 2)).astype(np.float32),
            np.zeros(steps, np.float32),
            np.zeros(steps, bool),
            seed,
        )
        for seed, steps in enumerate((5, 9, 2))
    ]
    write_latents(tmp_path / "latents.h5", episodes, {})
    seen = []
    for episode in episodes:
        h, c = dynamics.initial_state(1)
        for z, action in zip(torch.tensor(episode.mean[:-1]), episode.actions, strict=True):
            state = {"h": h[0], "c": c[0]}
            seen.append(torch.cat([z, *(state[name] for name in state_features)]).detach().numpy())
            h, c = dynamics.advance(z[None], torch.tensor(action)[None], (h, c))
    rows = np.array(seen, np.float64)
    mean, moments = feature_moments(
        LatentSet(tmp_path / "latents.h5"), dynamics, FeatureSpec(state_features)
    )
    np.testing.assert_allclose(mean, rows.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(moments, rows.T @ rows / len(rows), atol=1e-6)
