"""Calibration for ``stage=plan``: the parts of a run, each for some seconds, as stages run them.

First the run in miniature, a few episodes of a few steps through every stage: what a stage takes
whatever the amount of its work, its memory, and files for what follows. Then the rates: one pool of
workers steps each world, and this process trains and encodes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from worldmodels.agents.folder import AgentConfig, read_agent
from worldmodels.agents.model_files import load_encoder
from worldmodels.agents.registry import build_dynamics, build_encoder
from worldmodels.config.choices import ActionSource, WorldKind
from worldmodels.config.schema import Config, changed
from worldmodels.config.sections import LoggerConfig
from worldmodels.data.episodes import EpisodeSet
from worldmodels.data.latents import EncodedEpisode, LatentSet, write_latents
from worldmodels.evolution.fitness import evaluation_num_envs
from worldmodels.evolution.search import Search
from worldmodels.planning.estimate import Base, Rates, without_work
from worldmodels.planning.schedule import WorldCost
from worldmodels.planning.timing import (
    FitRate,
    InWorld,
    OpenWorld,
    OpenWorldSetup,
    StepCost,
    StepProbe,
    fit_rate,
    step_times,
)
from worldmodels.reporting.open_loop import open_loop
from worldmodels.reporting.video import EpisodeVideo
from worldmodels.runs.artifacts import Run
from worldmodels.runs.integrity import listed
from worldmodels.runs.tracking import console
from worldmodels.stages import controller, evaluate, report, rnn, rollouts, vae
from worldmodels.stages.context import Context
from worldmodels.stages.runtime import Runtime
from worldmodels.stages.training import fit_options
from worldmodels.system import interrupts
from worldmodels.training.dynamics import DynamicsTask
from worldmodels.training.encode import encode_episodes
from worldmodels.training.encoder import EncoderTask
from worldmodels.training.fit import FitOptions
from worldmodels.workers.jobs import Pool
from worldmodels.workers.local import LocalPool
from worldmodels.worlds.collect import CollectShard, RandomActions
from worldmodels.worlds.rollout import PopulationPolicy, rollout
from worldmodels.worlds.specs import WorldSpec

STEPS, EPISODES = 24, 4
"""Of the run in miniature; episodes for each worker."""
LATENTS_BYTES = 2**28
"""Of the random latents that the dynamics model is trained on, at most."""
MANY_FRAMES = 8192
"""Frames that the encoder is trained on: two pools of `worldmodels.data.frames`."""
VIDEO_FRAMES = (20, 80)


@dataclass
class Calibration:
    """The calibration of one configuration.

    Args:
        config: of the run.
        folder: for files, which the caller removes.
        seconds: of the longest measurements; others take a fraction of it.
    """

    config: Config
    folder: Path
    seconds: float = 4.0

    def __post_init__(self) -> None:
        self.runtime = Runtime(self.config)
        self.small = Context(_miniature(self.config, self.workers), Run(self.folder / "small"))

    @property
    def workers(self) -> int:
        """Worker processes; 1 where this process does the work itself."""
        return max(1, self.runtime.processes)

    def rates(self, policies: set[ActionSource]) -> Rates:
        """Measure everything.

        Args:
            policies: that collect, in the run and its bootstrap run.

        Raises:
            Stopped: the process was asked to stop.
        """
        with _silent():
            base = self._base()
            agent = self.small.run.folder("controller") / "agent"
            joined = read_agent(agent).config
            worlds, recording = self._worlds(agent, joined, policies)
            episodes = EpisodeSet.open([self.folder / "shards"], "refuse")
            encode = self._encode(episodes, agent / "vae.safetensors")
            action_size = episodes.episode(0).actions.shape[1]
            latent_size = self.config.vae.latent_size
            search, parameters = self._search(joined, agent)
            rates = Rates(
                base=base,
                worlds=worlds,
                vae=self._vae(episodes),
                encode=encode,
                rnn=self._rnn(action_size),
                search=search,
                parameters=parameters,
                latent_bytes=4 * (2 * latent_size + action_size + 1) + 1,
                num_envs=controller.batch_sizes(Context(self.config, self.small.run)),
                video_frame=self._video_frame(agent) if self.config.evaluate.video else 0.0,
                open_loop_step=self._open_loop(agent) if self.config.evaluate.video else 0.0,
                evaluation_engine=self.runtime.env_spec(self.config.evaluate.engine).engine,
                recorded=evaluate.RECORDED,
                **recording,
            )
            return without_work(rates, self.small.config)

    def _base(self) -> dict[str, Base]:
        """The run in miniature: what each stage takes."""
        found = {}
        for stage in (rollouts, vae, rnn, controller, evaluate, report):
            interrupts.check()
            stage.run(self.small)
            name = stage.__name__.rpartition(".")[2]
            manifest = self.small.run.manifest(name)
            used = manifest["resources"]
            peaks = used["peak_bytes"]
            found[name] = Base(
                manifest["wall_s"],
                peaks["process"],
                peaks.get("worker", 0),
                used["disk_bytes"],
                peaks.get("gpu", 0),
            )
        return found

    def _worlds(
        self, agent: Path, joined: AgentConfig, policies: set[ActionSource]
    ) -> tuple[dict[str, WorldCost], dict[str, float]]:
        """The worlds that the run needs, and what recording costs."""
        config, runtime = self.config, self.runtime
        encoder, dynamics = agent / "vae.safetensors", agent / "rnn.safetensors"
        features = joined.features
        engine = config.evaluate.engine
        evaluated = evaluation_num_envs(runtime.env_spec(engine).engine, config.env.num_envs)
        random = RandomActions("uniform", runtime.controls)
        num_envs = config.env.num_envs
        found: dict[str, WorldCost] = {}
        measured: list[tuple[tuple[WorldSpec, int, Any], WorldCost]] = []
        with LocalPool(OpenWorldSetup(), runtime.processes, config.workers.timeout) as pool:

            def cost(name: str, spec: WorldSpec, size: int, policy: Any) -> None:
                for what, known in measured:  # the evaluation may be in the same environment
                    if what == (spec, size, policy):
                        found[name] = known
                        return
                found[name] = self._cost(pool, spec, size, policy)
                measured.append(((spec, size, policy), found[name]))

            plain = runtime.real(None)
            cost("random", plain, num_envs, random)
            recording = self._record(pool, plain, found["random"].busy)
            dreaming = config.controller.world is WorldKind.dream
            if not dreaming or ActionSource.controller in policies:
                seen = runtime.real(None, encoder, dynamics, features)
                cost("controller", seen, num_envs, joined.controller)
            if dreaming:
                dream = runtime.dream(dynamics, features, config.controller.temperature)
                size = controller.batch_sizes(Context(config, self.small.run))[1]
                cost("dream", dream, size, joined.controller)
            seen = runtime.real(engine, encoder, dynamics, features)
            cost("evaluate", seen, evaluated, joined.controller)
            cost("evaluate random", runtime.real(engine), evaluated, random)
        return found, recording

    def _cost(self, pool: Pool[OpenWorld], spec: WorldSpec, size: int, policy: Any) -> WorldCost:
        """Step a world with all workers, with fewer environments, and with one worker alone."""

        def probes(num_envs: int, workers: int) -> list[StepProbe]:
            seeds = [range(i * num_envs, (i + 1) * num_envs) for i in range(workers)]
            return [StepProbe(spec, tuple(part), policy, self.seconds / 3) for part in seeds]

        fewer = size if isinstance(policy, RandomActions) else max(1, size // 4)
        times = step_times(pool, probes(size, self.workers))
        few = times if fewer == size else step_times(pool, probes(fewer, self.workers))
        busy = alone = StepCost.of(size, times, fewer, few)
        if self.workers > 1:
            single = step_times(pool, probes(size, 1))
            alone = busy.scaled(single.step / times.step)
        return WorldCost(busy, alone, self.workers, times.peak_bytes)

    def _record(self, pool: Pool[OpenWorld], spec: WorldSpec, cost: StepCost) -> dict[str, float]:
        """Collect a shard in each worker, and more where the encoder needs more frames."""
        config, runtime = self.config, self.runtime
        size, limit = config.env.num_envs, config.rollouts.max_steps
        lanes = size * self.workers
        least = max(8.0, 2 * config.vae.batch_size / lanes)
        affordable = self.seconds / max(cost.each * size + cost.step, 1e-9)
        steps = int(min(limit, max(least, min(affordable, max(MANY_FRAMES / lanes, 150.0)))))
        policy = RandomActions("uniform", runtime.controls)
        folder = self.folder / "shards"
        jobs = [
            InWorld(
                spec,
                CollectShard(
                    folder / f"shard-{number:05d}.h5",
                    tuple(range(number * size, (number + 1) * size)),
                    steps,
                    policy,
                    {},
                ),
            )
            for number in range(self.workers)
        ]
        done = pool.map(jobs)
        frames = size * steps
        taken = float(np.mean([seconds for _, seconds, _, _ in done]))
        played = sum(int(outcome.lengths.sum()) for outcome, _, _, _ in done)
        ended = sum(int(outcome.terminated.sum()) for outcome, _, _, _ in done)
        hazard = ended / played
        length = (1 - (1 - hazard) ** limit) / hazard if hazard else float(limit)
        shards = sum(path.stat().st_size for path in folder.iterdir())
        stepped = played / self.workers
        return {
            "record": max(0.0, (taken - cost.job(size, steps, stepped)) / stepped),
            "record_bytes": max(after - before for _, _, before, after in done) / frames,
            "frame_bytes": shards / (played + lanes),
            "random_length": length,
        }

    def _options(self, section: Any, gradient_clip: float | None) -> FitOptions:
        return replace(fit_options(self.config, section, gradient_clip, ""), epochs=1)

    def _vae(self, episodes: EpisodeSet) -> FitRate:
        config, fabric, seed = self.config.vae, self.runtime.fabric(), self.config.seed
        model = build_encoder(config, self.config.env.size)
        split = episodes.split(0.1, seed)
        task = EncoderTask(model, episodes, split, config.batch_size, seed, fabric)
        options = self._options(config, None)
        return fit_rate(task, self.folder / "vae", options, fabric, self.seconds)

    def _encode(self, episodes: EpisodeSet, encoder: Path) -> float:
        runtime = self.runtime
        began = time.perf_counter()
        encode_episodes(
            episodes,
            load_encoder(encoder),
            self.folder / "encoded.h5",
            {},
            runtime.device,
            runtime.bfloat16,
        )
        return episodes.num_frames / (time.perf_counter() - began)

    def _rnn(self, action_size: int) -> FitRate:
        """Train on random latents: as many rows as a batch has, as long as the windows ask for."""
        config, seed, fabric = self.config.rnn, self.config.seed, self.runtime.fabric()
        size, limit = self.config.vae.latent_size, self.config.rollouts.max_steps
        length = min(limit, 4 * config.sequence_length) if config.sequence_length else limit
        rows = min(config.batch_size, max(2, LATENTS_BYTES // (8 * size * length)))
        validation = max(1, rows // 4)
        rng, path = np.random.default_rng(seed), self.folder / "latents.h5"
        write_latents(
            path, (_episode(rng, length, size, action_size) for _ in range(rows + validation)), {}
        )
        split = np.arange(rows), np.arange(rows, rows + validation)
        model = build_dynamics(config, size, action_size, {})
        task = DynamicsTask(
            model, LatentSet(path), split, config.batch_size, config.sequence_length, seed, fabric
        )
        options = self._options(config, config.gradient_clip)
        return fit_rate(task, self.folder / "rnn", options, fabric, self.seconds)

    def _search(self, joined: AgentConfig, agent: Path) -> tuple[float, tuple[int, int]]:
        """Seconds of a generation's ask and tell; numbers of a candidate and of a controller."""
        config, written = self.config.controller, read_agent(agent).parameters.size
        features = joined.features.size(self.config.vae.latent_size, read_agent(agent).dynamics)
        inputs = min(features, config.pca_components or features)
        size = joined.controller.size(inputs)
        search = Search(size, config.population, config.sigma, 1, None, config.diagonal)
        rng, began, turns = np.random.default_rng(0), time.perf_counter(), 3
        for _ in range(turns):
            search.ask()
            search.tell(rng.standard_normal(config.population))
        return (time.perf_counter() - began) / turns, (size, written)

    def _video_frame(self, folder: Path) -> float:
        """Seconds of the video for each frame: the difference of two of different lengths."""
        agent = read_agent(folder)
        dynamics = agent.dynamics if agent.config.features.state else None
        world = self.runtime.real(
            None, folder / "vae.safetensors", folder / "rnn.safetensors", agent.config.features
        ).build()
        seconds = []
        try:
            for steps in VIDEO_FRAMES:
                video = EpisodeVideo(0, agent.encoder, dynamics)
                policy = PopulationPolicy(
                    agent.parameters[None],
                    1,
                    world.feature_size,
                    agent.config.controller,
                    world.device,
                )
                rollout(world, policy, [0], steps, video)
                began = time.perf_counter()
                video.write(self.folder / "video.mp4")
                seconds.append(time.perf_counter() - began)
        finally:
            world.close()
        return max(0.0, (seconds[1] - seconds[0]) / (VIDEO_FRAMES[1] - VIDEO_FRAMES[0]))

    def _open_loop(self, folder: Path) -> float:
        """Seconds of the report's open-loop predictions for each step of the longest episode."""
        agent = read_agent(folder)
        files = listed(self.small.run.locate("evaluate"), "episodes/shard-*.h5")
        began = time.perf_counter()
        open_loop(agent.encoder, agent.dynamics, EpisodeSet.listed(files))
        return (time.perf_counter() - began) / STEPS


