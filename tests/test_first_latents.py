"""The latents at which episodes in the learned model begin, as a file has them."""

from pathlib import Path

import numpy as np
import pytest
import torch

from worldmodels.agents.model_files import load_first_latents, save_dynamics
from worldmodels.data.latents import FirstLatents
from worldmodels.files import weights
from worldmodels.models.mdnrnn import MDNRNN


@pytest.mark.parametrize(
    ("value", "kind"), [(0.5, torch.bfloat16), (0.1, torch.float32)], ids=["exact", "rounded"]
)
def test_they_are_stored_in_half_the_size_where_that_loses_nothing(
    value: float, kind: torch.dtype, tmp_path: Path
) -> None:
    rows = np.full((6, 4), value, np.float32)
    path = tmp_path / "rnn.safetensors"
    save_dynamics(path, MDNRNN(4, 1, 8), FirstLatents(rows, -rows))
    assert {part.dtype for part in weights.load(path)["first_latents"].values()} == {kind}
    found = load_first_latents(path)
    for part, wanted in ((found.mean, rows), (found.logvar, -rows)):
        assert part.dtype == np.float32
        np.testing.assert_array_equal(part, wanted)
