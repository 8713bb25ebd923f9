"""Model-free baselines: what they observe, how they act, and their training."""

import csv
import gc
import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from baseline_training import BRIEF, BUFFER, DISCRETE, PPO, SMALL, trained
from command import ALONE, composed, error_line, run

from worldmodels import extras
from worldmodels.api import make_dream, make_env
from worldmodels.baselines.actions import Actions
from worldmodels.baselines.frames import FrameStack
from worldmodels.baselines.policy import load_policy
from worldmodels.baselines.vec_env import SeededVecEnv
from worldmodels.config import limits
from worldmodels.envs.action_spec import BoxActions, DiscreteActions
from worldmodels.errors import ArtifactError, ConfigError, TrainingError
from worldmodels.runs.artifacts import Run
from worldmodels.runs.tracking import read_metrics
from worldmodels.stages import baseline
from worldmodels.stages.context import Context
from worldmodels.stages.players import player_of
from worldmodels.worlds.rollout import Outcome

ALGORITHMS = [
    ("ppo", [PPO]),
    pytest.param(
        "dqn", [f"baseline.options={{{SMALL}, {BUFFER}}}", DISCRETE], marks=pytest.mark.system
    ),
    pytest.param("sac", [f"baseline.options={{{SMALL}, {BUFFER}}}"], marks=pytest.mark.system),
]


# --- what it observes, and how it acts


def test_a_stack_has_the_latest_grey_frames_of_each_episode() -> None:
    frames = np.random.default_rng(0).integers(0, 256, (4, 2, 5, 5, 3), np.uint8)
    grey = (frames @ np.array([77, 150, 29])) // 256  # of ITU-R BT.601
    stack = FrameStack(3)
    first = stack.begin(frames[0])
    assert first.dtype == np.uint8
    assert not first[:, :2].any(), "before an episode there are zeros"
    np.testing.assert_array_equal(first[:, 2], grey[0])
    stack.add(frames[1])
    third = stack.add(frames[2])
    np.testing.assert_array_equal(third, grey[:3].transpose(1, 0, 2, 3))
    new = stack.restart(np.array([True, False]), frames[3])
    assert not new[0, :2].any()
    np.testing.assert_array_equal(new[0, 2], grey[3, 0])
    np.testing.assert_array_equal(new[1], third[1])
    stack.keep(np.array([False, True]))
    np.testing.assert_array_equal(stack.add(frames[3, 1:])[0, 2], grey[3, 1])


@pytest.mark.parametrize(
    ("own", "chosen", "taken"),
    [
        (DiscreteActions(3, start=5), [2, 0], [5 + 2, 5]),
        (DiscreteActions(4, action_bins=(3, 1, 0)), [0, 1, 2], [3, 1, 0]),
        (BoxActions((-1, 0), (1, 1)), [[0.5, 0.25]], [[0.5, 0.25]]),
        (BoxActions((-2, 0), (2, 4)), [[1.0, -1.0]], [[2.0, 0.0]]),
    ],
)
def test_actions_reach_the_environment_as_they_were_chosen(
    own: BoxActions | DiscreteActions, chosen: list[Any], taken: list[Any]
) -> None:
    actions = Actions(own)
    assert actions.space.contains(np.array(chosen[0], actions.space.dtype))
    assert own.from_vectors(actions.vectors(np.array(chosen))).tolist() == taken


def test_episodes_end_and_begin_in_one_step_with_the_seeds_that_were_drawn() -> None:
    seeds = [[11, 12], [13, 14], [15, 16]]
    own = BoxActions((-1, 0, 0), (1, 1, 1))
    envs = SeededVecEnv(make_env(num_envs=2, max_steps=3), Actions(own), seeds.__getitem__)
    action = np.array([[0, 1, 0]] * 2, np.float32)
    observed, infos, dones, rewards = [envs.reset()], [], [], []
    for _ in range(6):
        observation, reward, done, info = envs.step(action)
        observed.append(observation)
        rewards.append(reward)
        dones.append(done.tolist())
        infos.append(info)
    assert [any(done) for done in dones] == [False, False, True] * 2
    for episode, row in enumerate(seeds[:2]):
        alone = make_env(num_envs=2, max_steps=3)
        first, _ = alone.reset(seed=row)  # type: ignore[arg-type]  # gymnasium's stub
        np.testing.assert_array_equal(observed[3 * episode], first)
        for step in range(3):
            now, reward, *_ = alone.step(action)
            np.testing.assert_allclose(rewards[3 * episode + step], reward, rtol=1e-6)
        for index in range(2):
            last = infos[3 * episode + 2][index]
            np.testing.assert_array_equal(last["terminal_observation"], now[index])
            assert last["TimeLimit.truncated"]
    envs.close()


