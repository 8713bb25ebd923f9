"""Failed episodes, the branches that continue them, and the share of failures in batches."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from command import ALONE, BRIEFLY, error_line, run

from worldmodels.agents.folder import read_agent, write_agent
from worldmodels.agents.model_files import load_first_latents
from worldmodels.data.episodes import EpisodeSet
from worldmodels.data.failures import failures
from worldmodels.data.latents import EncodedEpisode, LatentSet, write_latents
from worldmodels.data.sequences import FailureShare, SequenceBatch, SequenceBatches, balanced
from worldmodels.data.shards import Episode, write_shard
from worldmodels.envs.action_spec import ActionBounds
from worldmodels.envs.carracing.vector import CarRacingVectorEnv
from worldmodels.envs.engines import EnvSpec, make_vector_env
from worldmodels.errors import DataError
from worldmodels.files.atomic import read_json
from worldmodels.models.conv3d import Conv3dVAE
from worldmodels.models.features import FeatureSpec
from worldmodels.worlds.branches import LONGEST, PERTURBATIONS, CollectBranches, branches_of
from worldmodels.worlds.collect import CollectShard, NoisyAgent
from worldmodels.worlds.real import Perception, RealWorld
from worldmodels.worlds.specs import RealWorldSpec

SHIPPED = Path(__file__).resolve().parent.parent / "pretrained" / "carracing"
CONTROLS = ActionBounds((-1.0, 0.0, 0.0), (1.0, 1.0, 1.0))
STALL, BEFORE = 30, 40
SEEDS = (2**28 + 1, 2**28 + 2, 2**28 + 3)
FAILING = (
    *("stage=rollouts", "preset=smoke", "rollouts.policy=controller", f"model={SHIPPED}"),
    *("rollouts.noise=0.3", "rollouts.stall_steps=14", "rollouts.branches=2"),
    "rollouts.branch_steps=8",
)
LATER = "iterate.schedule=[{round: 2, rollouts: {branches: 3}}]"


@pytest.fixture(scope="module")
def blind(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped agent with a controller that goes straight on at full gas, whatever it sees."""
    folder = tmp_path_factory.mktemp("blind") / "agent"
    whole = read_agent(SHIPPED)
    parameters = np.zeros_like(whole.parameters)
    parameters[-3:] = (0.0, 5.0, -5.0)  # biases of steering, gas and brake
    first = load_first_latents(SHIPPED / "rnn.safetensors")
    write_agent(folder, replace(whole, parameters=parameters), first)
    return folder


@pytest.fixture(scope="module")
def world(blind: Path) -> RealWorld:
    features = read_agent(blind).config.features
    spec = EnvSpec(engine="native")
    return RealWorldSpec(
        spec, 1, blind / "vae.safetensors", blind / "rnn.safetensors", features
    ).build()


def collect(
    folder: Path, agent: Path, world: RealWorld, noise: float, parts: tuple[tuple[int, ...], ...]
) -> EpisodeSet:
    for number, seeds in enumerate(parts):
        path = folder / f"shard-{number:05d}.h5"
        policy = NoisyAgent(agent, noise, 0.0, CONTROLS)
        CollectBranches(CollectShard(path, seeds, 250, policy, {}, STALL), 3, BEFORE)(
            world, lambda steps: None
        )
    return EpisodeSet.open([folder])


def episodes_of(found: EpisodeSet) -> dict[int, Episode]:
    return {int(seed): found.episode(index) for index, seed in enumerate(found.seeds)}


def same(one: Episode, two: Episode) -> bool:
    names = ("frames", "actions", "rewards", "terminated", "truncated")
    return all(np.array_equal(getattr(one, name), getattr(two, name)) for name in names)


def test_a_branch_is_what_the_simulator_gives_for_its_actions(
    blind: Path, world: RealWorld, tmp_path: Path
) -> None:
    episodes = episodes_of(collect(tmp_path, blind, world, 0.002, (SEEDS,)))
    assert len(episodes) == 3 + 3 * 3
    envs, perturbed = CarRacingVectorEnv(1, size=64), set()
    for branch in episodes.values():
        if branch.parent is None:
            continue
        parent = episodes[branch.parent]
        assert branch.first_step > 0
        drawn = branches_of(parent, 3, BEFORE, STALL)
        (chosen,) = (one for one in drawn if one.seed == branch.seed)
        first = branch.actions[: chosen.steps]
        if chosen.perturbation in ("brake", "lift"):
            np.testing.assert_array_equal(first[:, 1], 0)
            np.testing.assert_array_equal(first[:, 2], chosen.perturbation == "brake")
        perturbed.add(chosen.perturbation)
        frame, _ = envs.reset(seed=[branch.parent])
        for action in parent.actions[: branch.first_step]:
            frame, *_ = envs.step(action[None])
        np.testing.assert_array_equal(branch.frames[0], frame[0])
        np.testing.assert_array_equal(branch.frames[0], parent.frames[branch.first_step])
        for time, action in enumerate(branch.actions):
            frame, reward, terminated, _, _ = envs.step(action[None])
            np.testing.assert_array_equal(branch.frames[time + 1], frame[0])
            assert branch.rewards[time] == np.float32(reward[0])
            assert branch.terminated[time] == terminated[0]
        assert not np.array_equal(branch.actions, parent.actions[branch.first_step :])
    assert {"brake", "lift", "burst"} & perturbed


