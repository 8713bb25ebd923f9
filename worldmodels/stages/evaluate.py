"""Stage ``evaluate``: scores on the evaluation seeds, by default in Gymnasium's own environment.

If the controller was trained in the dream, its score there is computed too: the difference shows
whether the controller exploits errors of the dynamics model.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from worldmodels import seeds
from worldmodels.agents.folder import Agent, read_agent
from worldmodels.agents.starts_file import STARTS
from worldmodels.config.choices import MemberSampling, StartChoice, WorldKind
from worldmodels.data.shards import write_shard
from worldmodels.evolution.fitness import EpisodeSpec, EvalBatch, eval_batches, evaluation_num_envs
from worldmodels.files.atomic import JsonLines, write_json
from worldmodels.reporting.scores import (
    AGENT_IN_DREAM,
    PAPER_SCORES,
    Score,
    exploitation_warning,
    filmed,
    score_table,
    summarise,
)
from worldmodels.reporting.video import EpisodeVideo
from worldmodels.runs.integrity import fingerprint_arrays, require_made_by
from worldmodels.runs.stage_folder import StageFolder
from worldmodels.runs.tracking import Progress, console, say
from worldmodels.stages.context import Context
from worldmodels.system.spent import WORKING, spending
from worldmodels.workers.jobs import WRITTEN, Heartbeat
from worldmodels.worlds.collect import EpisodeRecorder, RandomActions, RandomEpisodes
from worldmodels.worlds.members import SamplingRule
from worldmodels.worlds.real import RealWorld
from worldmodels.worlds.rollout import Outcome
from worldmodels.worlds.specs import RealWorldSpec, WorldSpec

RECORDED = 16
"""Episodes of the agent that are recorded, for the open-loop predictions of the report."""


def run(context: Context) -> None:
    """Score the agent and a random policy on the evaluation seeds; record the median and the worst
    episodes."""
    config = context.config.evaluate
    agent_folder, inputs = context.inputs.agent()
    agent = read_agent(agent_folder)
    spec = context.runtime.env_spec(config.engine)
    content = context.runtime.env_content(spec)
    dream = _dream_settings(context)
    with context.begin("evaluate", inputs, (), **content, evaluate=config) as folder:
        if not folder.complete:
            _evaluate(context, folder, agent_folder, agent, dream)


def _dream_settings(context: Context) -> _DreamSettings | None:
    """The settings of the learned model in which the run's own controller was trained, if any."""
    if context.inputs.model is not None or not context.run.has("controller"):
        return None
    manifest = context.run.manifest("controller")
    if manifest["summary"]["world"] != WorldKind.dream.name:
        return None
    config = manifest["config"]
    # An older version had one member, and neither key.
    each_step = config.get("controller.member_sampling") != MemberSampling.episode.name
    # With value functions the episodes of the search are parts of those that are scored here.
    parts = config.get("controller.value_horizon") is not None
    return _DreamSettings(
        config["controller.temperature"],
        context.config.env.max_steps if parts else config["controller.max_steps"],
        SamplingRule(
            each_step,
            config.get("controller.pessimism", 0.0),
            config.get("controller.sampled_termination", False),
            config.get("controller.observer", False),
        ),
        config.get("controller.starts") == StartChoice.recorded.name,
    )


