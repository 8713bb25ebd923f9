"""Episodes of the learned model that begin at moments of recorded ones."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command import ALONE, BRIEFLY, FEW_FRAMES, error_line, run
from scipy import stats

import worldmodels
from worldmodels.agents.model_files import load_dynamics, save_dynamics
from worldmodels.agents.starts_file import STARTS, load_starts, save_starts
from worldmodels.config.schema import Config
from worldmodels.data.episodes import EpisodeSet
from worldmodels.data.latents import EncodedEpisode, FirstLatents, LatentSet, write_latents
from worldmodels.data.sequences import FailureEnd, SequenceBatches
from worldmodels.data.starts import AFTER_FAILURE, HISTORY, Starts, draw_starts
from worldmodels.errors import ArtifactError, ConfigError
from worldmodels.files import weights
from worldmodels.files.atomic import read_json
from worldmodels.models.features import FeatureSpec
from worldmodels.models.gru import GRUDynamics
from worldmodels.models.mdnrnn import MDNRNN
from worldmodels.models.transformer import TransformerDynamics
from worldmodels.runs.artifacts import Run
from worldmodels.runs.tracking import read_metrics
from worldmodels.stages.inputs import Inputs
from worldmodels.training.encode import encode_episodes
from worldmodels.worlds.dream import DreamWorld
from worldmodels.worlds.members import SamplingRule
from worldmodels.worlds.rollout import rollout

LATENT, ACTION = 5, 3
LENGTHS = (12, 90, 60)
NO_BRANCHES = np.zeros(3, bool)


def episodes() -> list[EncodedEpisode]:
    """Of three lengths; the second fails at step 30 and stalls until its end."""
    rng, found = np.random.default_rng(0), []
    for seed, steps in enumerate(LENGTHS):
        rewards = np.ones(steps, np.float32)
        if seed == 1:
            rewards[30:] = -0.1
        mean, logvar = rng.normal(size=(2, steps + 1, LATENT)).astype(np.float32)
        actions = rng.uniform(-1, 1, (steps, ACTION)).astype(np.float32)
        ends = np.zeros(steps, bool)
        found.append(EncodedEpisode(mean, logvar, actions, rewards, ends, seed))
    return found


@pytest.fixture
def latents(tmp_path: Path) -> LatentSet:
    write_latents(tmp_path / "latents.h5", episodes(), {})
    return LatentSet(tmp_path / "latents.h5")


def drawn(
    latents: LatentSet, count: int = 1000, branches: np.ndarray = NO_BRANCHES, **other: Any
) -> Starts:
    options = {"seed": 1, "stall_steps": 40} | other
    return draw_starts(latents, [np.arange(3)], branches, count, **options)


def test_moments_have_the_steps_before_them(latents: LatentSet) -> None:
    starts, recorded = drawn(latents), episodes()
    # All moments of the first and the third episode, and of the second until it has failed.
    assert len(starts.mean) == 12 + (30 + AFTER_FAILURE + 1) + 60
    for row in range(len(starts.mean)):
        before = int(starts.steps[row])
        (episode,) = [e for e in recorded if (e.mean == starts.mean[row, -1]).all(axis=1).any()]
        (time,) = np.flatnonzero((episode.mean == starts.mean[row, -1]).all(axis=1))
        assert before == min(time, HISTORY)
        steps, first = slice(time - before, time), HISTORY - before
        np.testing.assert_array_equal(starts.mean[row, first:-1], episode.mean[steps])
        np.testing.assert_array_equal(starts.logvar[row, first:-1], episode.logvar[steps])
        np.testing.assert_array_equal(starts.actions[row, first:], episode.actions[steps])
        assert not starts.mean[row, :first].any()
        assert not starts.actions[row, :first].any()


def test_the_draw_depends_on_the_seed_and_has_first_frames(latents: LatentSet) -> None:
    one, same, other = (drawn(latents, 24, seed=seed) for seed in (1, 1, 2))
    assert (one.mean == same.mean).all()
    assert one.mean.shape != other.mean.shape or (one.mean != other.mean).any()
    assert (one.steps == 0).sum() >= 3  # of each episode
    newest = draw_starts(latents, [np.array([2])], NO_BRANCHES, 24, 1, 40)
    third = episodes()[2].mean
    assert all((third == row).all(axis=1).any() for row in newest.mean[:, -1])


def test_the_first_frame_of_a_branch_is_no_moment(latents: LatentSet) -> None:
    """The third episode is recorded, the others are branches; the second fails at step 30."""
    branches = np.array([True, True, False])
    firsts = np.array([episode.mean[0] for episode in episodes()])
    for share in (0.0, 1.0):
        starts = drawn(latents, branches=branches, failure_share=share)
        begun = starts.mean[starts.steps == 0, -1]
        assert (begun == firsts[2]).all()
        assert len(starts.mean) == 12 - 1 + (30 + AFTER_FAILURE) + 60
    few = drawn(latents, 12, branches)
    assert (few.steps == 0).any()


def test_a_share_of_the_moments_is_before_failures(latents: LatentSet) -> None:
    failing, others = episodes()[1].mean, np.concatenate([episodes()[n].mean for n in (0, 2)])

    def times(starts: Starts) -> list[int]:
        """The steps of the moments of the second episode, which fails at step 30."""
        found = [np.flatnonzero((failing == row).all(axis=1)) for row in starts.mean[:, -1]]
        return sorted(int(time) for at in found for time in at)

    near = draw_starts(latents, [np.array([1])], NO_BRANCHES, 12, 1, 40, failure_share=1.0)
    assert times(near) == list(range(11))  # 100 to 20 steps before, as far as there are any
    none = draw_starts(latents, [np.array([0, 2])], NO_BRANCHES, 40, 1, 40, failure_share=1.0)
    assert len(none.mean) >= 38  # two first frames may be drawn twice
    assert all((others == row).all(axis=1).any() for row in none.mean[:, -1])
    closer = draw_starts(
        latents, [np.array([1])], NO_BRANCHES, 22, 1, 40, failure_share=1.0, frame_skip=4
    )
    assert times(closer) == [0, *range(5, 26)]  # 25 to 5 steps, of four of the simulator each
    half = drawn(latents, 80, failure_share=0.5)
    assert sum(time <= 10 for time in times(half)) == 11
    assert any(time > 10 for time in times(half))


@pytest.mark.parametrize("build", [MDNRNN, GRUDynamics, TransformerDynamics])
@pytest.mark.parametrize(("members", "updated"), [(1, False), (1, True), (2, False)])
def test_an_episode_begins_with_the_state_of_its_moment(
    build: Callable[..., Any], members: int, updated: bool, latents: LatentSet
) -> None:
    torch.manual_seed(0)
    options = {"heads": 2} if build is TransformerDynamics else {}
    models = [
        build(LATENT, ACTION, hidden_size=8, mixtures=2, sampled=False, **options).eval()
        for _ in range(members)
    ]
    spec = FeatureSpec(sampled=False, updated=updated)
    starts = drawn(latents, 24)
    world = DreamWorld(models[0], starts, 1.0, spec, others=models[1:], rule=SamplingRule())
    rows = range(len(starts.mean))
    wanted = {
        starts.mean[row, -1].tobytes(): _walked(models[0], starts, row, updated) for row in rows
    }
    features = world.reset(range(50))
    _assert_begun(features, wanted)
    actions = torch.ones(50, ACTION)
    world.step(actions)
    running = world.features().clone()
    mask = np.arange(50) % 3 == 0
    world.restart(mask, range(100, 100 + mask.sum()))
    _assert_begun(world.features()[mask], wanted)
    torch.testing.assert_close(world.features()[~mask], running[~mask], rtol=0, atol=0)
    assert (actions == 1).all()  # the caller's


@torch.inference_mode()
def _walked(model: Any, starts: Starts, row: int, updated: bool) -> torch.Tensor:
    """h after the steps before a moment, one step of one episode at a time; `updated`, after the
    moment's latent and the action before it."""
    state = model.initial_state(1)
    for time in range(HISTORY - int(starts.steps[row]), HISTORY):
        z, action = (
            torch.from_numpy(part[row : row + 1, time]) for part in (starts.mean, starts.actions)
        )
        state = model.advance(z, action, state)
    if updated:
        z, action = (
            torch.from_numpy(starts.mean[row, -1:]),
            torch.from_numpy(starts.actions[row, -1:]),
        )
        state = model.advance(z, action, state)
    h: torch.Tensor = model.features(state, ("h",))[0]
    return h


