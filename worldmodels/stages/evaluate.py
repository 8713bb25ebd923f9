"""Stage ``evaluate``: the score in Gymnasium's own environment, on seeds that anyone can repeat.

Of an agent that was trained in a dream also the score in that dream, for how far they are apart.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from worldmodels import seeds
from worldmodels.agent import Agent, load_agent
from worldmodels.artifacts import StageFolder, fingerprint_arrays
from worldmodels.config import Engine, WorldKind
from worldmodels.data.shards import write_shard
from worldmodels.evolution.fitness import Packet, packets
from worldmodels.files import JsonLines, write_json
from worldmodels.integrity import require_made_by
from worldmodels.reporting.scores import (
    IN_ITS_DREAM,
    PAPER_ROWS,
    exploited,
    score_table,
    summarise,
)
from worldmodels.reporting.video import EpisodeFilm
from worldmodels.stages.context import Context
from worldmodels.tracking import Progress, console, say
from worldmodels.workers import Heartbeat
from worldmodels.worlds.collect import DriveBlind, EpisodeRecorder, RandomDriver
from worldmodels.worlds.real import RealWorld
from worldmodels.worlds.recipes import RealRecipe, Recipe
from worldmodels.worlds.rollout import Outcome

FEW_LANES = 4
"""Episodes in a packet where Gymnasium's simulator and not the models takes the time."""
RECORDED = 16
"""How many of the agent's episodes are kept, for the report to dream them again."""


def run(context: Context) -> None:
    """Play the agent and a random policy on the evaluation seeds, and film the median episode."""
    config = context.config.evaluate
    agent_folder, inputs = context.agent()
    agent = load_agent(agent_folder)
    spec = context.env_spec(config.engine)
    content = context.env_content(spec)
    dreams = _dreams(context)
    with context.begin("evaluate", inputs, (), **content, evaluate=config) as folder:
        if not folder.complete:
            _judge(context, folder, agent_folder, agent, dreams)


def _dreams(context: Context) -> _Dreams | None:
    """Where the run's own agent was trained, if that was in a dream."""
    if context.model is not None or not context.run.has("controller"):
        return None
    made = context.run.manifest("controller")
    if made["summary"]["world"] != WorldKind.dream.name:
        return None
    config = made["config"]
    return _Dreams(config["controller.temperature"], config["controller.max_steps"])


