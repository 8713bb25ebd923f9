"""The cost of a run: what stages take, in their manifests, and what a plan predicts."""

import math
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from command import composed, error_line, run
from waiting import wait_for

from worldmodels.files.atomic import read_json
from worldmodels.planning.estimate import Base, Data, Estimate, Rates, without_work
from worldmodels.planning.schedule import Job, WorldCost, search_size
from worldmodels.planning.timing import FitRate, StepCost, StepTimes
from worldmodels.runs import costs
from worldmodels.runs.artifacts import Run
from worldmodels.stages import diagnosis
from worldmodels.stages import plan as plan_stage
from worldmodels.stages.calibration import calibrate, worlds
from worldmodels.stages.context import Context
from worldmodels.system import spent
from worldmodels.system.resources import Meter, Sampler
from worldmodels.workers.jobs import Heartbeat
from worldmodels.workers.local import LocalPool
from worldmodels.worlds.novelty import NoveltyWorld
from worldmodels.worlds.specs import NoveltyWorldSpec

STAGES = ("rollouts", "vae", "rnn", "controller", "evaluate", "report")
COST = StepCost(reset=0.5, step=0.01, each=0.001)


def rates(**changes: object) -> Rates:
    """Rates in round numbers."""
    world = WorldCost(COST, COST.scaled(0.5), workers=2, peak_bytes=1000)
    names = ("random", "controller", "evaluate", "evaluate random")
    made = Rates(
        imagination=None,
        base={name: Base(10.0, 5000, 2000, 300) for name in STAGES},
        worlds=dict.fromkeys(names, world),
        record=0.002,
        record_bytes=40.0,
        frame_bytes=7.0,
        random_length=1e9,
        vae=FitRate(training=100.0, validation=400.0, peak_bytes=6000, gpu_bytes=0),
        encode=1000.0,
        rnn=FitRate(training=2000.0, validation=8000.0, peak_bytes=7000, gpu_bytes=0),
        search=0.25,
        parameters=(10, 20),
        latent_bytes=100,
        num_envs=(4, 4),
        video_frame=0.1,
        open_loop_step=0.05,
        evaluation_engine="gymnasium",
        recorded=16,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def test_step_costs_of_two_batch_sizes_are_the_line_through_them() -> None:
    def took(num_envs: int) -> StepTimes:
        return StepTimes(0.5 * num_envs, 0.01 + 0.001 * num_envs, 0)

    found = StepCost.of(64, took(64), 16, took(16))
    assert found.reset == pytest.approx(0.5)
    assert [found.step, found.each] == pytest.approx([0.01, 0.001])
    assert found.job(64, 100, 3000) == pytest.approx(64 * 0.5 + 100 * 0.01 + 3000 * 0.001)
    # A smaller batch that was slower is noise: no environment may take negative time.
    slower = StepCost.of(64, took(64), 16, StepTimes(1.0, 9.0, 0))
    assert [slower.step, slower.each] == pytest.approx([0.074, 0.0])


def test_jobs_go_to_the_worker_that_is_free_first() -> None:
    world = WorldCost(StepCost(0, 0, 1.0), StepCost(0, 0, 0.5), workers=2, peak_bytes=0)
    jobs = [Job(1, 0, seconds) for seconds in (3, 1, 1, 4)]
    assert world.seconds(jobs) == 1 + 1 + 4  # the other worker is busy until 3
    assert world.seconds(jobs[:1]) == 1.5, "one job alone runs at the speed of an idle machine"


def test_a_search_is_as_long_as_its_generations_and_selections() -> None:
    config = replace(
        composed("preset=quick").controller,
        population=8,
        episodes=4,
        first_episodes=None,
        stall_steps=None,
        generations=7,
        total_steps=None,
        max_steps=100,
        eval_interval=3,
        eval_episodes=4,
    )
    played: list[float] = []

    def seconds_of(jobs: Sequence[Job]) -> float:
        played.append(sum(job.episodes for job in jobs))
        assert all(job.longest == 100 for job in jobs)
        return sum(job.steps for job in jobs) / 1000

    found = search_size(config, (16, 16), seconds_of)
    # 7 generations of 8 x 4 episodes; selections after 3, 6 and 7 of 2 x 4, of 100 steps each.
    assert list(found) == pytest.approx([7 * 3.2 + 3 * 0.8, 7, 3])
    assert set(played) == {32, 8}
    # With a budget of steps: 3,200 a generation, so that the third passes 6,500.
    assert search_size(replace(config, total_steps=6_500), (16, 16), seconds_of)[1:] == (3, 1)
    # Stalled episodes are assumed to last three times stall_steps.
    stalled = replace(config, total_steps=6_500, stall_steps=10)
    assert search_size(stalled, (16, 16), seconds_of)[1] == min(7, math.ceil(6500 / (32 * 30)))


def test_estimates_follow_from_amounts_and_rates() -> None:
    config = composed("preset=smoke", "vae.epochs=3", "rnn.baselines=true", "evaluate.episodes=8")
    plans = dict(Estimate(config, rates(), [Data(episodes=2, steps=80)]).stages(main=True))
    assert tuple(plans) == STAGES
    # 8 episodes of 40 steps in two shards of 4, one for each of two workers.
    shard = 4 * 0.5 + 40 * 0.01 + 160 * (0.001 + 0.002)
    assert plans["rollouts"].seconds == pytest.approx(10 + shard)
    assert plans["rollouts"].disk == 300 + 8 * 41 * 7
    assert plans["rollouts"].worker == 2000 + 4 * 41 * 40
    frames = 8 * 41 + 82  # with those of the run before
    training = frames * 0.75 / 100 + frames * 0.25 / 400
    assert plans["vae"].seconds == pytest.approx(10 + 3 * training)
    assert plans["vae"].process == 6000
    steps = 8 * 40 + 80
    training = steps * 0.75 / 2000 + steps * 0.25 / 8000
    assert plans["rnn"].seconds == pytest.approx(10 + frames / 1000 + 2 * 2 * training)
    several = replace(config, rnn=replace(config.rnn, members=3))
    plan = Estimate(several, rates(), [Data(episodes=2, steps=80)]).rnn()
    assert plan.seconds == pytest.approx(10 + frames / 1000 + (3 + 1) * 2 * training)
    # An update of whole episodes (0) is one of as many steps as these have on average.
    whole, mean = (
        replace(config, rnn=replace(config.rnn, sequence_length=steps, epochs=1000))
        for steps in (0, 40)
    )
    disks = [
        Estimate(one, rates(), [Data(episodes=2, steps=80)]).rnn().disk for one in (whole, mean)
    ]
    assert disks[0] == disks[1] > plans["rnn"].disk
    # Two jobs of the agent and two of random actions, of 4 episodes each; four videos', alone.
    job = 4 * 0.5 + 40 * 0.01 + 160 * 0.001
    assert plans["evaluate"].seconds == pytest.approx(10 + 2 * job + 4 * (job / 2 + 40 * 0.1))
    assert plans["evaluate"].at_most
    assert plans["report"].seconds == pytest.approx(10 + 40 * 0.05)
    assert plans["rollouts"].memory == 5000 + 2 * plans["rollouts"].worker


def test_a_round_trains_on_the_episodes_of_all_rounds() -> None:
    earlier = [Data(episodes=10, steps=1000), Data(episodes=2, steps=80)]
    words = ("preset=smoke", "rnn.baselines=false")
    config = composed(*words, "rnn.newest_rounds=2")
    plans = dict(Estimate(config, rates(), earlier, rounds=True).stages(main=True))
    frames = 8 * 41 + 1010 + 82
    assert plans["vae"].seconds == pytest.approx(10 + frames * 0.75 / 100 + frames * 0.25 / 400)
    # The 320 + 80 transitions of the two newest rounds, and as many of the other one.
    training = 2 * (800 * 0.75 / 2000 + 1400 * 0.25 / 8000)
    assert plans["rnn"].seconds == pytest.approx(10 + frames / 1000 + training)
    # With the encoder of the round before, its latents of the earlier episodes are there.
    kept = composed(*words, "vae.epochs=0")
    plans = dict(Estimate(kept, rates(), earlier, rounds=True).stages(main=True))
    assert plans["vae"].seconds == pytest.approx(10 + frames * 0.25 / 400)
    training = 2 * (1400 * 0.75 / 2000 + 1400 * 0.25 / 8000)
    assert plans["rnn"].seconds == pytest.approx(10 + 8 * 41 / 1000 + training)
    alone = Estimate(kept, rates(), earlier).rnn()
    assert alone.seconds == pytest.approx(10 + frames / 1000 + training)


def test_updates_by_gradients_take_their_steps_at_the_measured_rate() -> None:
    words = ("actor_critic.updates=30", "actor_critic.batch_size=8", "actor_critic.horizon=5")
    config = composed("preset=smoke", *words)
    rate = FitRate(training=100.0, validation=400.0, peak_bytes=6000, gpu_bytes=0)
    plan = Estimate(config, rates(imagination=rate)).controller()
    assert plan.seconds == pytest.approx(10 + 30 * 40 / 100 + 40 / 400)
    assert (plan.process, plan.workers) == (6000, 0)


@pytest.mark.system
def test_a_plan_of_updates_by_gradients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "memory.max").write_text("1000000\n")
    monkeypatch.setattr(diagnosis, "CGROUP", tmp_path)
    config = composed(
        *("stage=plan", "preset=smoke", "controller.world=dream", "workers.processes=0"),
        *("controller.optimizer=actor_critic", "evaluate.engine=native", "rnn.baselines=false"),
    )
    monkeypatch.setattr(plan_stage, "calibrate", partial(calibrate, seconds=0.1))
    plan_stage.run(Context(config, Run(tmp_path / "run")))
    found = read_json(tmp_path / "run/plan.json")
    assert "of memory may be needed, 1 MB can be had here" in capfd.readouterr().out
    (measured,) = found["rates"]
    steps = config.actor_critic.batch_size * config.actor_critic.horizon
    expected = measured["base"]["controller"]["seconds"]
    expected += config.actor_critic.updates * steps / measured["imagination"][0]
    expected += steps / measured["imagination"][1]
    assert found["stages"]["controller"]["wall_s"] == pytest.approx(expected, abs=0.06)