def _assert_begun(features: torch.Tensor, wanted: dict[bytes, torch.Tensor]) -> None:
    for row in features:
        h = wanted[row[:LATENT].numpy().tobytes()]
        torch.testing.assert_close(row[LATENT:], h, rtol=1e-5, atol=1e-6)


# --- terminations


def test_a_stall_becomes_a_termination(latents: LatentSet) -> None:
    ends = FailureEnd(delay=7, stall_steps=40)
    batches = SequenceBatches(latents, np.arange(3), 2, 16, 1, True, failure_end=ends)
    found = list(batches.epoch(0))
    # The second episode earns for 30 steps; its failure begins in the next one.
    assert sum(int(batch.mask.sum()) for batch in found) == 12 + (30 + 7 + 1) + 60
    assert sum(batch.terminated.sum() for batch in found) == 1
    (batch,) = [batch for batch in found if batch.terminated.any()]
    (row,) = np.flatnonzero(batch.terminated.any(axis=1))
    last = int(batch.mask[row].sum()) - 1
    assert batch.terminated[row, last] == 1
    np.testing.assert_array_equal(batch.actions[row, last], episodes()[1].actions[37])
    alike = SequenceBatches(latents, np.arange(3), 2, 16, 1, True)
    assert sum(int(batch.mask.sum()) for batch in alike.epoch(0)) == sum(LENGTHS)
    assert not any(batch.terminated.any() for batch in alike.epoch(0))


