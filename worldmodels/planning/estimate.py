"""What each stage of a run will take, from the rates that a calibration measured.

Where the length of an episode is not known beforehand it is assumed (`StagePlan.assumes`).
Shapes are in the letters of docs/shapes.md: P candidates, E episodes per candidate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from worldmodels.config.choices import ActionSource, Objective, WorldKind
from worldmodels.config.keys import episode_steps
from worldmodels.config.schema import Config
from worldmodels.evolution.evolve import GROWTH
from worldmodels.evolution.fitness import evaluation_num_envs
from worldmodels.planning.schedule import Job, WorldCost, search_size, training_length
from worldmodels.planning.timing import FitRate, StepCost
from worldmodels.reporting.scores import video_episodes

_LOG_ROW_BYTES = 60
"""Of a metric in ``metrics.csv``; a training step that is logged has about five."""
_NUMBER_BYTES = 20
"""Of a number in the logs of a search."""


@dataclass(frozen=True)
class Base:
    """What a stage takes whatever the amount of its work, and its memory.

    Args:
        seconds: to start workers, load models, write pictures.
        process: peak memory of the process in bytes.
        worker: of a worker; 0 where there is none.
        disk: bytes of its files.
        gpu: of the GPU; 0 where there is none.
    """

    seconds: float
    process: int
    worker: int
    disk: int
    gpu: int = 0


@dataclass(frozen=True)
class Rates:
    """What a calibration measured, for one configuration.

    Args:
        base: of each stage.
        worlds: costs by name: "random" and "controller" in the environment of training,
            "evaluate" and "evaluate random" in that of the evaluation, "dream"; those that the
            configuration needs.
        record: seconds to record and write one frame.
        record_bytes: memory that a worker needs for each frame of a shard.
        frame_bytes: on disk.
        random_length: mean steps of an episode of random actions.
        vae: of images.
        encode: frames per second.
        rnn: of transitions.
        search: seconds of the search itself in a generation.
        imagination: of steps in the learned model, where gradients there train the controller.
        parameters: numbers of a candidate, and of a controller.
        latent_bytes: on disk, of an encoded frame.
        num_envs: least and largest number of environments in a job of the search.
        video_frame: seconds to draw and encode a frame of the video.
        open_loop_step: seconds of a step of the report's predictions.
        evaluation_engine: the simulator of the evaluation.
        recorded: episodes that an evaluation records for the report.
    """

    base: dict[str, Base]
    worlds: dict[str, WorldCost]
    record: float
    record_bytes: float
    frame_bytes: float
    random_length: float
    vae: FitRate
    encode: float
    rnn: FitRate
    search: float
    imagination: FitRate | None
    parameters: tuple[int, int]
    latent_bytes: int
    num_envs: tuple[int, int]
    video_frame: float
    open_loop_step: float
    evaluation_engine: str
    recorded: int


@dataclass(frozen=True)
class StagePlan:
    """The estimate of a stage.

    Args:
        seconds: wall time.
        process: peak memory of the process, in bytes.
        disk: bytes of its files.
        worker: peak memory of each worker.
        workers: how many.
        gpu: peak memory of the GPU.
        at_most: the time is an upper bound, because episodes may end before their time limit.
        assumes: what was assumed.
    """

    seconds: float
    process: int
    disk: int
    worker: int = 0
    workers: int = 0
    gpu: int = 0
    at_most: bool = False
    assumes: list[str] = field(default_factory=list)

    @property
    def memory(self) -> int:
        """Of the process and all workers together; pages that they share are counted repeatedly."""
        return self.process + self.workers * self.worker


def together(plans: Sequence[StagePlan], *assumes: str, at_most: bool = False) -> StagePlan:
    """Stages that run one after another, as one; the peak of memory is that of the largest.

    Args:
        plans: at least one.
        assumes: what else was assumed.
        at_most: the time is an upper bound also where none of the stages' is.
    """
    return replace(
        max(plans, key=lambda plan: plan.memory),
        seconds=sum(plan.seconds for plan in plans),
        disk=sum(plan.disk for plan in plans),
        at_most=at_most or any(plan.at_most for plan in plans),
        assumes=[*dict.fromkeys(note for plan in plans for note in plan.assumes), *assumes],
    )


@dataclass(frozen=True)
class Data:
    """Episodes that are trained on."""

    episodes: float = 0.0
    steps: float = 0.0

    @property
    def frames(self) -> float:
        """One more than steps in each episode."""
        return self.steps + self.episodes

    def __add__(self, other: Data) -> Data:
        return Data(self.episodes + other.episodes, self.steps + other.steps)


class Estimate:
    """The stages of one run, or of a round.

    Args:
        config: of the run.
        rates: measured with it.
        earlier: the episodes of its bootstrap run, or those of each round before it.
        rounds: they are of rounds, whose latents are used again where the encoder stays.
    """

    def __init__(
        self, config: Config, rates: Rates, earlier: Sequence[Data] = (), rounds: bool = False
    ) -> None:
        self.config, self.rates = config, rates
        self.controlled = config.rollouts.policy is ActionSource.controller
        self.bounded = self.controlled and config.rollouts.stall_steps is None
        self.branches = (config.rollouts.branches or 0) if self.controlled else 0
        self.collected, self._length_note = self._collected()
        self.data = sum(earlier, self.collected)
        newest = [*earlier, self.collected][-(config.rnn.newest_rounds or 0) :]
        # About as many transitions of the other episodes are drawn beside the newest ones.
        self._trained = min(self.data.steps, 2 * sum(data.steps for data in newest))
        kept = rounds and earlier and not config.vae.epochs
        self._encoded = self.collected if kept else self.data

    def stages(self, main: bool) -> Iterator[tuple[str, StagePlan]]:
        """Name and estimate of each stage; those of evaluation and report for a main run only."""
        for stage in (self.rollouts, self.vae, self.rnn, self.controller):
            yield stage.__name__, stage()
        if main:
            for stage in (self.evaluate, self.report):
                yield stage.__name__, stage()

    def _collected(self) -> tuple[Data, str]:
        config, length = self.config.rollouts, training_length(self.config.rollouts)
        if not self.controlled:
            length = min(self.rates.random_length, length)
        episodes = config.episodes
        if config.frames is not None:
            shard = min(self.config.env.num_envs, episodes) * (1 + self.branches)
            shards = math.ceil(config.frames / (shard * (length + 1)))
            episodes = min(episodes, shards * self.config.env.num_envs)
        count = episodes * (1 + self.branches)
        if self.controlled:
            bound = " (upper bound)" if self.bounded else ""
            fails = ", and each has branches" if self.branches else ""
            note = f"the controller's episodes last {length:,.0f} steps{bound}{fails}"
            return Data(count, count * length), note
        note = f"an episode of random actions lasts {length:,.0f} steps"
        return Data(count, count * length), note

    def rollouts(self) -> StagePlan:
        """Data collection."""
        config, rates = self.config.rollouts, self.rates
        world = rates.worlds["controller" if self.controlled else "random"]
        size, length = self.config.env.num_envs, self.collected.steps / self.collected.episodes
        episodes = round(self.collected.episodes / (1 + self.branches))
        shards = [min(size, episodes - at) for at in range(0, episodes, size)]
        longest = config.max_steps if length < config.max_steps else length
        # Recording is part of a worker's job: more time for each environment and step.
        busy, alone = (
            StepCost(cost.reset, cost.step, cost.each + rates.record)
            for cost in (world.busy, world.alone)
        )
        recording = WorldCost(busy, alone, world.workers, 0)
        # The episodes; with branches, the same again as far as these begin, and the branches.
        parts = (1, 1, self.branches) if self.branches else (1,)
        jobs = [Job(n * count, longest, n * count * length) for count in shards for n in parts]
        base = rates.base["rollouts"]
        held = min(size, config.episodes) * (1 + self.branches)
        shard = held * (length + 1) * rates.record_bytes
        return StagePlan(
            seconds=base.seconds + recording.seconds(jobs),
            process=base.process,
            disk=int(base.disk + self.collected.frames * rates.frame_bytes),
            worker=int(max(base.worker, world.peak_bytes) + shard),
            workers=min(world.workers, len(shards)),
            gpu=base.gpu,
            at_most=self.bounded,
            assumes=[self._length_note],
        )

    def vae(self) -> StagePlan:
        """Training of the encoder."""
        config, rate, base = self.config.vae, self.rates.vae, self.rates.base["vae"]
        held_out = self.data.frames * config.validation_fraction
        seconds = _fit_seconds(self.data.frames - held_out, held_out, config.epochs, rate)
        logs = self._log_bytes(self.data.frames / config.batch_size * config.epochs)
        return StagePlan(
            seconds=base.seconds + seconds,
            process=max(base.process, rate.peak_bytes),
            disk=int(base.disk + logs),
            gpu=max(base.gpu, rate.gpu_bytes),
            at_most=self.bounded,
        )

    def rnn(self) -> StagePlan:
        """Encoding, and training of the dynamics model and its baseline."""
        config, rate, base = self.config.rnn, self.rates.rnn, self.rates.base["rnn"]
        baseline = config.baselines and config.model == "mdn_rnn"
        models = config.members + baseline
        assumes, fraction = [], config.validation_fraction
        training, held_out = self._trained * (1 - fraction), self.data.steps * fraction
        seconds = _fit_seconds(training, held_out, config.epochs, rate) * models
        if baseline:
            assumes = ["the single-Gaussian baseline trains as fast as the model"]
        length = config.sequence_length or self.data.steps / self.data.episodes  # 0: an episode
        updates = training / (config.batch_size * length)
        disk = base.disk + self.data.frames * self.rates.latent_bytes
        disk += models * self._log_bytes(updates * config.epochs)
        return StagePlan(
            seconds=base.seconds + self._encoded.frames / self.rates.encode + seconds,
            process=max(base.process, rate.peak_bytes),
            disk=int(disk),
            gpu=max(base.gpu, rate.gpu_bytes),
            at_most=self.bounded,
            assumes=assumes,
        )

    def _log_bytes(self, updates: float) -> float:
        return 5 * _LOG_ROW_BYTES * updates / self.config.trainer.log_every

    def controller(self) -> StagePlan:
        """The search: its generations, and the evaluations on selection seeds between them; or the
        updates by gradients."""
        config, rates, base = self.config.controller, self.rates, self.rates.base["controller"]
        if rates.imagination is not None:
            return self._updates(rates.imagination)
        dream = config.world is WorldKind.dream
        world = rates.worlds["dream" if dream else "controller"]
        seconds, generations, selections = search_size(config, rates.num_envs, world.seconds)
        stalls = config.stall_steps is not None
        length = training_length(config)
        bound = "" if stalls else " (upper bound)"
        assumes = [f"a training episode lasts {length:,.0f} steps{bound}"]
        if config.first_episodes is not None:
            assumes.append(
                f"episodes of a candidate grow by {GROWTH - 1:.0%} a generation, the most that is"
                f" possible: {generations} generations"
            )
        searched, written = rates.parameters
        covariance = 0 if config.diagonal else 4 * 8 * searched**2
        logs = generations * config.population * _NUMBER_BYTES
        logs += selections * written * _NUMBER_BYTES
        return StagePlan(
            seconds=base.seconds + seconds + generations * rates.search,
            process=base.process + covariance,
            disk=int(base.disk + logs),
            worker=max(base.worker, world.peak_bytes),
            workers=world.workers,
            gpu=base.gpu,
            at_most=not stalls and config.total_steps is None,
            assumes=assumes,
        )

    def _updates(self, rate: FitRate) -> StagePlan:
        """Training of the controller by gradients in the learned model."""
        config, base = self.config.actor_critic, self.rates.base["controller"]
        steps = config.batch_size * config.horizon
        seconds = config.updates * steps / rate.training + steps / rate.validation
        return StagePlan(
            seconds=base.seconds + seconds,
            process=max(base.process, rate.peak_bytes),
            disk=int(base.disk + self._log_bytes(config.updates)),
            gpu=max(base.gpu, rate.gpu_bytes),
        )

    def evaluate(self) -> StagePlan:
        """Evaluation of the agent and of random actions, and the videos."""
        config, env, rates = self.config.evaluate, self.config.env, self.rates
        base, steps = rates.base["evaluate"], episode_steps(env.max_steps, env.frame_skip)
        engine = rates.worlds["evaluate"]
        ended = rates.random_length < self.config.rollouts.max_steps
        length = min(rates.random_length, steps) if ended else steps
        size = evaluation_num_envs(rates.evaluation_engine, env.num_envs)
        batches = [min(size, config.episodes - at) for at in range(0, config.episodes, size)]
        seconds = base.seconds + engine.seconds([Job(n, steps, n * steps) for n in batches])
        jobs = [Job(n, length, n * length) for n in batches]
        seconds += rates.worlds["evaluate random"].seconds(jobs)
        recorded = 0.0
        if config.video:
            videos = len(video_episodes(range(config.episodes)))
            seconds += videos * engine.alone.job(batches[0], steps, batches[0] * steps)
            seconds += videos * rates.video_frame * steps
            recorded = min(rates.recorded, config.episodes) * (steps + 1)
        if "dream" in rates.worlds and self.config.controller.objective is Objective.reward:
            count, limit = config.episodes, self.config.controller.max_steps
            seconds += rates.worlds["dream"].alone.job(count, limit, count * limit)
        per_worker = (
            min(rates.recorded, batches[0]) * (steps + 1) * rates.record_bytes * bool(recorded)
        )
        return StagePlan(
            seconds=seconds,
            process=base.process,
            disk=int(base.disk + recorded * rates.frame_bytes),
            worker=int(max(base.worker, engine.peak_bytes) + per_worker),
            workers=min(engine.workers, len(batches)),
            gpu=base.gpu,
            at_most=True,
            assumes=[f"the agent's episodes last {steps:,} steps (upper bound)"],
        )

    def report(self) -> StagePlan:
        """The report."""
        base = self.rates.base["report"]
        env = self.config.env
        steps = episode_steps(env.max_steps, env.frame_skip) * bool(self.config.evaluate.video)
        seconds = base.seconds + steps * self.rates.open_loop_step
        return StagePlan(seconds, base.process, base.disk, gpu=base.gpu)


def without_work(rates: Rates, small: Config) -> Rates:
    """`rates` with what a stage takes whatever its work, instead of what the run `small` took.

    Args:
        rates: whose `Rates.base` is of that run.
        small: the configuration of that run.
    """
    nothing = {name: replace(base, seconds=0.0, disk=0) for name, base in rates.base.items()}
    work = dict(Estimate(small, replace(rates, base=nothing)).stages(main=True))
    base = {
        name: replace(
            base,
            seconds=max(0.0, base.seconds - work[name].seconds),
            disk=max(0, base.disk - work[name].disk),
        )
        for name, base in rates.base.items()
    }
    return replace(rates, base=base)


def _fit_seconds(training: float, validation: float, epochs: int, rate: FitRate) -> float:
    """Seconds of so many epochs, each followed by a validation.

    Args:
        training: items of an epoch.
        validation: items that are held out.
        epochs: none: one validation.
        rate: of both.
    """
    once = validation / rate.validation
    return epochs * (training / rate.training + once) if epochs else once