@pytest.mark.system
def test_a_plan_of_a_search_for_novelty_steps_the_learned_model_with_that_reward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = composed(
        *("stage=plan", "preset=smoke", "controller.world=dream", "workers.processes=0"),
        *("controller.objective=distillation", "evaluate.engine=native", "rnn.baselines=false"),
    )
    built: list[NoveltyWorldSpec] = []
    measure, build = worlds.measure, NoveltyWorldSpec.build

    def counted(spec: NoveltyWorldSpec) -> NoveltyWorld:
        built.append(spec)
        return build(spec)

    def alone(*arguments: Any) -> Any:
        built.clear()  # those of the run in miniature
        return measure(*arguments)

    monkeypatch.setattr(NoveltyWorldSpec, "build", counted)
    monkeypatch.setattr(worlds, "measure", alone)
    monkeypatch.setattr(plan_stage, "calibrate", partial(calibrate, seconds=0.1))
    plan_stage.run(Context(config, Run(tmp_path / "run")))
    assert built
    assert all(spec.distillation is not None for spec in built)
    assert read_json(tmp_path / "run/plan.json")["stages"]["controller"]["wall_s"] > 0


def test_what_a_run_in_miniature_did_is_no_part_of_what_every_run_takes() -> None:
    small = composed("preset=smoke")
    work = dict(Estimate(small, rates()).stages(main=True))
    kept = without_work(rates(), small).base
    assert kept["vae"].seconds == pytest.approx(10 - (work["vae"].seconds - 10))
    assert kept["rollouts"].disk == max(0, 300 - 8 * 41 * 7)