def test_a_completed_lap_is_no_termination_where_a_stall_is_one(tmp_path: Path) -> None:
    recorded = episodes()
    for episode, reward in zip(recorded[::2], (100.0, 1.0), strict=True):
        episode.rewards[-1] = reward  # the first is won by its last step, the third is not
        episode.terminated[-1] = True
    write_latents(tmp_path / "latents.h5", recorded, {})
    latents = LatentSet(tmp_path / "latents.h5")
    found = {}
    for ends in (None, FailureEnd(delay=7, stall_steps=40)):
        batches = SequenceBatches(latents, np.arange(3), 3, 100, 1, False, failure_end=ends)
        (batch,) = batches.epoch(0)
        found[ends] = {
            (int(batch.mask[row].sum()), int(batch.terminated[row].sum())) for row in range(3)
        }
    assert found[None] == {(12, 1), (90, 0), (60, 1)}
    assert found[FailureEnd(7, 40)] == {(12, 0), (38, 1), (60, 1)}


@pytest.mark.parametrize(("probability", "weight"), [(0.05, 1.0), (0.7, 1.0), (0.05, 40.0)])
def test_terminations_are_drawn_with_their_probability(
    tmp_path: Path, probability: float, weight: float
) -> None:
    """Odds that a weight of terminations in training has made larger are divided by it."""
    torch.manual_seed(0)
    model = MDNRNN(LATENT, ACTION, 8, 2, termination_pos_weight=weight)
    odds = weight * probability / (1 - probability)
    with torch.no_grad():
        model.head.weight[-1] = 0.0
        model.head.bias[-1] = float(np.log(odds))
    first = FirstLatents(*np.zeros((2, 3, LATENT), np.float32))
    save_dynamics(tmp_path / "rnn.safetensors", model, first)
    read = load_dynamics(tmp_path / "rnn.safetensors")

    def lengths(rule: SamplingRule, seeds: range) -> np.ndarray:
        world = DreamWorld(read, first, 1.0, FeatureSpec(), rule=rule)
        policy = _Still()
        return rollout(world, policy, seeds, 200).lengths

    rule = SamplingRule(sampled_termination=True)
    drawn = lengths(rule, range(2000))
    expected = stats.geom(probability)
    counts = [(drawn == length).sum() for length in (1, 2, 3)]
    for length, count in zip((1, 2, 3), counts, strict=True):
        assert stats.binomtest(int(count), 2000, expected.pmf(length)).pvalue > 1e-3
    np.testing.assert_array_equal(lengths(rule, range(500, 600)), drawn[500:600])
    certain = lengths(SamplingRule(), range(10))
    assert (certain == (1 if odds > 1 else 200)).all()