def test_some_episodes_of_the_learned_model_begin_anew_without_the_others(smoke: Path) -> None:
    envs, alone, other = (
        make_dream(smoke / "smoke/controller/agent", num_envs=8, max_steps=9) for _ in range(3)
    )
    action = np.zeros((8, 3), np.float32)
    for env in (envs, alone):
        env.reset(seed=1)
        _, _, terminated, _, _ = env.step(action)
    mask = np.arange(8) == 1
    new, _ = envs.reset(seed=70, options={"reset_mask": mask})
    begun, _ = other.reset(seed=70)
    np.testing.assert_allclose(new[1], begun[1], rtol=1e-5, atol=1e-6)
    after, *_ = envs.step(action)
    expected, *_ = alone.step(action)
    same = ~mask & ~terminated
    assert same.any()
    np.testing.assert_allclose(after[same], expected[same], rtol=1e-5, atol=1e-6)


# --- training


@pytest.mark.parametrize(("algorithm", "words"), ALGORITHMS)
def test_a_training_killed_at_any_moment_gives_the_policy_of_one_that_was_not(
    tmp_path: Path, algorithm: str, words: list[str]
) -> None:
    words = [f"baseline.algorithm={algorithm}", *words]
    whole = trained(tmp_path / "whole", *words)
    assert whole["summary"]["steps"] == 64
    for write in (2, 6, 5) if algorithm == "ppo" else (12,):
        done = run(tmp_path / "killed", *BRIEF, *words, kill_at_write=write)
        assert done.returncode == -9, done.stdout + done.stderr
    resumed = trained(tmp_path / "killed", *words)
    assert resumed["fingerprint"] == whole["fingerprint"]
    logs = [
        [
            {**json.loads(line), "seconds": 0, "crc32": 0}
            for line in (tmp_path / name / "it/baseline/segments.jsonl").open()
        ]
        for name in ("whole", "killed")
    ]
    assert logs[0] == logs[1]
    assert [record["steps"] for record in logs[0]] == [32, 64]
    metrics = [
        [row[:3] for row in read_metrics(tmp_path / name / "it/baseline/metrics.csv")]
        for name in ("whole", "killed")
    ]
    assert metrics[0] == metrics[1]
    assert [row[0] for row in metrics[0] if row[1] == "selection/mean"] == [32, 64]
    assert whole["summary"]["selection_mean"] == max(record["score"] for record in logs[0])


def test_the_replay_buffer_of_a_segment_is_freed_before_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stable_baselines3.common.buffers import ReplayBuffer

    kept = []

    def evaluated(*_: Any) -> Any:
        kept.append(sum(isinstance(one, ReplayBuffer) for one in gc.get_objects()))
        return Outcome(np.zeros(2), np.ones(2, np.int64), np.zeros(2, bool))

    monkeypatch.setattr(baseline, "_evaluate", evaluated)
    words = ("baseline.algorithm=dqn", f"baseline.options={{{SMALL}, {BUFFER}}}", DISCRETE)
    gc.disable()  # which runs at any moment
    try:
        baseline.run(Context(composed(*BRIEF, *words), Run(tmp_path / "it")))
    finally:
        gc.enable()
    assert kept == [0, 0]


@pytest.mark.system
def test_seed_and_precision_decide_the_policy_and_threads_do_not(tmp_path: Path) -> None:
    runs = ((1, "bfloat16"), (1, "bfloat16"), (2, "bfloat16"), (1, "float32"))
    first, again, *others = (
        trained(
            tmp_path / str(number),
            *(PPO, "baseline.total_steps=32", f"seed={seed}", f"trainer.precision={precision}"),
            threads=1 + number % 2,
        )["fingerprint"]
        for number, (seed, precision) in enumerate(runs)
    )
    assert first == again
    assert len({first, *others}) == 3
    for precision in ("bfloat16", "float32"):  # of an evaluation
        config = composed("stage=evaluate", "run=it", ALONE, f"trainer.precision={precision}")
        player, _ = player_of(Context(config, Run(tmp_path / "0/it")))
        job: Any = player.jobs([0], 1, 5)[0]
        assert job.source.spec.bfloat16 is (precision == "bfloat16")


