"""Intrinsic rewards in the learned model, and the noisy television."""

import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command import ALONE, BRIEFLY, composed, error_line, run
from encoded import latent_set

from worldmodels.agents.distillation_file import load_distillation, save_distillation
from worldmodels.config import limits, schema
from worldmodels.data.episodes import EpisodeSet
from worldmodels.data.latents import FirstLatents
from worldmodels.envs.action_spec import actions_of
from worldmodels.envs.engines import EnvSpec, make_vector_env
from worldmodels.errors import ArtifactError, ConfigError
from worldmodels.files import weights
from worldmodels.files.atomic import JsonLines, read_json
from worldmodels.models.features import FeatureSpec
from worldmodels.models.mdnrnn import MDNRNN
from worldmodels.runs.tracking import read_metrics
from worldmodels.training import distillation
from worldmodels.training.distillation import distil
from worldmodels.worlds.dream import DreamWorld
from worldmodels.worlds.novelty import NoveltyWorld

LATENT, ACTION = 4, 2
FIRST = FirstLatents(*np.random.default_rng(0).normal(size=(2, 5, LATENT)).astype(np.float32))


def dream(members: int) -> tuple[DreamWorld, list[MDNRNN]]:
    torch.manual_seed(0)
    models = [MDNRNN(LATENT, ACTION, 12, mixtures=3) for _ in range(members)]
    return DreamWorld(models[0], FIRST, 1.2, FeatureSpec(), others=models[1:]), models


@pytest.fixture
def briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distillation, "UPDATES", 300)


# --- intrinsic rewards


def test_disagreement_is_the_variance_of_the_members_predicted_means() -> None:
    inner, models = dream(3)
    world, seeds = NoveltyWorld(inner), [3, 4, 5, 6]
    world.reset(seeds)
    states = [model.initial_state(len(seeds)) for model in models]
    for time in range(3):
        before = world.latents.clone()
        actions = torch.linspace(-1, 1, len(seeds) * ACTION).reshape(len(seeds), ACTION) * (
            time + 1
        )
        step = world.step(actions)
        means = []
        with torch.inference_mode():
            for number, model in enumerate(models):
                states[number] = model.advance(before, actions, states[number])
                mixture = model.predict(states[number]).latent
                share = mixture.logits.double().softmax(dim=-1)  # (N, Z, K)
                means.append((share * mixture.mean.double()).sum(dim=-1).numpy())
        expected = np.var(np.stack(means), axis=0).mean(axis=-1)
        np.testing.assert_allclose(step.reward, expected, rtol=1e-5)
        assert (step.reward > 0).all()


def test_the_world_is_the_learned_model_with_another_reward(briefly: None, tmp_path: Path) -> None:
    model = distil(latent_set(tmp_path / "latents.h5"), True, 1)
    for networks in (None, model):
        plain, _ = dream(2)
        inner, _ = dream(2)
        world = NoveltyWorld(inner, networks)
        assert torch.equal(world.reset([1, 2, 3]), plain.reset([1, 2, 3]))
        for one in (world, plain):
            one.step(torch.zeros(3, ACTION))
            one.keep(np.array([True, False, True]))
        found, expected = (one.step(torch.ones(2, ACTION)) for one in (world, plain))
        assert torch.equal(found.features, expected.features)
        assert (found.terminated == expected.terminated).all()
        assert (found.reward != expected.reward).all()


def numpy_error(tree: dict[str, torch.Tensor], latents: np.ndarray) -> np.ndarray:
    """The squared error of the predictor, from the definition, in float64."""
    arrays = {name: part.double().numpy() for name, part in tree.items()}
    outputs = []
    for network in ("target", "predictor"):
        found = np.clip((latents - arrays["mean"]) / arrays["std"], -5, 5)
        layers = sorted(
            {name.split(".")[1] for name in arrays if name.startswith(network)}, key=int
        )
        for layer in layers:
            weight, bias = (arrays[f"{network}.{layer}.{part}"] for part in ("weight", "bias"))
            found = found @ weight.T + bias
            if layer != layers[-1]:
                found = np.maximum(found, 0)
        outputs.append(found)
    error: np.ndarray = ((outputs[0] - outputs[1]) ** 2).mean(axis=1)
    return error