class _Still:
    """A policy without an action."""

    def act(self, features: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(features), ACTION)

    def keep(self, mask: np.ndarray) -> None:
        """Nothing is kept."""


# --- files


def test_a_file_of_moments_is_read_back(latents: LatentSet, tmp_path: Path) -> None:
    starts, path = drawn(latents), tmp_path / STARTS
    save_starts(path, starts)
    found = load_starts(path, LATENT, ACTION)
    np.testing.assert_array_equal(found.steps, starts.steps)
    for name in ("mean", "logvar", "actions"):
        np.testing.assert_allclose(getattr(found, name), getattr(starts, name), atol=2e-3)


def _other(name: str, value: torch.Tensor) -> Callable[[dict[str, Any]], None]:
    return lambda tensors: tensors.update({name: value})


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: tensors.pop("steps"),
        lambda tensors: tensors.pop("logvar"),
        _other("more", torch.zeros(1)),
        _other("steps", torch.tensor([HISTORY + 1])),
        _other("steps", torch.tensor([-1])),
        _other("steps", torch.zeros(0, dtype=torch.int64)),
        _other("steps", torch.zeros(1)),
        _other("mean", torch.zeros(1, HISTORY + 1, LATENT + 1).half()),
        _other("mean", torch.zeros(1, HISTORY + 1, LATENT)),
        _other("actions", torch.full((1, HISTORY, ACTION), torch.inf).half()),
    ],
)
def test_a_damaged_file_of_moments_is_refused(
    change: Callable[[dict[str, Any]], None], tmp_path: Path
) -> None:
    tensors: dict[str, Any] = {
        "mean": torch.zeros(1, HISTORY + 1, LATENT).half(),
        "logvar": torch.zeros(1, HISTORY + 1, LATENT).half(),
        "actions": torch.zeros(1, HISTORY, ACTION).half(),
        "steps": torch.tensor([3]),
    }
    path = tmp_path / STARTS
    weights.save(path, tensors)
    assert len(load_starts(path, LATENT, ACTION).mean) == 1
    change(tensors)
    weights.save(path, tensors)
    with pytest.raises(ArtifactError, match=rf"^{path}.*copy it again$"):
        load_starts(path, LATENT, ACTION)


# --- latents of the round before


class _Unused(torch.nn.Module):
    """An encoder that must not be asked."""

    clip_length = 1

    def encode(self, images: torch.Tensor) -> Any:
        raise AssertionError("encoded again")


def test_known_episodes_are_not_encoded_again(smoke: Path, tmp_path: Path) -> None:
    episodes = EpisodeSet.open([smoke / "smoke/rollouts"])
    known = LatentSet(smoke / "smoke/rnn/latents.h5")
    unused: Any = _Unused()
    path, cpu = tmp_path / "latents.h5", torch.device("cpu")
    with pytest.raises(AssertionError, match="encoded again"):
        encode_episodes(episodes, unused, path, {}, cpu, False)
    encode_episodes(episodes, unused, path, {}, cpu, False, known)
    found = LatentSet(path)
    np.testing.assert_array_equal(found.seeds, episodes.seeds)
    for number in range(episodes.num_episodes):
        np.testing.assert_array_equal(found.episode(number).mean, known.episode(number).mean)


# --- commands