@pytest.mark.parametrize("algorithm", ["ppo", "dqn", "sac"])
def test_frames_in_bfloat16_give_nearly_the_same_features_in_float32(algorithm: str) -> None:
    from worldmodels.baselines.algorithms import PolicySpec

    own = DiscreteActions(2) if algorithm == "dqn" else BoxActions((-1,), (1,))
    spec = PolicySpec(algorithm, Actions(own), frame_stack=4, size=64)
    torch.manual_seed(0)
    exact, mixed = spec.build(), replace(spec, bfloat16=True).build()
    mixed.load_state_dict(exact.state_dict())  # also: the layers behind it are the same
    frames = torch.randint(0, 256, (8, 4, 64, 64), dtype=torch.uint8)
    policies = {"ppo": lambda of: of, "dqn": lambda of: of.q_net, "sac": lambda of: of.actor}
    expected, features = (
        policy.extract_features(frames, policy.features_extractor)
        for policy in map(policies[algorithm], (exact, mixed))
    )
    assert features.dtype == torch.float32
    assert 0 < (features - expected).abs().max() < 2**-6 * expected.abs().max()
    features.sum().backward()
    trained = list(policies[algorithm](mixed).features_extractor.parameters())
    assert {weights.dtype for weights in trained} == {torch.float32}
    assert all(weights.grad is not None for weights in trained)


def test_learning_rates_fall_over_the_whole_training(tmp_path: Path) -> None:
    words = (
        *("baseline.learning_rate=4e-3", "baseline.final_learning_rate=0.0004"),
        *("baseline.total_steps=128", "baseline.checkpoint_steps=64"),
    )
    trained(tmp_path, PPO, *words, "baseline.normalise_reward=false")
    with (tmp_path / "it/baseline/metrics.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["name"] == "train/learning_rate"]
    # Rollouts have 32 steps; the rate of an update is logged with the rollout after it.
    rates = {int(row["step"]): float(row["value"]) for row in rows}
    assert rates == pytest.approx({64: 4e-4 + 3.6e-3 * 3 / 4, 128: 4e-4 + 3.6e-3 * 1 / 4})


# --- what cannot be done


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["baseline.algorithm=dqn"], "dqn: CarRacing-v3 has continuous actions; choose ppo or sac"),
        (["baseline.algorithm=sac", DISCRETE], "sac: CarRacing-v3 has discrete actions; choose"),
        (["baseline.options={n_step: 3}"], "baseline.options.n_step: ppo of Stable-Baselines3"),
        (["baseline.options={batch_size: 1}"], "baseline.options: ppo refuses them: "),
        (
            ["baseline.options={policy_kwargs: {net_arch: [-1]}}"],
            "baseline.options.policy_kwargs={'net_arch': [-1]}: ppo builds no such network: ",
        ),
        (["baseline.options={verbose: 2}"], "baseline.options.verbose: ppo of Stable"),
        (["baseline.options={use_sde: true}"], "baseline.options.use_sde: ppo of Stable"),
        (["baseline.total_steps=0"], "baseline.total_steps=0: choose"),
        (["env.engine=envpool"], "reset_mask"),
    ],
)
def test_what_a_baseline_cannot_use_is_said_in_a_line(
    tmp_path: Path, words: list[str], said: str
) -> None:
    if "env.engine=envpool" in words:
        pytest.importorskip("envpool", reason="EnvPool is not installed")
    assert said in error_line(run(tmp_path, *BRIEF, *words))
    assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("options={policy_kwargs: 3}", r"policy_kwargs=3: give a mapping, as in \{policy_kwargs"),
        ("options={policy_kwargs: null}", "policy_kwargs=None: give a mapping"),
        ("options={train_freq: 0}", "train_freq=0: choose a whole number, 1 to 1000000"),
        ("options={n_epochs: 0}", "n_epochs=0: choose a whole number, 1 to"),
        ("options={gradient_steps: 1.5}", "gradient_steps=1.5: choose a whole number, -1 to"),
        ("options={stats_window_size: -1}", "stats_window_size=-1: choose a whole number"),
        ("options={n_steps: true}", "n_steps=True: choose a whole number"),
        ("options={ent_coef: auto}", "ent_coef=auto: choose a number, -1000000 to 1000000"),
        ("options={target_kl: high}", "target_kl=high: choose a number, more than 0, .*, or null"),
        ("options={gamma: null}", "gamma=None: choose a number, 0 to 1$"),
        ("options={clip_range: nan}", "clip_range=nan: choose a number"),
        ("final_learning_rate=1e-5", "=1e-05: needs baseline.learning_rate, from which it"),
    ],
)
def test_values_that_would_end_a_training_are_refused_before_it(word: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as raised:
        limits.check(composed("stage=baseline", f"baseline.{word}"))
    assert str(raised.value).startswith(f"baseline.{word.partition('=')[0]}")


def test_values_that_an_algorithm_takes_are_not_refused() -> None:
    for algorithm, options in (
        ("ppo", "target_kl: null, clip_range_vf: null, ent_coef: -0.01, max_grad_norm: 1"),
        ("dqn", "gradient_steps: -1, learning_starts: 0, exploration_fraction: 0, tau: 1"),
        ("sac", "ent_coef: auto_0.1, policy_kwargs: {}, buffer_size: 10_000_000"),
    ):
        words = (f"baseline.algorithm={algorithm}", f"baseline.options={{{options}}}")
        limits.check(composed("stage=baseline", *words))


@pytest.mark.parametrize("cause", ["environment", "learning rate"])
def test_an_error_of_the_environment_is_told_from_networks_that_diverge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: str
) -> None:
    def step(_: Any) -> Any:
        raise ValueError("of the environment")

    words = (*BRIEF, PPO, "env.engine=gymnasium")
    if cause == "environment":
        monkeypatch.setattr(SeededVecEnv, "step_wait", step)
        with pytest.raises(ValueError, match="of the environment"):
            baseline.run(Context(composed(*words), Run(tmp_path / "it")))
    else:
        with pytest.raises(TrainingError, match=r"choose a lower baseline\.learning_rate"):
            rate = "baseline.learning_rate=1e6"
            baseline.run(Context(composed(*words, rate), Run(tmp_path / "it")))


