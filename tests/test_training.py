"""The training loop on real data."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric

from worldmodels.data.episodes import EpisodeSet
from worldmodels.data.shards import Episode, write_shard
from worldmodels.errors import ArtifactError
from worldmodels.models.vae import ConvVAE
from worldmodels.runs.tracking import MetricsLog
from worldmodels.training.encoder import EncoderTask
from worldmodels.training.fit import FitOptions, FitResult, fit

OPTIONS = FitOptions(
    epochs=2,
    learning_rate=1e-3,
    final_learning_rate=1e-3,
    gradient_clip=None,
    seed=1,
    checkpoint_seconds=60.0,
    log_every=1,
)


@pytest.fixture(scope="module")
def episodes(tmp_path_factory: pytest.TempPathFactory) -> EpisodeSet:
    folder = tmp_path_factory.mktemp("rollouts")
    rng = np.random.default_rng(0)
    ends = np.arange(9) == 8
    written = [
        Episode(
            rng.integers(0, 256, (10, 64, 64, 3), np.uint8),
            np.zeros((9, 3), np.float32),
            np.zeros(9, np.float32),
            ends,
            np.zeros(9, bool),
            seed,
        )
        for seed in range(4)
    ]
    write_shard(folder / "shard-00000.h5", written, {})
    return EpisodeSet.open([folder])


def train(
    episodes: EpisodeSet,
    model: ConvVAE,
    precision: str,
    folder: Path,
    options: FitOptions = OPTIONS,
) -> FitResult:
    fabric = Fabric(accelerator="cpu", devices=1, precision=precision)  # type: ignore[arg-type]
    task = EncoderTask(model, episodes, episodes.split(0.25, 1), 5, 1, fabric)
    with MetricsLog(folder / "metrics.csv") as tracker:
        return fit(task, folder, options, fabric, tracker)


def test_a_flipped_bit_in_a_checkpoint_is_damage(episodes: EpisodeSet, tmp_path: Path) -> None:
    options = replace(OPTIONS, epochs=1)
    model = ConvVAE(4)
    made = train(episodes, model, "32-true", tmp_path, options)
    assert train(episodes, model, "32-true", tmp_path, options) == made  # read, and not trained on
    for name in ("checkpoint.safetensors", "best.safetensors"):
        path = tmp_path / name
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))  # the last tensor's last byte
        with pytest.raises(ArtifactError, match=rf"{name} is damaged .*; make its stage again"):
            train(episodes, model, "32-true", tmp_path, options)
        path.write_bytes(whole)


@pytest.mark.parametrize(
    ("precision", "dtype"), [("bf16-mixed", torch.bfloat16), ("32-true", torch.float32)]
)
def test_the_chosen_precision_reaches_the_layers(
    episodes: EpisodeSet, tmp_path: Path, precision: str, dtype: torch.dtype
) -> None:
    model, seen = ConvVAE(4), set()
    model.encoder[0].register_forward_hook(lambda layer, inputs, output: seen.add(output.dtype))
    result = train(episodes, model, precision, tmp_path, replace(OPTIONS, epochs=1))
    assert seen == {dtype}
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert result.rates["images/s"] > 0


def test_no_epochs_leave_the_model_as_it_was_made(episodes: EpisodeSet, tmp_path: Path) -> None:
    model = ConvVAE(4)
    made = {name: value.clone() for name, value in model.state_dict().items()}
    result = train(episodes, model, "32-true", tmp_path, replace(OPTIONS, epochs=0))
    torch.testing.assert_close(dict(model.state_dict()), made, rtol=0, atol=0)
    assert result.validation["loss"] > 0
    assert (result.rates, result.pace) == ({}, "no training")