def test_distillation_is_the_predictors_error_over_its_mean_on_recorded_latents(
    briefly: None, tmp_path: Path
) -> None:
    latents, path = latent_set(tmp_path / "latents.h5"), tmp_path / "distillation.safetensors"
    save_distillation(path, distil(latents, False, 7))
    tree = weights.load(path)
    recorded = np.concatenate([latents.episode(number).mean for number in range(8)])
    mean_error = numpy_error(tree, recorded.astype(np.float64)).mean()
    assert tree["scale"].item() == pytest.approx(mean_error, rel=1e-3)

    inner, _ = dream(1)
    world = NoveltyWorld(inner, load_distillation(path, LATENT))
    world.reset([3, 4, 5])
    step = world.step(torch.zeros(3, ACTION))
    expected = numpy_error(tree, world.latents.double().numpy()) / mean_error
    np.testing.assert_allclose(step.reward, expected, rtol=1e-3)


def test_what_was_not_recorded_is_newer(briefly: None, tmp_path: Path) -> None:
    latents = latent_set(tmp_path / "latents.h5")
    model = distil(latents, False, 1)
    recorded = torch.from_numpy(np.concatenate([latents.episode(n).mean for n in range(8)]))
    untrained = model.scale * 0 + 1
    assert model.errors(recorded).mean() == pytest.approx(model.scale.item(), rel=1e-4)
    assert model.errors(recorded).mean() < 0.2 * untrained
    assert model.novelty(recorded + 3).mean() > 3
    assert model.novelty(recorded).mean() == pytest.approx(1, rel=1e-4)


def test_the_networks_are_a_function_of_the_seed(briefly: None, tmp_path: Path) -> None:
    latents = latent_set(tmp_path / "latents.h5")
    torch.manual_seed(5)
    one = weights.digest(dict(distil(latents, True, 1).state_dict()))
    torch.manual_seed(6)
    assert weights.digest(dict(distil(latents, True, 1).state_dict())) == one
    assert weights.digest(dict(distil(latents, True, 2).state_dict())) != one
    assert weights.digest(dict(distil(latents, False, 1).state_dict())) != one


def test_networks_of_other_sizes_are_refused(briefly: None, tmp_path: Path) -> None:
    path = tmp_path / "distillation.safetensors"
    save_distillation(path, distil(latent_set(tmp_path / "latents.h5"), True, 1))
    with pytest.raises(ArtifactError, match="does not hold networks for latents of 5"):
        load_distillation(path, 5)


# --- searches and rounds

DREAM = ("controller.world=dream", "controller.latent=sampled")
SEARCH = ("stage=controller", "preset=smoke", ALONE, *DREAM)


@pytest.mark.system
def test_a_search_for_novelty_is_resumed_to_the_bit(copy: Path) -> None:
    search = (*SEARCH, "base=smoke", "controller.objective=distillation")
    words = (*search, "controller.generations=3", "controller.final_temperature=1.5")
    done = run(copy, *words, "run=whole", "controller.eval_interval=1")
    assert done.returncode == 0, done.stderr
    assert "distillation " in done.stdout
    folder = copy / "whole/controller"
    record = read_json(folder / "manifest.json")
    assert "distillation.safetensors" in record["files"]
    summary = record["summary"]
    assert summary["objective"] == "distillation"
    assert (summary["recorded_best"], summary["exploitation"]) == (None, None)
    assert "selection_mean" not in summary
    names = {name for _, name, _, _ in read_metrics(folder / "metrics.csv")}
    assert {"novelty/mean", "novelty/best"} <= names
    assert not any(name.startswith("selection/") for name in names)

    # The networks are written first, then each generation and each selection.
    again = (*words, "run=killed", "controller.eval_interval=1")
    for number in (3, 4, 5):
        killed = run(copy, *again, kill_at_write=number)
        assert killed.returncode == -signal.SIGKILL, killed.stdout + killed.stderr
    done = run(copy, *again)
    assert done.returncode == 0, done.stderr
    other = copy / "killed/controller"
    name = "distillation.safetensors"
    assert (other / name).read_bytes() == (folder / name).read_bytes()
    assert read_json(other / "manifest.json")["fingerprint"] == record["fingerprint"]
    fitness = [
        [line["fitness"] for line in JsonLines(place / "generations.jsonl").read()]
        for place in (folder, other)
    ]
    assert fitness[0] == fitness[1]