def _evaluate(
    context: Context,
    folder: StageFolder,
    agent_folder: Path,
    agent: Agent,
    dream: _DreamSettings | None,
) -> None:
    config = context.config.evaluate
    spec = context.runtime.env_spec(config.engine)
    num_envs = evaluation_num_envs(spec.engine, context.config.env.num_envs)
    episode_seeds = seeds.evaluation(config.first_seed, config.episodes)
    world_spec = context.runtime.real(
        config.engine,
        agent_folder / "vae.safetensors",
        agent_folder / "rnn.safetensors",
        agent.config.features,
    )
    episode_spec = EpisodeSpec(num_envs, spec.max_steps, agent.config.controller)
    work = eval_batches(agent.parameters[None], episode_seeds, episode_spec)
    made_by = folder.record["made_by"]
    attrs: dict[str, str | int | float] = {"env": spec.id, "engine": spec.engine, "policy": "agent"}
    attrs["made_by"] = made_by
    kept = -(-RECORDED // len(work[0].seeds)) if config.video else 0
    jobs = [
        RecordedBatch(batch, folder.path / "episodes" / f"shard-{number:05d}.h5", attrs)
        if number < kept
        else batch
        for number, batch in enumerate(work)
    ]
    log = JsonLines(folder.path / "agent.jsonl")
    played = _play(context, "agent", log, made_by, world_spec, jobs)
    random_policy = RandomActions("uniform", context.runtime.controls)
    parts = [tuple(episode_seeds[i : i + num_envs]) for i in range(0, len(episode_seeds), num_envs)]
    random_jobs = [RandomEpisodes(part, spec.max_steps, random_policy) for part in parts]
    without_models = context.runtime.real(config.engine)
    log = JsonLines(folder.path / "random.jsonl")
    random = _play(context, "random policy", log, made_by, without_models, random_jobs)
    scores = [
        summarise("agent", played.outcome.returns, episode_seeds),
        summarise("random policy", random.outcome.returns, episode_seeds),
    ]
    if dream is not None:
        scores.append(_score_in_dream(context, folder, agent_folder, agent, dream, episode_seeds))
    write_json(folder.path / "scores.json", {score.name: score.record() for score in scores})
    console.print(score_table(scores, PAPER_SCORES.get(spec.id, [])))
    if (warning := exploitation_warning(scores)) is not None:
        say(warning)
    if config.video:
        for name, episode in filmed(played.outcome.returns.tolist()).items():
            _record_video(folder.path / f"{name}.mp4", agent, world_spec, work, episode)
    rate = (played.steps + random.steps) / (played.seconds + random.seconds)
    folder.finish(
        fingerprint_arrays({"agent": played.outcome.returns, "random": random.outcome.returns}),
        {"steps/s": rate},
        {score.name: score.mean for score in scores},
        [f"episodes/{job.path.name}" for job in jobs if isinstance(job, RecordedBatch)],
    )


def _score_in_dream(
    context: Context,
    folder: StageFolder,
    agent_folder: Path,
    agent: Agent,
    dream: _DreamSettings,
    episode_seeds: Sequence[int],
) -> Score:
    """The agent's score in the learned model, one episode per seed, all in one batch."""
    rnn, config = agent_folder / "rnn.safetensors", agent.config
    starts = agent_folder / STARTS if dream.recorded_starts else None
    world_spec = context.runtime.dream(rnn, config.features, dream.temperature, dream.rule, starts)
    episode_spec = EpisodeSpec(len(episode_seeds), dream.max_steps, config.controller)
    work = eval_batches(agent.parameters[None], episode_seeds, episode_spec)
    log = JsonLines(folder.path / "dreams.jsonl")
    played = _play(context, AGENT_IN_DREAM, log, folder.record["made_by"], world_spec, work)
    return summarise(AGENT_IN_DREAM, played.outcome.returns, episode_seeds)


@dataclass(frozen=True)
class _DreamSettings:
    temperature: float
    max_steps: int
    rule: SamplingRule
    recorded_starts: bool


@dataclass(frozen=True)
class RecordedBatch:
    """A job for a worker that also writes its first `RECORDED` episodes as a shard."""

    batch: EvalBatch
    path: Path = field(metadata=WRITTEN)
    attrs: dict[str, str | int | float]

    @property
    def seeds(self) -> tuple[int, ...]:
        """Those of the batch."""
        return self.batch.seeds

    def __call__(self, tool: RealWorld, heartbeat: Heartbeat) -> Outcome:
        """Play the batch and write the shard."""
        recorder = EpisodeRecorder(RECORDED)
        outcome = self.batch.play(tool, heartbeat, recorder)
        kept = enumerate(self.batch.seeds[:RECORDED])
        episodes = [recorder.episode(index, seed) for index, seed in kept]
        write_shard(self.path, episodes, self.attrs)
        return outcome


@dataclass(frozen=True)
class _Played:
    outcome: Outcome
    steps: int
    seconds: float


def _play(
    context: Context,
    policy: str,
    log: JsonLines,
    made_by: str,
    world_spec: WorldSpec,
    work: Sequence[EvalBatch | RecordedBatch | RandomEpisodes],
) -> _Played:
    """Run the jobs `work` and join their outcomes in the order of the seeds.

    The outcome of each finished job is appended to `log`; jobs that are in it are not run again.

    Raises:
        ArtifactError: the log is damaged, or has another `made_by`.
    """
    records = {record["batch"]: record for record in log.read()}
    require_made_by(log.path, (record.get("made_by") for record in records.values()), made_by)
    missing = [number for number in range(len(work)) if number not in records]
    episodes = sum(len(job.seeds) for job in work)
    done = sum(len(record["returns"]) for record in records.values())
    began = time.monotonic()
    with (
        Progress(f"evaluating: {policy}", episodes, "episodes", done) as progress,
        context.runtime.pool(world_spec, jobs=len(missing)) as pool,
    ):
        for at, outcome in pool.run([work[number] for number in missing]):
            now = time.monotonic()
            seconds = round(now - began, 3)
            record = {"batch": missing[at], "seconds": seconds, "made_by": made_by}
            found = outcome._asdict().items()
            record |= {name: value.tolist() for name, value in found if value is not None}
            log.append(record)
            records[missing[at]], began = record, now
            progress.advance(len(outcome.returns))
    outcome = Outcome(
        *(
            np.concatenate([records[number][name] for number in range(len(work))])
            for name in Outcome._fields
            if name in records[0]
        )
    )
    total = sum(record["seconds"] for record in records.values())
    return _Played(outcome, int(outcome.lengths.sum()), total)


def _record_video(
    path: Path, agent: Agent, world_spec: RealWorldSpec, work: list[EvalBatch], episode: int
) -> None:
    """Run the job of an episode again and write that episode as a video."""
    first = len(work[0].seeds)
    batch, index = work[episode // first], episode % first
    world = world_spec.build()
    with Progress(f"recording {path.name}", batch.spec.max_steps, "steps") as progress:
        dynamics = agent.dynamics if agent.config.features.state else None
        video = EpisodeVideo(index, agent.encoder, dynamics)
        heartbeat: Heartbeat = lambda steps: progress.advance()  # noqa: E731
        try:
            with spending(WORKING):
                batch.play(world, heartbeat, video)
        finally:
            world.close()
        video.write(path)
