"""The dynamics models against plain formulas: states, context, losses, files."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from encoded import latent_set
from lightning_fabric import Fabric
from torch import Tensor, distributions, nn
from torch.nn import functional as F

from worldmodels.agents.model_files import load_dynamics, save_dynamics
from worldmodels.config.limits import LIMITS
from worldmodels.data.latents import FirstLatents, LatentSet
from worldmodels.errors import ArtifactError
from worldmodels.files import weights
from worldmodels.models.dynamics import Sequences, State, reset_rows, select_rows
from worldmodels.models.gru import GRUDynamics
from worldmodels.models.heads import MixtureDynamics
from worldmodels.models.mdnrnn import MDNRNN
from worldmodels.models.transformer import MAX_CONTEXT, MAX_LAYERS, TransformerDynamics
from worldmodels.training.dynamics import DynamicsTask

Build = Callable[..., MixtureDynamics]
MODELS: dict[str, Build] = {
    "mdn_rnn": MDNRNN,
    "gru": GRUDynamics,
    "transformer": partial(TransformerDynamics, heads=2, context=6),
}
every_model = pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)


def sequences(batch: int, steps: int, latent: int, seed: int = 0) -> Sequences:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    return Sequences(
        mean=normal(batch, steps + 1, latent),
        logvar=torch.full((batch, steps + 1, latent), -60.0),  # no posterior noise
        actions=normal(batch, steps, 2),
        rewards=normal(batch, steps),
        terminated=torch.zeros(batch, steps),
        mask=torch.ones(batch, steps, dtype=torch.bool),
        starts=torch.ones(batch, dtype=torch.bool),
    )


def window(batch: Sequences, start: int, stop: int) -> Sequences:
    """Steps `start` to `stop` of whole episodes."""
    return Sequences(
        batch.mean[:, start : stop + 1],
        batch.logvar[:, start : stop + 1],
        batch.actions[:, start:stop],
        batch.rewards[:, start:stop],
        batch.terminated[:, start:stop],
        batch.mask[:, start:stop],
        torch.full_like(batch.starts, start == 0),
    )


@torch.no_grad()
def stepped(model: MixtureDynamics, latents: Tensor, actions: Tensor, state: State) -> State:
    """The state after each step, one step at a time; a dimension of time after the rows."""
    states = []
    for time in range(latents.shape[1]):
        state = model.advance(latents[:, time], actions[:, time], state)
        states.append(state)
    return tuple(torch.stack(parts, dim=1) for parts in zip(*states, strict=True))


@every_model
@pytest.mark.parametrize("is_first", [False, True])
def test_one_step_at_a_time_equals_the_sequence(build: Build, is_first: bool) -> None:
    torch.manual_seed(0)
    model = build(5, 2, 16, mixtures=3, is_first=is_first)
    latents, actions = torch.randn(4, 41, 5), torch.randn(4, 41, 2)
    whole, last = model.forward(latents, actions, model.initial_state(4))
    states = stepped(model, latents, actions, model.initial_state(4))
    prediction = model.predict(states)
    torch.testing.assert_close(prediction.reward, whole.reward, atol=1e-5, rtol=0)
    torch.testing.assert_close(prediction.latent, whole.latent, atol=1e-5, rtol=0)
    torch.testing.assert_close(tuple(part[:, -1] for part in states), last, atol=1e-5, rtol=0)


@every_model
def test_rows_begin_and_end_at_different_times(build: Build) -> None:
    torch.manual_seed(0)
    model = build(5, 2, 16, is_first=True)
    latents, actions = torch.randn(5, 24, 5), torch.randn(5, 24, 2)
    begins, rows = torch.tensor([0, 9, 0, 14, 9]), torch.arange(5)
    state, found = model.initial_state(5), torch.zeros(5, 24, 16)
    for time in range(24):
        state = reset_rows(model, state, (begins[rows] == time) & (time > 0))
        if time == 17:
            kept = torch.tensor([True, True, False, True, False])
            state, rows = select_rows(state, kept), rows[kept]
        state = model.advance(latents[rows, time], actions[rows, time], state)
        found[rows, time] = model.features(state, ["h"])
    for row, begin in enumerate(begins):
        stop = 24 if row in rows else 17
        part = slice(row, row + 1), slice(begin, stop)
        alone, _ = model.hidden_states(latents[part], actions[part], model.initial_state(1))
        torch.testing.assert_close(found[part], alone, atol=1e-5, rtol=0)


def test_the_is_first_input_is_one_in_the_first_step_of_an_episode_alone() -> None:
    torch.manual_seed(0)
    model = MDNRNN(5, 2, 16, 3, is_first=True)
    latents, actions = torch.randn(4, 9, 5), torch.randn(4, 9, 2)
    flag = torch.zeros(4, 9, 1)
    flag[:, 0] = 1
    hidden, _ = model.lstm(torch.cat([latents, actions, flag], dim=-1))
    told = model.predict((hidden, hidden)).reward
    first, state = model.forward(latents[:, :4], actions[:, :4], model.initial_state(4))
    later, _ = model.forward(latents[:, 4:], actions[:, 4:], state)
    torch.testing.assert_close(torch.cat([first.reward, later.reward], dim=1), told)


def test_a_gru_is_the_recurrence_of_torchs_cell() -> None:
    torch.manual_seed(0)
    model = GRUDynamics(5, 2, 16)
    cell = nn.GRUCell(7, 16)
    cell.load_state_dict({name.removesuffix("_l0"): p for name, p in model.gru.named_parameters()})
    latents, actions, h = torch.randn(4, 9, 5), torch.randn(4, 9, 2), torch.zeros(4, 16)
    (found,) = stepped(model, latents, actions, model.initial_state(4))
    for time in range(9):
        h = cell(torch.cat([latents[:, time], actions[:, time]], dim=-1), h)
        torch.testing.assert_close(found[:, time], h)


def pasts(model: TransformerDynamics) -> list[int]:
    """The number of earlier steps that each layer attends to."""
    return [cache.shape[3] for cache in model.initial_state(1)[2:]]


def plain_transformer(model: TransformerDynamics, inputs: Tensor) -> Tensor:
    """The hidden states of whole episodes (B, T, input), by a matrix of all pairs of steps."""
    rows, steps, _ = inputs.shape
    size = model.hidden_size // model.heads
    distance = torch.arange(steps).unsqueeze(1) - torch.arange(steps)
    turn = torch.outer(torch.arange(steps), 10_000 ** (-torch.arange(0, size, 2) / size))
    x = model.embedding(inputs)
    blocks: list[Any] = list(model.blocks)
    for block, past in zip(blocks, pasts(model), strict=True):
        parts = block.projections(block.norm(x)).view(rows, steps, 3, model.heads, size)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        query, key = (
            torch.complex(*part.chunk(2, dim=-1)) * torch.polar(torch.ones_like(turn), turn)
            for part in (query, key)
        )
        scores = (query @ key.mH).real / size**0.5
        scores[..., (distance < 0) | (distance > past)] = -torch.inf
        attended = (scores.softmax(dim=-1) @ value).transpose(1, 2).reshape(rows, steps, -1)
        x = x + block.output(attended)
        x = x + block.mlp(x)
    hidden: Tensor = model.norm(x)
    return hidden


@pytest.mark.parametrize(("context", "steps"), [(1, 5), (6, 3), (6, 70), (100, 70), (150, 200)])
def test_a_transformer_is_attention_over_all_pairs_of_steps(context: int, steps: int) -> None:
    torch.manual_seed(0)
    model = TransformerDynamics(5, 2, 16, layers=2, heads=2, context=context)
    assert sum(pasts(model)) == context - 1
    inputs = torch.randn(3, steps, 7)
    found, _ = model.hidden_states(inputs[..., :5], inputs[..., 5:], model.initial_state(3))
    torch.testing.assert_close(found, plain_transformer(model, inputs), atol=1e-5, rtol=0)


@pytest.mark.parametrize("context", [1, 2, 7, 40])
def test_a_prediction_depends_on_the_latest_steps_of_its_row_and_no_others(context: int) -> None:
    torch.manual_seed(0)
    model = TransformerDynamics(5, 2, 16, layers=3, heads=2, context=context)
    latents = torch.randn(2, 90, 5, requires_grad=True)
    for time in (0, 3, 60, 89):
        prediction, _ = model.forward(latents, torch.randn(2, 90, 2), model.initial_state(2))
        (gradient,) = torch.autograd.grad(prediction.latent.mean[1, time].sum(), latents)
        oldest = max(0, time - context + 1)
        used = gradient[1].abs().amax(dim=-1) > 0
        assert used[oldest : time + 1].all()
        assert used.sum() == time + 1 - oldest
        assert not gradient[0].any()


def test_a_step_costs_no_more_memory_than_the_context() -> None:
    model = TransformerDynamics(5, 2, 16, layers=3, heads=2, context=7)
    first = model.initial_state(4)
    states = stepped(model, torch.randn(4, 30, 5), torch.randn(4, 30, 2), first)
    assert [part[:, -1].shape for part in states] == [part.shape for part in first]
    assert sum(part[0].numel() for part in first[2:]) == 6 * 2 * 16
    assert states[1][:, -1].tolist() == [30] * 4


@pytest.mark.parametrize("shared", [False, True])
@every_model
def test_the_loss_is_that_of_explicit_distributions(build: Build, shared: bool) -> None:
    torch.manual_seed(0)
    model = build(
        *(3, 2, 8),
        mixtures=4,
        shared_mixture=shared,
        reward_weight=0.5,
        termination_weight=2.0,
        termination_pos_weight=10.0,
    )
    batch = sequences(2, 6, 3)
    batch.terminated[0, 3] = 1.0
    batch.mask[0, 4:] = False
    loss, logs, _ = model.loss(batch, model.initial_state(2))
    prediction, _ = model.forward(batch.mean[:, :-1], batch.actions, model.initial_state(2))
    logits, mean, log_std = prediction.latent
    weights = distributions.Categorical(logits=logits.squeeze(2) if shared else logits)
    if shared:
        mean, log_std = mean.mT, log_std.mT
    each: distributions.Distribution = distributions.Normal(mean, log_std.exp())
    density = distributions.MixtureSameFamily(
        weights, distributions.Independent(each, 1) if shared else each
    ).log_prob(batch.mean[:, 1:])
    nll = -(density if shared else density.sum(dim=-1)) / 3
    reward = (prediction.reward - batch.rewards).square()
    surprise = -distributions.Bernoulli(logits=prediction.termination).log_prob(batch.terminated)
    termination = surprise * (1 + 9 * batch.terminated)
    wanted = {"nll": nll, "reward_mse": reward, "termination_bce": termination}
    means = {name: values[batch.mask].mean() for name, values in wanted.items()}
    torch.testing.assert_close(logs, {name: value.detach() for name, value in means.items()})
    total = means["nll"] + 0.5 * means["reward_mse"] + 2 * means["termination_bce"]
    torch.testing.assert_close(loss, total)


def gradients(model: MixtureDynamics, batch: Sequences, state: State) -> tuple[float, Tensor]:
    """The loss of a batch, and its gradient as one vector."""
    model.zero_grad()
    torch.manual_seed(0)
    loss, _, _ = model.loss(batch, state)
    loss.backward()
    parts = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return loss.item(), torch.cat(parts)


@every_model
def test_padding_changes_neither_loss_nor_gradient(build: Build) -> None:
    model = build(3, 2, 8)
    short, longer = sequences(2, 5, 3), sequences(2, 9, 3, seed=7)
    padded = Sequences(
        *(
            torch.cat([a, b[:, a.shape[1] :]], dim=1) if a.dim() > 1 else a
            for a, b in zip(short, longer, strict=True)
        )
    )
    padded.mask[:, 5:] = False
    found, wanted = (gradients(model, batch, model.initial_state(2)) for batch in (padded, short))
    assert found[0] == pytest.approx(wanted[0], rel=1e-5)
    torch.testing.assert_close(found[1], wanted[1], rtol=1e-4, atol=1e-6)


@every_model
def test_windows_with_carried_state_see_what_the_whole_episode_sees(build: Build) -> None:
    model = build(3, 2, 8)
    whole = sequences(2, 12, 3)
    loss, _, _ = model.loss(whole, model.initial_state(2))
    parts, state = [], model.initial_state(2)
    for start in (0, 4, 8):
        part, _, state = model.loss(window(whole, start, start + 4), state)
        parts.append(part.item())
        assert not any(tensor.requires_grad for tensor in state)
    assert np.mean(parts) == pytest.approx(loss.item(), rel=1e-5)


@every_model
def test_a_new_episode_forgets_the_state_before(build: Build) -> None:
    model = build(3, 2, 8, is_first=True)
    batch = sequences(2, 4, 3)
    _, _, dirty = model.loss(sequences(2, 9, 3, seed=5), model.initial_state(2))
    found, wanted = (gradients(model, batch, state) for state in (dirty, model.initial_state(2)))
    assert found[0] == wanted[0]
    assert torch.equal(found[1], wanted[1])
    batch.starts[1] = False  # the other row goes on
    assert model.loss(batch, dirty)[0].item() != wanted[0]


def test_density_is_finite_far_in_the_tails() -> None:
    model = MDNRNN(2, 1, 4, 3)
    prediction = model.predict((torch.full((1, 4), 1e4), torch.zeros(1, 4)))
    assert torch.isfinite(prediction.latent.log_prob(torch.zeros(1, 2))).all()


@pytest.fixture(scope="module")
def latents(tmp_path_factory: pytest.TempPathFactory) -> LatentSet:
    return latent_set(tmp_path_factory.mktemp("latents") / "latents.h5")


@every_model
def test_in_bfloat16_a_transformer_trains_and_the_heads_stay_in_float32(
    build: Build, latents: LatentSet
) -> None:
    model = build(4, 2, 16)
    heads: list[tuple[Tensor, Tensor]] = []
    model.head.register_forward_hook(lambda _, given, made: heads.append((given[0], made.reward)))
    losses = []
    for precision in ("32-true", "bf16-mixed"):
        fabric = Fabric(accelerator="cpu", devices=1, precision=precision)
        task = DynamicsTask(model, latents, (np.arange(6), np.arange(6, 8)), 6, 5, 1, fabric)
        batch, *_ = task.validation()
        torch.manual_seed(0)
        losses.append(task.loss(batch, None)[0].item())
    assert losses[0] == pytest.approx(losses[1], rel=0.01)
    assert (losses[0] != losses[1]) == isinstance(model, TransformerDynamics)
    hidden, reward = heads[-1]
    torch.testing.assert_close(
        reward, F.linear(hidden, model.head.weight, model.head.bias)[..., -2]
    )


def saved(path: Path, model: MixtureDynamics) -> Path:
    zeros = np.zeros((1, model.latent_size), np.float32)
    save_dynamics(path, model, FirstLatents(zeros, zeros))
    return path


@every_model
def test_a_file_holds_all_of_a_model(build: Build, tmp_path: Path) -> None:
    model = build(5, 2, 16, mixtures=3, is_first=True, reward_weight=0)
    read = load_dynamics(saved(tmp_path / "rnn.safetensors", model))
    assert isinstance(read, type(model))
    assert read.sizes == model.sizes
    inputs = torch.randn(3, 20, 5), torch.randn(3, 20, 2)
    found, wanted = (
        stepped(one, *inputs, one.initial_state(3))[0] for one in (read.float(), model)
    )
    assert torch.equal(found, wanted)


@pytest.mark.parametrize(
    "sizes",
    [
        {"hidden_size": 65_536},
        {"hidden_size": 24},
        {"layers": 65_536},
        {"layers": 3},
        {"layers": 0},
        {"context": 65_536},
        {"context": 0},
        {"heads": 0},
        {"heads": 3},
        {"heads": "two"},
    ],
)
def test_sizes_that_a_transformer_cannot_have_are_refused(
    sizes: dict[str, Any], tmp_path: Path
) -> None:
    path = saved(tmp_path / "rnn.safetensors", TransformerDynamics(5, 2, 16, heads=2))
    content = weights.load(path)
    content["model"]["sizes"].update(sizes)
    weights.save(path, content)
    with pytest.raises(ArtifactError, match=r"rnn\.safetensors"):
        load_dynamics(path)


def test_the_bounds_of_the_keys_are_those_of_the_model() -> None:
    assert LIMITS["rnn.context"].most == MAX_CONTEXT
    assert LIMITS["rnn.layers"].most == MAX_LAYERS
