"""Batches computed in parts: the same loss, gradients and weights, also where memory runs out."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from encoded import latent_set
from lightning_fabric import Fabric
from torch import Tensor

from worldmodels.data.latents import LatentSet
from worldmodels.errors import TrainingError
from worldmodels.models.heads import MixtureDynamics
from worldmodels.models.mdnrnn import MDNRNN
from worldmodels.models.transformer import TransformerDynamics
from worldmodels.runs.tracking import MetricsLog, read_metrics
from worldmodels.training.dynamics import DynamicsTask
from worldmodels.training.fit import FitOptions, FitResult, fit
from worldmodels.training.parts import RowDraws

OPTIONS = FitOptions(
    epochs=2,
    learning_rate=1e-2,
    final_learning_rate=1e-3,
    gradient_clip=0.5,
    seed=1,
    checkpoint_seconds=60.0,
    log_every=1,
)


@pytest.fixture(scope="module")
def latents(tmp_path_factory: pytest.TempPathFactory) -> LatentSet:
    return latent_set(tmp_path_factory.mktemp("latents") / "latents.h5")


class Small(DynamicsTask):
    """Memory for a few rows: more raise the error that PyTorch's allocator raises."""

    fits = 10**9
    failures = 0

    def loss(self, batch: Any, carry: Any) -> tuple[Tensor, dict[str, Tensor], Any]:
        found = super().loss(batch, carry)
        if self.rows(batch) > self.fits:
            self.failures += 1
            torch.empty(2**60, dtype=torch.uint8)
        return found


def train(
    latents: LatentSet,
    folder: Path,
    options: FitOptions,
    fits: int = 10**9,
    kind: Callable[..., MixtureDynamics] = MDNRNN,
) -> tuple[FitResult, MixtureDynamics, Small]:
    folder.mkdir(exist_ok=True)
    torch.manual_seed(0)
    model = kind(4, 2, hidden_size=8, mixtures=2)
    fabric = Fabric(accelerator="cpu", devices=1)
    split = np.arange(6), np.arange(6, 8)
    task = Small(model, latents, split, 6, 5, 1, fabric)
    task.fits = fits
    with MetricsLog(folder / "metrics.csv") as tracker:
        return fit(task, folder, options, fabric, tracker), model, task


def same(folder: Path, other: Path) -> bool:
    rows, others = (read_metrics(path / "metrics.csv") for path in (folder, other))
    assert len(rows) == len(others) > 20
    for row, twin in zip(rows, others, strict=True):
        assert row[:2] == twin[:2]
        assert row[2] == pytest.approx(twin[2], rel=1e-4, abs=1e-6), row
    return True


@pytest.fixture
def two_threads() -> Iterator[None]:
    """The tests run with one thread, in which parts are computed one after the other."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def whole_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches are not computed in parts unless a test asks for it."""
    monkeypatch.setattr("worldmodels.training.fit.side_by_side", lambda *_: False)


@pytest.mark.usefixtures("whole_batches")
@pytest.mark.parametrize(
    ("parts", "kind"), [(2, MDNRNN), (4, MDNRNN), (100, MDNRNN), (2, TransformerDynamics)]
)
def test_parts_of_a_batch_make_the_same_steps(
    latents: LatentSet, tmp_path: Path, parts: int, kind: Callable[..., MixtureDynamics]
) -> None:
    options = replace(OPTIONS, accumulate=parts)
    whole, model, _ = train(latents, tmp_path / "whole", OPTIONS, kind=kind)
    made, other, _ = train(latents, tmp_path / "parts", options, kind=kind)
    assert made.validation == pytest.approx(whole.validation, rel=1e-4)
    torch.testing.assert_close(other.state_dict(), model.state_dict(), rtol=1e-3, atol=1e-5)
    assert same(tmp_path / "parts", tmp_path / "whole")


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_two_threads_train_to_the_same_bits_as_one(
    latents: LatentSet, tmp_path: Path, parts: int
) -> None:
    threads: set[str] = set()

    class Seen(MDNRNN):
        def loss(self, batch: Any, state: Any) -> Any:
            threads.add(threading.current_thread().name)
            return super().loss(batch, state)

    options = replace(OPTIONS, accumulate=parts)
    made, model, _ = train(latents, tmp_path / "two", options, kind=Seen)
    assert len(threads) == 2
    torch.set_num_threads(1)
    threads.clear()
    again, other, _ = train(latents, tmp_path / "one", options, kind=Seen)
    assert len(threads) == 1
    assert made.validation == again.validation
    torch.testing.assert_close(other.state_dict(), model.state_dict(), rtol=0, atol=0)