def test_a_damaged_state_is_named_and_nothing_is_lost(tmp_path: Path) -> None:
    done = run(tmp_path, *BRIEF, PPO, kill_at_write=9)
    assert done.returncode == -9
    state = tmp_path / "it/baseline/segment-00000/state.safetensors"
    state.write_bytes(state.read_bytes()[:-100])
    line = error_line(run(tmp_path, *BRIEF, PPO))
    assert "state.safetensors is damaged" in line
    assert state.exists()


def test_without_stable_baselines_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = {"stable_baselines3"}
    monkeypatch.setattr(
        extras, "find_spec", lambda name: None if name in absent else find_spec(name)
    )
    with pytest.raises(ConfigError, match=r"pip install 'worldmodels-gym\[baselines\]'"):
        extras.check(composed("stage=baseline"))


def test_a_policy_file_of_another_network_is_refused(tmp_path: Path) -> None:
    from worldmodels.baselines.algorithms import PolicySpec
    from worldmodels.baselines.policy import save_policy

    actions = Actions(BoxActions((-1,), (1,)))
    torch.manual_seed(0)
    save_policy(tmp_path / "p", PolicySpec("ppo", actions, None, 4).build())
    load_policy(tmp_path / "p", PolicySpec("ppo", actions, None, 4))
    with pytest.raises(ArtifactError, match="is not of this network"):
        load_policy(tmp_path / "p", PolicySpec("ppo", actions, None, 5))


def test_a_baseline_leaves_the_number_of_threads_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the process trains next rounds by it."""
    pytest.importorskip("stable_baselines3")
    seen: list[int] = []

    def stopped(*_: Any) -> None:
        seen.append(torch.get_num_threads())
        raise KeyboardInterrupt

    monkeypatch.setattr("worldmodels.baselines.train.train", stopped)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(KeyboardInterrupt):
            baseline.run(Context(composed("preset=smoke", ALONE), Run(tmp_path / "it")))
        assert (seen, torch.get_num_threads()) == ([1], 2)
    finally:
        torch.set_num_threads(before)