def _miniature(config: Config, workers: int) -> Config:
    """A run through every stage with the same models and engines, as short as it can be."""
    small = changed(
        config,
        {
            "env": {"max_steps": STEPS, "num_envs": 2},
            "rollouts": {"episodes": EPISODES * workers, "max_steps": STEPS},
            "vae": {"epochs": 1, "validation_fraction": 0.25},
            "rnn": {"epochs": 1, "validation_fraction": 0.25},
            "controller": {
                "population": 4,
                "episodes": 2 * workers,
                "first_episodes": None,
                "stall_steps": None,
                "generations": 1,
                "total_steps": None,
                "final_sigma": None,
                "max_steps": STEPS,
                "eval_interval": 1,
                "eval_episodes": 2,
            },
            "evaluate": {"episodes": EPISODES * workers},
        },
    )
    if small.rollouts.policy is ActionSource.controller:
        small.rollouts = replace(small.rollouts, policy=ActionSource.uniform)
    small.bootstrap, small.model, small.base, small.overwrite = {}, None, None, False
    small.logger, small.price_per_hour = LoggerConfig(), None
    return small


def _episode(
    rng: np.random.Generator, steps: int, latent_size: int, action_size: int
) -> EncodedEpisode:
    """An episode of random latents."""
    terminated = np.zeros(steps, bool)
    terminated[-1] = True
    return EncodedEpisode(
        mean=rng.standard_normal((steps + 1, latent_size), np.float32),
        logvar=np.full((steps + 1, latent_size), -1.0, np.float32),
        actions=rng.standard_normal((steps, action_size), np.float32),
        rewards=np.zeros(steps, np.float32),
        terminated=terminated,
        seed=0,
    )


@contextmanager
def _silent() -> Iterator[None]:
    """Print nothing: the lines of the stages would be taken for those of the run."""
    before, console.quiet = console.quiet, True
    try:
        yield
    finally:
        console.quiet = before
