"""Stage ``evaluate``: scores on the evaluation seeds, by default in Gymnasium's own environment.

If the controller was trained in the dream, its score there is computed too, and in both the returns
over the first steps of the episodes: the differences show whether the controller exploits errors
of the dynamics model.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from worldmodels import seeds
from worldmodels.data.shards import write_shard
from worldmodels.envs.engines import EnvSpec
from worldmodels.evolution.fitness import evaluation_num_envs
from worldmodels.files.atomic import JsonLines, write_json
from worldmodels.reporting.closed_loop import compare, in_words, write_horizons
from worldmodels.reporting.scores import (
    AGENT_IN_DREAM,
    PAPER_SCORES,
    RANDOM,
    Score,
    exploitation_warning,
    score_table,
    summarise,
    video_episodes,
)
from worldmodels.reporting.video import EpisodeVideo
from worldmodels.runs.integrity import fingerprint_arrays, require_made_by
from worldmodels.runs.stage_folder import StageFolder
from worldmodels.runs.tracking import Progress, console, say
from worldmodels.stages.context import Context
from worldmodels.stages.players import Dream, Job, Player, player_of
from worldmodels.system.spent import WORKING, spending
from worldmodels.workers.jobs import WRITTEN, Heartbeat
from worldmodels.worlds.collect import EpisodeRecorder, PolicyEpisodes, RandomActions
from worldmodels.worlds.real import RealWorld
from worldmodels.worlds.rollout import Outcome
from worldmodels.worlds.specs import WorldSpec

RECORDED = 16
"""Episodes of the agent that are recorded, for the open-loop predictions of the report."""


def run(context: Context) -> None:
    """Score the agent, or the baseline, and a random policy on the evaluation seeds; record the
    median and the worst episodes."""
    config = context.config.evaluate
    player, inputs = player_of(context)
    spec = context.runtime.env_spec(config.engine)
    content = context.runtime.env_content(spec)
    with context.begin("evaluate", inputs, (), **content, evaluate=config) as folder:
        if not folder.complete:
            _evaluate(context, folder, player)


def _evaluate(context: Context, folder: StageFolder, player: Player) -> None:
    config = context.config.evaluate
    spec = context.runtime.env_spec(config.engine)
    num_envs = evaluation_num_envs(spec.engine, context.config.env.num_envs)
    episode_seeds = seeds.evaluation(config.first_seed, config.episodes)
    work = player.jobs(episode_seeds, num_envs, spec.max_steps)
    made_by, shards = folder.record["made_by"], folder.path / "episodes"
    attrs: dict[str, str | int | float] = {"env": spec.id, "engine": spec.engine, "policy": "agent"}
    attrs["made_by"] = made_by
    left, jobs = RECORDED if config.video else 0, list[Job | RecordedBatch]()
    for number, batch in enumerate(work):
        count, path = min(left, len(batch.seeds)), shards / f"shard-{number:05d}.h5"
        jobs.append(RecordedBatch(batch, path, attrs, count) if count else batch)
        left -= count
    log = JsonLines(folder.path / "agent.jsonl")
    played = _play(context, "agent", log, made_by, player.real, jobs)
    random_policy = RandomActions("uniform", context.runtime.actions.bounds)
    parts = [tuple(episode_seeds[i : i + num_envs]) for i in range(0, len(episode_seeds), num_envs)]
    random_jobs = [PolicyEpisodes(part, spec.max_steps, random_policy) for part in parts]
    without_models = context.runtime.real(config.engine)
    log = JsonLines(folder.path / "random.jsonl")
    random = _play(context, RANDOM, log, made_by, without_models, random_jobs)
    scores = [
        summarise("agent", played.outcome.returns, episode_seeds),
        summarise(RANDOM, random.outcome.returns, episode_seeds),
    ]
    if player.dream is not None:
        scores.append(_score_in_dream(context, folder, player, player.dream, played.outcome))
    write_json(folder.path / "scores.json", {score.name: score.record() for score in scores})
    console.print(score_table(scores, PAPER_SCORES.get(spec.id, [])))
    if (warning := exploitation_warning(scores)) is not None:
        say(warning)
    if config.video:
        for name, episode in video_episodes(played.outcome.returns.tolist()).items():
            path = folder.path / f"{name}.mp4"
            _record_video(path, player, work, episode, spec)
    rate = (played.steps + random.steps) / (played.seconds + random.seconds)
    folder.finish(
        fingerprint_arrays({"agent": played.outcome.returns, "random": random.outcome.returns}),
        {"steps/s": rate},
        {score.name: score.mean for score in scores},
        [f"{shards.name}/{job.path.name}" for job in jobs if isinstance(job, RecordedBatch)],
    )


def _score_in_dream(
    context: Context,
    folder: StageFolder,
    player: Player,
    dream: Dream,
    earned: Outcome,
) -> Score:
    """The score in the learned model, one episode per seed, all in one batch; and a comparison with
    what was `earned` in the environment."""
    config = context.config.evaluate
    episode_seeds = seeds.evaluation(config.first_seed, config.episodes)
    work = player.jobs(episode_seeds, len(episode_seeds), dream.max_steps)
    log = JsonLines(folder.path / "dreams.jsonl")
    played = _play(context, AGENT_IN_DREAM, log, folder.record["made_by"], dream.world, work)
    if earned.partial is not None:
        horizons = compare(earned, played.outcome)
        write_horizons(folder.path, horizons)
        if horizons:
            say(f"evaluate: {in_words(horizons)}")
    return summarise(AGENT_IN_DREAM, played.outcome.returns, episode_seeds)


@dataclass(frozen=True)
class RecordedBatch:
    """A job for a worker that also writes its first episodes as a shard, `count` of them."""

    batch: Job
    path: Path = field(metadata=WRITTEN)
    attrs: dict[str, str | int | float]
    count: int

    @property
    def seeds(self) -> tuple[int, ...]:
        """Those of the batch."""
        return self.batch.seeds

    def __call__(self, tool: RealWorld, heartbeat: Heartbeat) -> Outcome:
        """Play the batch and write the shard."""
        recorder = EpisodeRecorder(self.count)
        outcome = self.batch.play(tool, heartbeat, recorder)
        kept = enumerate(self.batch.seeds[: self.count])
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
    work: Sequence[Job | RecordedBatch],
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
        **{
            name: np.concatenate([records[number][name] for number in range(len(work))])
            for name in Outcome._fields
            if name in records[0]
        }
    )
    total = sum(record["seconds"] for record in records.values())
    return _Played(outcome, int(outcome.lengths.sum()), total)


def _record_video(
    path: Path, player: Player, work: Sequence[Job], episode: int, spec: EnvSpec
) -> None:
    """Run the job of an episode again and write that episode as a video."""
    first = len(work[0].seeds)
    batch, index = work[episode // first], episode % first
    world = player.real.build()
    with Progress(f"recording {path.name}", spec.max_steps, "steps") as progress:
        shown = player.shown
        video = EpisodeVideo(index, shown.encoder, shown.dynamics, spec.frame_skip)
        heartbeat: Heartbeat = lambda steps: progress.advance()  # noqa: E731
        try:
            with spending(WORKING):
                batch.play(world, heartbeat, video)
        finally:
            world.close()
        video.write(path)