@pytest.mark.system
@pytest.mark.timeout(1800)
def test_rounds_explore_and_a_last_one_trains_for_reward(tmp_path: Path) -> None:
    rounds = (
        "{round: 2, rollouts: {policy: sticky_uniform}}",
        "{round: 3, rollouts: {policy: controller}, controller: {objective: distillation}}",
        # With other features and the same encoder: neither weights nor components fit.
        "{round: 4, vae: {epochs: 0}, controller: {objective: reward, features: z}}",
    )
    words = ("stage=iterate", "preset=smoke", ALONE, *DREAM, *BRIEFLY, "iterate.rounds=4")
    more = (
        *("rnn.members=2", "controller.objective=disagreement", "rollouts.policy=uniform"),
        "controller.pca_components=8",
    )
    done = run(tmp_path, *words, *more, f"iterate.schedule=[{', '.join(rounds)}]")
    assert done.returncode == 0, done.stdout + done.stderr
    folders = [tmp_path / f"smoke/round-{number}" for number in range(1, 5)]
    searches = [read_json(folder / "controller/manifest.json") for folder in folders]
    objectives = [search["summary"]["objective"] for search in searches]
    assert objectives == ["disagreement", "disagreement", "distillation", "reward"]
    # A search begins with the controller of the round before where that had the same objective.
    continued = ["previous controller" in search["inputs"] for search in searches]
    assert continued == [False, True, False, False]
    encoders = [read_json(folder / "vae/manifest.json")["fingerprint"] for folder in folders[2:]]
    assert encoders[0] == encoders[1]
    collected = [EpisodeSet.open([folder / "rollouts"], "refuse") for folder in folders]
    policies = [one.shards[0].attrs["policy"] for one in collected]
    assert policies == ["uniform", "sticky_uniform", "controller", "controller"]
    scored = ["agent in the dream" in read_json(f / "evaluate/scores.json") for f in folders]
    assert scored == [False, False, False, True]
    page = (folders[1] / "report/index.html").read_text()
    assert "maximised an intrinsic reward in the learned model (disagreement)" in page
    assert "sum of the intrinsic reward" in page


def test_a_search_for_the_reward_is_that_of_a_version_without_objectives(copy: Path) -> None:
    words = (*SEARCH, "run=plain", "base=smoke")
    done = run(copy, *words)
    assert done.returncode == 0, done.stderr
    record = read_json(copy / "plain/controller/manifest.json")
    assert record["config"]["controller.objective"] is None
    assert record["summary"]["objective"] == "reward"
    assert not (copy / "plain/controller/distillation.safetensors").exists()
    refused = run(copy, *words, "controller.objective=disagreement")
    assert "controller.objective=null, now disagreement" in error_line(refused)
    alone = run(copy, *SEARCH, "run=one", "base=smoke", "controller.objective=disagreement")
    assert "the dynamics model has one member; train a model with rnn.members=2" in error_line(
        alone
    )


@pytest.mark.system
def test_an_agent_without_recorded_latents_is_refused(tmp_path: Path) -> None:
    agent = Path(__file__).resolve().parent.parent / "pretrained" / "carracing-dream"
    words = (*SEARCH, f"base={agent}", "controller.objective=distillation")
    observed = ("env.frame_skip=4", "env.crop_rows=null", "env.engine=gymnasium")
    assert "has no recorded latents; give" in error_line(run(tmp_path, *words, *observed))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["controller.world=real"],
            "objective=distillation: needs controller.world=dream; give that, or",
        ),
        (
            ["controller.optimizer=actor_critic"],
            "objective=distillation: needs controller.optimizer=cma_es",
        ),
        (["controller.exploitation_patience=2"], "exploitation_patience=2: .* give null, or"),
        (["controller.pessimism=1", "rnn.members=2"], r"pessimism=1\.0: .* give 0, or"),
        (["stage=baseline"], "stage=baseline trains for the task's reward; give reward"),
        (
            ["stage=sweep", "sweep.target=controller"],
            "sweep.target=controller compares the task's returns; give reward",
        ),
        (["controller.objective=disagreement"], "objective=disagreement: .*; give rnn.members=2"),
    ],
)
def test_objectives_that_cannot_be_are_refused(words: list[str], said: str) -> None:
    given = ["preset=smoke", *DREAM, "controller.objective=distillation", *words]
    with pytest.raises(ConfigError, match=said):
        limits.check(composed(*given))


def test_objectives_that_can_be() -> None:
    for words in (["controller.objective=distillation"], ["rnn.members=2"]):
        limits.check(composed("preset=smoke", *DREAM, *words))
    # The members of a dynamics model at hand are counted when it is read.
    given = ("stage=controller", "controller.objective=disagreement")
    limits.check(composed("preset=smoke", *DREAM, *given))


def test_later_rounds_collect_with_the_policy_that_the_schedule_gives() -> None:
    entries = (
        "{round: 1, rollouts: {policy: uniform}}",
        "{round: 3, rollouts: {policy: brownian}}",
        "{round: 4, rollouts: {policy: controller, noise: 0.3}}",
    )
    config = composed("preset=smoke", f"iterate.schedule=[{', '.join(entries)}]")
    rounds = [schema.round_config(config, number).rollouts for number in range(1, 6)]
    policies = [own.policy.name for own in rounds]
    assert policies == ["uniform", "controller", "brownian", "controller", "controller"]