def test_random_actions_are_evaluated_in_jobs_of_the_size_that_an_evaluation_has() -> None:
    """Gymnasium steps four environments at most, whatever env.num_envs is."""
    planned = [
        Estimate(composed("preset=smoke", "evaluate.episodes=8", f"env.num_envs={count}"), rates())
        .evaluate()
        .seconds
        for count in (4, 64)
    ]
    assert planned[0] == planned[1]


def _simulate(tool: None, heartbeat: Heartbeat) -> str:
    with spent.spending("simulating"):
        time.sleep(0.01)
    return "done"


@pytest.mark.system
@pytest.mark.parametrize("processes", [0, 1])
def test_what_workers_spend_is_counted_by_the_process_that_started_them(processes: int) -> None:
    before, meter = spent.spent(), Meter()
    with LocalPool(_Nothing(), processes, 120.0) as pool:
        assert pool.map([_simulate, _simulate]) == ["done", "done"]
    passed = {name: total - before.get(name, 0.0) for name, total in spent.spent().items()}
    assert passed["working"] >= passed["simulating"] >= 0.02
    assert meter.read()["spent_s"]["simulating"] == pytest.approx(passed["simulating"], abs=0.001)


@dataclass(frozen=True)
class _Nothing:
    def build(self) -> None:
        return None