@pytest.mark.usefixtures("two_threads")
def test_a_loss_with_random_numbers_of_its_own_kind_does_not_depend_on_the_threads(
    latents: LatentSet, tmp_path: Path
) -> None:
    class Dropping(MDNRNN):
        def loss(self, batch: Any, state: Any) -> Any:
            loss, logs, after = super().loss(batch, state)
            return loss * torch.nn.functional.dropout(torch.ones(50)).mean(), logs, after

    _, model, _ = train(latents, tmp_path / "two", OPTIONS, kind=Dropping)
    torch.set_num_threads(1)
    _, other, _ = train(latents, tmp_path / "one", OPTIONS, kind=Dropping)
    torch.testing.assert_close(other.state_dict(), model.state_dict(), rtol=0, atol=0)


@pytest.mark.usefixtures("two_threads")
def test_parts_side_by_side_leave_fixed_weights_alone(latents: LatentSet, tmp_path: Path) -> None:
    class Fixed(MDNRNN):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.head.bias.requires_grad_(False)

    torch.manual_seed(0)
    untrained = Fixed(4, 2, hidden_size=8, mixtures=2).state_dict()
    _, model, _ = train(latents, tmp_path / "fixed", OPTIONS, kind=Fixed)
    equal = [name for name, value in model.state_dict().items() if value.equal(untrained[name])]
    assert equal == ["head.bias"]


@pytest.mark.usefixtures("two_threads")
def test_where_memory_runs_out_the_step_is_made_in_more_parts(
    latents: LatentSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, _, _ = train(latents, tmp_path / "whole", OPTIONS)
    made, _, task = train(latents, tmp_path / "small", OPTIONS, fits=2)
    assert task.failures == 2  # 6 rows, 3 rows
    assert made.validation == pytest.approx(whole.validation, rel=1e-4)
    assert same(tmp_path / "small", tmp_path / "whole")
    said = [line for line in capsys.readouterr().out.splitlines() if "out of memory" in line]
    assert len(said) == 1
    assert "a batch of 6 rows is computed in 4 parts" in said[0]


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        (MDNRNN, "rnn.sequence_length"),
        (partial(TransformerDynamics, context=5), "rnn.sequence_length"),  # windows have 5 steps
        (partial(TransformerDynamics, context=6), "rnn.context"),
    ],
)
def test_where_one_row_does_not_fit_the_key_is_named(
    latents: LatentSet, tmp_path: Path, kind: Callable[..., MixtureDynamics], key: str
) -> None:
    with pytest.raises(TrainingError, match=rf"^{key}: .*one row.*; lower it"):
        train(latents, tmp_path / "none", OPTIONS, fits=0, kind=kind)


def test_another_error_is_not_taken_for_a_lack_of_memory(
    latents: LatentSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(MDNRNN, "loss", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        train(latents, tmp_path / "bug", OPTIONS)


@pytest.mark.parametrize(
    "draw",
    [
        lambda rows: torch.randn_like(torch.zeros(rows, 3, 5)),
        lambda rows: torch.rand_like(torch.zeros(rows, 7)),
        lambda rows: torch.randn(rows, 5),
        lambda rows: torch.rand((rows, 2)),
        lambda rows: torch.randn_like(input=torch.zeros(rows, 3)),
        lambda rows: torch.rand_like(input=torch.zeros(rows, 3), dtype=torch.float64),
        lambda rows: torch.randn(size=(rows, 5)),
        lambda rows: torch.rand(size=[rows]),
        lambda rows: torch.rand(*np.array([rows, 2])),
    ],
)
def test_the_draws_of_a_part_are_rows_of_those_of_the_whole(draw: Any) -> None:
    torch.manual_seed(3)
    whole, after = draw(9), torch.rand(2)
    torch.manual_seed(3)
    with RowDraws(slice(4, 6), 9):
        part = draw(2)
    torch.testing.assert_close(part, whole[4:6], rtol=0, atol=0)
    torch.testing.assert_close(torch.rand(2), after, rtol=0, atol=0)
    torch.manual_seed(4)
    kept = torch.get_rng_state()
    with RowDraws(slice(4, 6), 9, torch.Generator().manual_seed(3)):
        part = draw(2)
    torch.testing.assert_close(part, whole[4:6], rtol=0, atol=0)
    assert torch.get_rng_state().equal(kept)


@pytest.mark.parametrize("size", [(), (3,), (9, 2)])
def test_draws_of_another_size_are_left_as_they_are(size: tuple[int, ...]) -> None:
    torch.manual_seed(3)
    drawn = torch.randn(size), torch.rand(size=size), torch.randn_like(input=torch.zeros(size))
    torch.manual_seed(3)
    with RowDraws(slice(4, 6), 9):
        again = torch.randn(size), torch.rand(size=size), torch.randn_like(input=torch.zeros(size))
    torch.testing.assert_close(again, drawn, rtol=0, atol=0)