@pytest.mark.system
def test_rounds_keep_encoder_and_latents_and_begin_at_moments(tmp_path: Path) -> None:
    dream = ("controller.world=dream", "controller.starts=recorded", ALONE)
    rounds = ("stage=iterate", "preset=smoke", "iterate.rounds=2")
    words = (*rounds, *dream, *BRIEFLY, *FEW_FRAMES, "controller.pca_components=4")
    changed = "vae: {epochs: 0}, rollouts: {episodes: 4}, controller: {sigma: 0.05}"
    later = f"iterate.schedule=[{{round: 2, {changed}}}]"
    others = ("rnn.newest_rounds=1", "rnn.members=2", "controller.termination_penalty=10")
    done = run(tmp_path, *words, later, *others)
    assert done.returncode == 0, done.stdout + done.stderr
    first, second = (tmp_path / f"smoke/round-{number}" for number in (1, 2))
    manifests = {
        stage: [read_json(folder / stage / "manifest.json") for folder in (first, second)]
        for stage in ("rollouts", "vae", "rnn", "controller")
    }
    vaes = manifests["vae"]
    assert vaes[0]["fingerprint"] == vaes[1]["fingerprint"]
    assert manifests["rollouts"][1]["summary"]["episodes"] == 4
    assert [found["config"]["controller.sigma"] for found in manifests["controller"]] == [0.1, 0.05]
    before, after = (LatentSet(folder / "rnn/latents.h5") for folder in (first, second))
    assert len(after.lengths) == len(before.lengths) + 4
    for number in range(len(before.lengths)):
        one, other = before.episode(number), after.episode(number)
        np.testing.assert_array_equal(one.mean, other.mean)
        np.testing.assert_array_equal(one.actions, other.actions)
    inputs = Inputs(Config(), Run(second), None, (Run(first),))
    counts = [manifest["summary"]["episodes"] for manifest in manifests["rollouts"]]
    assert inputs.newest(inputs.episodes()).tolist() == list(range(counts[0], sum(counts)))
    assert inputs.newest(inputs.episodes(), 2).tolist() == list(range(sum(counts)))
    steps = [read_metrics(folder / "rnn/metrics.csv")[-1][0] for folder in (first, second)]
    assert (counts, steps[1]) == ([8, 4], steps[0])  # on 8 of 12 episodes of equal length
    parts = [(folder / "controller/agent/pca_subspace.safetensors") for folder in (first, second)]
    assert parts[0].read_bytes() == parts[1].read_bytes()
    agent = second / "controller/agent"
    assert len(load_starts(agent / STARTS, 32, 3).mean) > 1
    assert "agent in the dream" in read_json(second / "evaluate/scores.json")
    entries = read_json(tmp_path / "smoke/rounds.json")["rounds"]
    assert [entry["by_horizon"] for entry in entries] == [[], []]  # they begin elsewhere there
    dreams = [worldmodels.make_dream(agent, 4, starts=where) for where in ("first", "recorded")]
    features = [env.reset(seed=1)[0] for env in dreams]
    assert not features[0][:, 32:].any()  # h is the initial one
    assert features[1][:, 32:].any()
    with pytest.raises(ConfigError, match=r"^starts=any: choose one of first, recorded"):
        worldmodels.make_dream(agent, starts="any")
    _search_on_the_models_of(agent, tmp_path, dream)


def _search_on_the_models_of(agent: Path, tmp_path: Path, dream: tuple[str, ...]) -> None:
    """Of an agent with moments, and of one without."""
    search = ("stage=controller", "preset=smoke", "run=more", "controller.latent=sampled", *dream)
    done = run(tmp_path, *search, f"base={agent}")
    assert done.returncode == 0, done.stdout + done.stderr
    copied = tmp_path / "more/controller/agent"
    assert (copied / STARTS).read_bytes() == (agent / STARTS).read_bytes()
    none = (*search, "run=none", "base=pretrained/carracing")
    said = error_line(run(tmp_path, *none))
    assert "controller.starts=recorded: the agent of base= has no starts.safetensors" in said