def test_a_sampler_adds_readings_up_and_ends_when_reading_fails() -> None:
    readings: Iterator[float | None] = iter([0.5, None, 1.0])
    before = set(threading.enumerate())  # another sampler may be there, that of a GPU
    sampler = Sampler(lambda: next(readings), seconds=0.001)
    wait_for(lambda: sampler.total == (1.5, 2))
    wait_for(lambda: set(threading.enumerate()) <= before)


def test_stages_say_what_they_took(smoke: Path) -> None:
    for stage in STAGES:
        record = read_json(smoke / f"smoke/{stage}/manifest.json")
        used = record["resources"]
        files = [path for path in (smoke / "smoke" / stage).rglob("*") if path.is_file()]
        # The manifest itself is written after it was counted.
        assert 0 < used["disk_bytes"] <= sum(path.stat().st_size for path in files)
        assert used["cpu_share"] == pytest.approx(
            used["cpu_s"] / (record["wall_s"] * used["cores"]), abs=0.002
        )
        assert "cost" not in used
    shares = read_json(smoke / "smoke/controller/manifest.json")["resources"]["spent_s"]
    parts = sum(shares[name] for name in ("simulating", "encoding", "predicting"))
    assert 0 < parts <= shares["working"] + 0.01
    assert "reading" in read_json(smoke / "smoke/vae/manifest.json")["resources"]["spent_s"]


def test_costs_are_those_of_all_processes_of_a_stage(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(2000))
    used = {"cpu_s": 5.0, "peak_bytes": {"process": 10}, "spent_s": {"reading": 1.0}}
    used["gpu_samples"] = [6.0, 10]
    first = costs.added({}, used, 1800.0, tmp_path, price_per_hour=2.0)
    more = used | {"peak_bytes": {"process": 7, "worker": 3}}
    both = costs.added(first, more, 1800.0, tmp_path, price_per_hour=4.0)
    found = both["resources"]
    assert both["wall_s"] == 3600
    assert found["cost"] == pytest.approx(1.0 + 2.0)
    assert found["peak_bytes"] == {"process": 10, "worker": 3}
    assert (found["spent_s"], found["gpu_share"]) == ({"reading": 2.0}, 0.6)
    words = costs.in_words(both | {"throughput": {"images/s": 1234.0}})
    assert "took 60.0 min, 1,234 images/s" in words
    assert "GPU 60%" in words
    assert "cost 3" in words


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    line = error_line(run(tmp_path, "stage=plan", "preset=smoke", "price_per_hour=-1"))
    assert "price_per_hour=-1" in line
    if not torch.cuda.is_available():
        line = error_line(run(tmp_path, "stage=plan", "preset=smoke", "device=cuda"))
        assert "device=cuda" in line
    assert not list(tmp_path.iterdir())