@pytest.mark.parametrize(
    "env", [EnvSpec(engine="native"), EnvSpec(engine="native", crop_rows=None, frame_skip=4)]
)
def test_a_branch_begins_with_the_clip_of_its_moment(env: EnvSpec) -> None:
    torch.manual_seed(0)
    encoder = Conv3dVAE(8, 64, frames=4)
    spec = FeatureSpec((), sampled=False)
    watched = RealWorld(
        lambda num_envs: make_vector_env(env, num_envs), Perception(encoder, None, spec)
    )
    actions = torch.tensor([[0.2, 1.0, 0.0]])
    watched.reset(SEEDS[:2])
    for _ in range(5):
        watched.step(actions.expand(2, -1))
    watched.keep(np.array([False, True]))
    moment = watched.moment(0)
    whole, frames = [watched.latents], [watched.frames]
    for _ in range(5):
        whole.append(watched.step(actions).features)
        frames.append(watched.frames)
    resumed = [watched.resume([moment], [7])]
    for time in range(5):
        np.testing.assert_array_equal(watched.frames, frames[time])
        resumed.append(watched.step(actions).features)
    for one, two in zip(whole, resumed, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(whole[0], whole[1])


@pytest.mark.system
def test_branches_depend_on_seeds_alone(blind: Path, world: RealWorld, tmp_path: Path) -> None:
    """Without noise on parameters this controller ignores the latents, and so their rounding."""
    found = []
    for name, parts in (("one", (SEEDS[:2],)), ("two", (SEEDS[:1], SEEDS[1:2]))):
        (tmp_path / name).mkdir()
        found.append(episodes_of(collect(tmp_path / name, blind, world, 0.0, parts)))
    together, apart = found
    assert together.keys() == apart.keys()
    for seed, episode in together.items():
        assert same(episode, apart[seed])
        assert episode.parent == apart[seed].parent
        assert episode.first_step == apart[seed].first_step


def test_a_stalled_episode_is_truncated_after_its_last_step(
    blind: Path, world: RealWorld, tmp_path: Path
) -> None:
    path = tmp_path / "shard-00000.h5"
    policy = NoisyAgent(blind, 0.0, 0.0, CONTROLS)
    outcome = CollectShard(path, SEEDS, 250, policy, {}, STALL)(world, lambda steps: None)
    episodes = EpisodeSet.open([tmp_path])
    for index, length in enumerate(outcome.lengths):
        episode = episodes.episode(index)
        assert len(episode.frames) == length + 1 < 251
        assert episode.truncated[-1]
        assert not episode.terminated.any()
        assert np.argmax(np.cumsum(episode.rewards, dtype=float)) == length - 1 - STALL


@pytest.mark.parametrize(
    ("rewards", "terminated", "steps"),
    [
        ([3, -1, 3, -1, -1, -100], True, (3, 5)),  # left the playfield
        ([3, -1, 3, -1, -1, 3], True, ()),  # a lap
        ([1, 1, 1, 1], True, (3,)),  # died
        ([3, -1, 3, -1, -1, -1], False, (3,)),  # stalled
        ([3, -1, 3, -1, -1], False, ()),  # cut before it had stalled
    ],
)
def test_where_an_episode_failed(
    rewards: list[float], terminated: bool, steps: tuple[int, ...]
) -> None:
    assert failures(np.array(rewards, np.float32), terminated, 3) == steps
    if not terminated:
        assert failures(np.array(rewards, np.float32), terminated, None) == ()


def short(
    seed: int, rewards: np.ndarray, parent: int | None = None, first_step: int = 0
) -> Episode:
    ends = np.zeros(len(rewards), bool)
    ends[-1] = True
    frames = np.zeros((len(rewards) + 1, 8, 8, 3), np.uint8)
    actions = np.zeros((len(rewards), 3), np.float32)
    return Episode(frames, actions, rewards, ends, ~ends & False, seed, parent, first_step)


def test_perturbations_have_their_shares_and_begin_before_the_failure() -> None:
    assert sum(PERTURBATIONS.values()) == pytest.approx(1)
    rewards = np.full(200, -0.1, np.float32)
    rewards[149] = 100.0  # the failure began in step 150
    drawn = [
        branch
        for seed in range(40)
        for branch in branches_of(short(2**28 + seed, rewards), 50, 100, None)
    ]
    before = 150 - np.array([branch.first_step for branch in drawn])
    assert (before.min(), before.max()) == (25, 100)
    steps = np.array([branch.steps for branch in drawn])
    assert (steps.min(), steps.max()) == (1, LONGEST)
    for kind, share in PERTURBATIONS.items():
        counted = np.mean([branch.perturbation == kind for branch in drawn])
        assert counted == pytest.approx(share, abs=0.04)
    assert len({branch.seed for branch in drawn}) == len(drawn)
    few = branches_of(short(2**28, rewards), 2, 100, None)
    assert few == drawn[:2]  # more branches leave the others as they are
    skipping = branches_of(short(2**28, rewards), 50, 100, None, frame_skip=4)
    assert max(branch.steps for branch in skipping) <= LONGEST // 4
    assert not branches_of(short(2**28, rewards[:150]), 2, 100, None)  # ends with a gain


def test_branches_are_on_their_parents_side_of_the_split(tmp_path: Path) -> None:
    rewards = np.ones(3, np.float32)
    for number in range(6):
        seeds = range(100 * number, 100 * number + 4)
        part = [short(seed, rewards) for seed in seeds]
        part += [short(10_000 + 10 * seed + k, rewards, seed, k) for seed in seeds for k in (1, 2)]
        write_shard(tmp_path / f"shard-{number:05d}.h5", part, {})
    episodes = EpisodeSet.open([tmp_path])
    assert episodes.branches.sum() == 48
    for shard in episodes.shards:
        shard.verify()
    assert (episodes.episode(4).parent, episodes.episode(4).first_step) == (0, 1)
    assert episodes.episode(3).parent is None
    for fraction in (0.001, 0.3, 0.999):
        sides = [set(episodes.parents[side]) for side in episodes.split(fraction, 1)]
        assert all(sides)
        assert not sides[0] & sides[1]
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()
    write_shard(tmp_path / "shard-00000.h5", [short(1, rewards), short(2, rewards, 1)], {})
    with pytest.raises(DataError, match="collect more"):
        EpisodeSet.open([tmp_path]).split(0.5, 1)


LENGTHS = (57, 100, 23, 64, 80, 41, 99, 10)


@pytest.fixture
def latents(tmp_path: Path) -> LatentSet:
    """Latent t of episode i is (i, t); episodes of even number die in their last step."""

    def encoded(index: int, steps: int) -> EncodedEpisode:
        time = np.arange(steps + 1, dtype=np.float32)
        rows = np.stack([np.full_like(time, index), time], axis=1)
        ends = np.zeros(steps, bool)
        ends[-1] = index % 2 == 0
        return EncodedEpisode(rows, -rows, rows[:-1], np.ones(steps, np.float32), ends, index)

    path = tmp_path / "latents.h5"
    write_latents(path, (encoded(i, n) for i, n in enumerate(LENGTHS)), {})
    return LatentSet(path)


def test_half_of_the_transitions_are_of_the_newest_episodes() -> None:
    lengths = np.random.default_rng(1).integers(5, 50, 200)
    training, newest = np.arange(0, 200, 2), np.arange(150, 200)
    found = balanced(training, newest, lengths, seed=3)
    new, old = found[found >= 150], found[found < 150]
    assert new.tolist() == list(range(150, 200, 2))
    assert set(old) < set(training)
    assert 0 <= lengths[old].sum() - lengths[new].sum() < 50
    assert not np.array_equal(found, balanced(training, newest, lengths, seed=4))
    # No more of the others than there are.
    assert balanced(training, np.arange(50, 200), lengths, 3).tolist() == training.tolist()


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_the_stated_share_of_rows_is_near_a_failure(latents: LatentSet, share: float) -> None:
    rows, length, steps = 4, 10, 12
    every = np.arange(len(LENGTHS))
    batches = SequenceBatches(
        latents, every, rows, length, 0, shuffle=True, failures=FailureShare(share, steps, None)
    )
    wanted = min(max(round(share * rows), 1), rows - 1)
    seen: set[tuple[int, int]] = set()
    last: dict[int, tuple[int, int]] = {}
    for number in range(20):
        epoch = list(batches.epoch(number))
        assert len(epoch) == batches.steps(number) == -(-sum(-(-n // 10) for n in LENGTHS) // rows)
        last.clear()
        for batch in epoch:
            near = 0
            for row in range(rows):
                index, first = (int(value) for value in batch.mean[row, 0])
                end = LENGTHS[index] - 1  # the step of the failure
                near += index % 2 == 0 and end - (first + length) < steps
                assert batch.starts[row] == (last.get(row) != (index, first - length))
                last[row] = (index, first)
                seen.add((index, first))
            assert near == wanted
    assert seen == {(i, at) for i, n in enumerate(LENGTHS) for at in range(0, n, length)}
    one, again = list(batches.epoch(3)), list(batches.epoch(3, 2))
    for whole, resumed in zip(one[2:], again, strict=True):
        for name in SequenceBatch._fields:
            np.testing.assert_array_equal(getattr(whole, name), getattr(resumed, name))


def test_without_failures_every_transition_occurs_once(
    latents: LatentSet, caplog: pytest.LogCaptureFixture
) -> None:
    odd = np.arange(1, len(LENGTHS), 2)
    arguments = (latents, odd, 2, 10, 0, True)
    shared = SequenceBatches(*arguments, failures=FailureShare(0.5, 10, None))
    assert "rnn.failure_share" in caplog.text
    for one, two in zip(shared.epoch(0), SequenceBatches(*arguments).epoch(0), strict=True):
        np.testing.assert_array_equal(one.mean, two.mean)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("env.engine=gymnasium",), "rollouts.branches=2: CarRacing-v3 cannot be set back"),
        (("env.sticky_actions=0.25",), "rollouts.branches=2: environments with sticky actions"),
        (
            ("stage=iterate", "rollouts.branches=null", "env.engine=gymnasium", LATER),
            "rollouts.branches=3: CarRacing-v3 cannot be set back",
        ),
        (("rollouts.noise=0",), "choose rollouts.noise above 0"),
        (("stage=iterate", "iterate.noise=0"), "choose iterate.noise above 0"),
    ],
)
def test_branches_that_cannot_be_are_refused(
    tmp_path: Path, overrides: tuple[str, ...], said: str
) -> None:
    # The agent comes later: with other observations it is refused as well.
    words = [word for word in FAILING if not word.startswith("model=")]
    assert said in error_line(run(tmp_path, *words, *overrides, ALONE))


@pytest.mark.system
def test_branches_do_not_depend_on_kills_and_workers(tmp_path: Path) -> None:
    found = []
    for name, workers, kills in (
        ("whole", ALONE, ()),
        ("killed", ALONE, (1, 2, 3)),
        ("workers", "workers.processes=2", ()),
    ):
        for kill in (*kills, None):
            done = run(tmp_path / name, *FAILING, workers, kill_at_write=kill)
            assert (done.returncode == 0) == (kill is None), done.stdout + done.stderr
        found.append(read_json(tmp_path / name / "smoke/rollouts/manifest.json"))
    assert found[0]["summary"]["branches"] > 0
    assert len({manifest["fingerprint"] for manifest in found}) == 1
    assert found[0]["summary"] == found[1]["summary"] == found[2]["summary"]


@pytest.mark.system
def test_where_actions_repeat_a_branch_begins_as_long_before_the_failure(tmp_path: Path) -> None:
    words = [word for word in FAILING if "branch_steps" not in word and "stall" not in word]
    longer = ("env.max_steps=1000", "rollouts.max_steps=250", "rollouts.stall_steps=25")
    more = ("env.frame_skip=4", "rollouts.noise=0.1", "rollouts.branches=12")
    done = run(tmp_path, *words, *longer, *more, ALONE)
    assert done.returncode == 0, done.stdout + done.stderr
    episodes = episodes_of(EpisodeSet.open([tmp_path / "smoke/rollouts"]))
    before = []
    for branch in episodes.values():
        if branch.parent is not None and branch.first_step > 0:
            parent = episodes[branch.parent]
            failed = failures(parent.rewards, bool(parent.terminated[-1]), 25)[0]
            if failed > 25:  # none begins at the first step
                before.append(failed - branch.first_step)
    assert min(before) >= 6
    assert 15 < max(before) <= 25  # 100 steps of the simulator


@pytest.mark.system
def test_rounds_take_these_keys(tmp_path: Path) -> None:
    keys = ("rollouts.stall_steps=8", "rollouts.branches=2", "rollouts.branch_steps=8")
    words = ("stage=iterate", "preset=smoke", "iterate.rounds=2", "rnn.failure_share=0.5", *BRIEFLY)
    done = run(tmp_path, *words, *keys, ALONE)
    assert done.returncode == 0, done.stdout + done.stderr
    first, second = (
        read_json(tmp_path / f"smoke/round-{number}/rollouts/manifest.json") for number in (1, 2)
    )
    assert "branches" not in first["summary"]  # of random actions
    assert second["summary"]["branches"] > 0
    trained = read_json(tmp_path / "smoke/round-2/rnn/manifest.json")["config"]
    assert (trained["rnn.failure_share"], trained["rollouts.stall_steps"]) == (0.5, 8)
    begin = load_first_latents(tmp_path / "smoke/round-2/rnn/rnn.safetensors")
    assert len(begin.mean) == 8 + 8  # dreams do not begin at branches