def _judge(
    context: Context, folder: StageFolder, agent_folder: Path, agent: Agent, dreams: _Dreams | None
) -> None:
    config = context.config.evaluate
    spec = context.env_spec(config.engine)
    lanes = FEW_LANES if spec.engine == Engine.gymnasium.name else context.config.env.lanes
    drawn = seeds.evaluation(config.first_seed, config.episodes)
    judge = context.real(
        config.engine,
        agent_folder / "vae.safetensors",
        agent_folder / "rnn.safetensors",
        agent.config.features,
    )
    controller = agent.config.controller
    work = packets(agent.parameters[None], drawn, lanes, spec.max_steps, controller)
    made_by = folder.record["made_by"]
    attrs: dict[str, str | int | float] = {"env": spec.id, "engine": spec.engine, "policy": "agent"}
    attrs["made_by"] = made_by
    kept = -(-RECORDED // len(work[0].seeds)) if config.video else 0
    jobs = [
        _Recorded(packet, folder.path / "episodes" / f"shard-{number:05d}.h5", attrs)
        if number < kept
        else packet
        for number, packet in enumerate(work)
    ]
    log = JsonLines(folder.path / "agent.jsonl")
    played = _play(context, "agent", log, made_by, judge, jobs)
    driver = RandomDriver("uniform", context.controls)
    parts = [tuple(drawn[i : i + lanes]) for i in range(0, len(drawn), lanes)]
    blind = [DriveBlind(part, spec.max_steps, driver) for part in parts]
    nobody = context.real(config.engine)
    log = JsonLines(folder.path / "random.jsonl")
    random = _play(context, "random policy", log, made_by, nobody, blind)
    scores = [
        summarise("agent", played.outcome.returns, drawn),
        summarise("random policy", random.outcome.returns, drawn),
    ]
    if dreams is not None:
        rnn = agent_folder / "rnn.safetensors"
        recipe = context.dream(rnn, agent.config.features, dreams.temperature)
        together = packets(agent.parameters[None], drawn, len(drawn), dreams.max_steps, controller)
        log = JsonLines(folder.path / "dreams.jsonl")
        dreamt = _play(context, "agent's dreams", log, made_by, recipe, together)
        scores.append(summarise(IN_ITS_DREAM, dreamt.outcome.returns, drawn))
    write_json(folder.path / "scores.json", {score.name: score.record() for score in scores})
    console.print(score_table(scores, PAPER_ROWS.get(spec.id, [])))
    if (warning := exploited(scores)) is not None:
        say(warning)
    if config.video:
        _film(folder.path / "median.mp4", agent, judge, work, played.outcome.returns)
    rate = (played.steps + random.steps) / (played.seconds + random.seconds)
    folder.finish(
        fingerprint_arrays({"agent": played.outcome.returns, "random": random.outcome.returns}),
        {"steps/s": rate},
        {score.name: score.mean for score in scores},
        [f"episodes/{job.path.name}" for job in jobs if isinstance(job, _Recorded)],
    )


@dataclass(frozen=True)
class _Dreams:
    temperature: float
    max_steps: int


@dataclass(frozen=True)
class _Recorded:
    """A packet whose episodes are written down as a shard; a job for a worker."""

    packet: Packet
    path: Path
    attrs: dict[str, str | int | float]

    @property
    def seeds(self) -> tuple[int, ...]:
        return self.packet.seeds

    def __call__(self, tool: RealWorld, heartbeat: Heartbeat) -> Outcome:
        recorder = EpisodeRecorder(RECORDED)
        outcome = self.packet.play(tool, heartbeat, recorder)
        kept = enumerate(self.packet.seeds[:RECORDED])
        episodes = [recorder.episode(lane, seed) for lane, seed in kept]
        write_shard(self.path, episodes, self.attrs)
        return outcome


@dataclass(frozen=True)
class _Played:
    outcome: Outcome
    steps: int
    seconds: float


def _play(
    context: Context,
    who: str,
    log: JsonLines,
    made_by: str,
    recipe: Recipe,
    work: Sequence[Packet | _Recorded | DriveBlind],
) -> _Played:
    """All packets, their outcomes joined in the order of the seeds; those in `log` are done.

    Raises `ArtifactError` where something else than `made_by` wrote the log.
    """
    records = {record["packet"]: record for record in log.read()}
    require_made_by(log.path, (record.get("made_by") for record in records.values()), made_by)
    missing = [number for number in range(len(work)) if number not in records]
    episodes = sum(len(job.seeds) for job in work)
    done = sum(len(record["returns"]) for record in records.values())
    began = time.monotonic()
    with (
        Progress(f"evaluating the {who}", episodes, "episodes", done) as progress,
        context.pool(recipe, jobs=len(missing)) as pool,
    ):
        for at, outcome in pool.run([work[number] for number in missing]):
            now = time.monotonic()
            seconds = round(now - began, 3)
            record = {"packet": missing[at], "seconds": seconds, "made_by": made_by}
            record |= {name: value.tolist() for name, value in outcome._asdict().items()}
            log.append(record)
            records[missing[at]], began = record, now
            progress.advance(len(outcome.returns))
    outcome = Outcome(
        *(
            np.concatenate([records[number][name] for number in range(len(work))])
            for name in Outcome._fields
        )
    )
    total = sum(record["seconds"] for record in records.values())
    return _Played(outcome, int(outcome.lengths.sum()), total)


def _film(
    path: Path, agent: Agent, judge: RealRecipe, work: list[Packet], returns: np.ndarray
) -> None:
    """Play the median episode once more, in the same packet, and write it as a video."""
    median = int(np.argsort(returns)[(len(returns) - 1) // 2])
    first = len(work[0].seeds)
    packet, lane = work[median // first], median % first
    world = judge.build()
    with Progress("filming", packet.max_steps, "steps") as progress:
        film = EpisodeFilm(
            lane, agent.encoder, agent.dynamics if agent.config.features.state else None
        )
        beat: Heartbeat = lambda steps: progress.advance()  # noqa: E731
        try:
            packet.play(world, beat, film)
        finally:
            world.close()
        film.write(path)