@pytest.mark.system
def test_a_plan_is_what_its_rates_say(tmp_path: Path) -> None:
    words = ("preset=smoke", "workers.processes=1", "price_per_hour=36")
    done = run(tmp_path, "stage=plan", *words)
    assert done.returncode == 0, done.stderr
    plan = read_json(tmp_path / "smoke/plan.json")
    assert tuple(plan["stages"]) == ("start", *STAGES)
    for stage in plan["stages"].values():
        assert stage["cost"] == pytest.approx(stage["wall_s"] / 100, abs=0.002)
    measured, config = plan["rates"][0], composed(*words)
    for key in ("vae", "rnn"):
        assert min(measured[key][:2]) > 0
    frames, rate = 8 * 41, measured["vae"]
    expected = measured["base"]["vae"]["seconds"]
    expected += frames * 0.75 / rate[0] + frames * 0.25 / rate[1]
    assert config.vae.epochs == 1
    assert plan["stages"]["vae"]["wall_s"] == pytest.approx(expected, abs=0.06)
    for stage in STAGES:
        assert stage in done.stdout
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["plan.json", "smoke"]


@pytest.mark.system
def test_a_plan_of_a_search_in_the_learned_model_and_of_its_bootstrap_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = composed(
        *("stage=plan", "preset=smoke", "price_per_hour=36", "controller.world=dream"),
        *("rollouts.policy=controller", "+bootstrap.rollouts={episodes:4,policy:brownian}"),
        *("workers.processes=0", "evaluate.engine=native", "rnn.baselines=false"),
    )
    monkeypatch.setattr(plan_stage, "calibrate", partial(calibrate, seconds=0.1))
    plan_stage.run(Context(config, Run(tmp_path / "run")))
    found = read_json(tmp_path / "run/plan.json")
    (measured,) = found["rates"]  # of both runs, which differ in amounts only
    worlds = {"random", "controller", "dream", "evaluate", "evaluate random"}
    assert measured["worlds"].keys() == worlds
    assert measured["open_loop_step"] > 0
    before = [f"bootstrap/{stage}" for stage in STAGES[:4]]
    assert [*found["stages"]] == ["start", *before, *STAGES]
    for stage in found["stages"].values():
        assert stage["cost"] > 0
        assert stage["cost"] == pytest.approx(stage["wall_s"] / 100, abs=0.002)
    first, main = (found["stages"][f"{run}rollouts"] for run in ("bootstrap/", ""))
    assert first["disk_bytes"] < main["disk_bytes"]
    assert (first["at_most"], main["at_most"]) == (False, True)


@pytest.mark.system
def test_a_plan_of_rounds_adds_them_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = "{round: 2, vae: {epochs: 0}, controller: {generations: 1}}"
    config = composed(
        *("stage=plan", "preset=smoke", "iterate.rounds=3", f"iterate.schedule=[{schedule}]"),
        *("workers.processes=0", "evaluate.engine=native", "+bootstrap.rollouts={episodes:4}"),
        "iterate.patience=1",
    )
    monkeypatch.setattr(plan_stage, "calibrate", partial(calibrate, seconds=0.1))
    plan_stage.run(Context(config, Run(tmp_path / "run")))
    found = read_json(tmp_path / "run/plan.json")
    (measured,) = found["rates"]  # of all rounds, which differ in amounts only
    assert [*found["stages"]] == ["start", *(f"{stage}, 3 rounds" for stage in STAGES)]
    collected, trained = (found["stages"][f"{name}, 3 rounds"] for name in ("rollouts", "vae"))
    # 4 episodes of the bootstrap run's settings, then 8 and 8, of 40 steps each.
    expected = 3 * measured["base"]["rollouts"]["disk"] + 20 * 41 * measured["frame_bytes"]
    assert collected["disk_bytes"] == pytest.approx(expected, abs=3)
    training, validation = measured["vae"][:2]
    first = 4 * 41 * 0.75 / training
    expected = first + (4 + 12 + 20) * 41 * 0.25 / validation
    expected += 3 * measured["base"]["vae"]["seconds"]
    assert trained["wall_s"] == pytest.approx(expected, abs=0.06)
    assert all(found["stages"][f"{stage}, 3 rounds"]["at_most"] for stage in STAGES)
    assert "iterate.patience=1" in collected["assumes"][-1]