# --- television

SEEDS, SIDE = [3, 2**30, 17], 16


def square(seed: int, shown: int) -> np.ndarray:
    """The noise of an episode that is shown for the so-manieth time, from the definition."""
    drawn = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(4,)))
    bytes_ = drawn.integers(0, 256, (shown + 1, SIDE, SIDE, 3), np.uint8)
    found: np.ndarray = bytes_[shown]
    return found


@pytest.mark.parametrize("engine", ["native", "gymnasium"])
def test_an_action_turns_a_square_to_noise(engine: str) -> None:
    spec = EnvSpec(engine=engine, television=2, frame_skip=2, max_steps=4)
    plain = EnvSpec(engine=engine, frame_skip=2, max_steps=4)
    with closing(make_vector_env(spec, 3)) as env, closing(make_vector_env(plain, 3)) as other:
        assert actions_of(env) == actions_of(other)
        seeds: Any = SEEDS
        frames, expected = (one.reset(seed=seeds)[0] for one in (env, other))
        shown = np.zeros(3, int)
        for time in range(6):
            brakes = np.array([0.6, 0.5, 0.8 if time % 2 else 0.0], np.float32)
            actions = np.stack([np.zeros(3), np.ones(3) * 0.2, brakes], axis=1).astype(np.float32)
            frames, rewards, _, truncated, _ = env.step(actions)
            expected, others, *_ = other.step(actions)
            assert (rewards == others).all()
            np.testing.assert_array_equal(frames[:, SIDE:], expected[:, SIDE:])
            np.testing.assert_array_equal(frames[:, :SIDE, SIDE:], expected[:, :SIDE, SIDE:])
            assert truncated.all() == (time >= 3)
            last = min(time, 3)  # of an episode that has ended the square stays
            brakes[2] = 0.8 if last % 2 else 0.0
            for index, seed in enumerate(SEEDS):
                if time <= 3:
                    shown[index] += brakes[index] > 0.5
                on = brakes[index] > 0.5
                wanted = square(seed, shown[index] - 1) if on else np.zeros((SIDE, SIDE, 3))
                np.testing.assert_array_equal(frames[index, :SIDE, :SIDE], wanted)


def test_some_episodes_begin_anew_with_their_own_noise() -> None:
    on = np.array([[0, 0, 1]] * 3, np.float32)
    with closing(make_vector_env(EnvSpec(television=2), 3)) as env:
        seeds: Any = SEEDS
        env.reset(seed=seeds)
        env.step(on)
        again: Any = [5, 17, 17]
        frames, _ = env.reset(seed=again, options={"reset_mask": np.array([False, True, False])})
        assert not frames[1, :SIDE, :SIDE].any()
        frames = env.step(on)[0]
        for index, (seed, shown) in enumerate(((3, 1), (17, 0), (17, 1))):
            np.testing.assert_array_equal(frames[index, :SIDE, :SIDE], square(seed, shown))


def test_a_run_records_the_television(tmp_path: Path) -> None:
    words = ("stage=rollouts", "preset=smoke", ALONE, "rollouts.policy=uniform")
    done = run(tmp_path, *words, "env.television=0", "rollouts.mirrored_share=0.5")
    assert done.returncode == 0, done.stderr
    episodes = EpisodeSet.open([tmp_path / "smoke/rollouts"], "refuse")
    frames = [episodes.episode(number).frames[1:, :SIDE] for number in range(8)]
    actions = [episodes.episode(number).actions[:, 0] for number in range(8)]
    # Steering changes sign in the mirror image, and the square is at the other side there.
    lit = [
        (
            (part[:, :, :SIDE].std(axis=(1, 2, 3)) > 60),
            (part[:, :, -SIDE:].std(axis=(1, 2, 3)) > 60),
        )
        for part in frames
    ]
    mirrored = 0
    for (left, right), steering in zip(lit, actions, strict=True):
        if (left == (steering > 0.5)).all():
            continue
        assert (right == (steering < -0.5)).all()
        mirrored += 1
    assert 0 < mirrored < 8


def test_a_television_that_cannot_be_is_refused(tmp_path: Path) -> None:
    words: Callable[..., tuple[str, ...]] = lambda *more: ("preset=smoke", *more)  # noqa: E731
    missing = run(tmp_path, *words("stage=rollouts", ALONE, "env.television=3"))
    assert "env.television=3: there are 3 actions; choose 0 to 2, or null" in error_line(missing)
    with pytest.raises(ConfigError, match=r"env\.television=1: its noise cannot be set back"):
        limits.check(composed(*words("env.television=1", "rollouts.branches=2")))
