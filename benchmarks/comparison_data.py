"""The episodes of ``benchmarks/model_comparison.py``, which every row of an environment and a seed
is trained on, and those that no row is trained on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from worldmodels import seeds
from worldmodels.agents.folder import fingerprint as agent_fingerprint
from worldmodels.agents.folder import read_agent
from worldmodels.agents.hub import require_agent
from worldmodels.config import limits, schema
from worldmodels.config.shipped import CONF
from worldmodels.data.episodes import EpisodeSet
from worldmodels.data.shards import Shard
from worldmodels.envs.engines import EnvSpec
from worldmodels.runs.artifacts import Run
from worldmodels.runs.integrity import Listed, listed
from worldmodels.runs.tracking import say
from worldmodels.stages.runtime import Runtime
from worldmodels.system import interrupts
from worldmodels.worlds.collect import CollectionPolicy, CollectShard, NoisyAgent, RandomActions
from worldmodels.worlds.specs import RealWorldSpec

SHARD = 8
"""Episodes that are played at once."""
PATH = 2000
"""Of the seeds, with the kind and the source after it: far beyond the number of rounds, which it is
in training, and not that of ``probe.py``."""
NOISE, EZ_GREEDY_EPSILON = 0.05, 0.03
"""Of an agent that collects, see `NoisyAgent`: what ``benchmarks/study.py`` trains learned models
of CarRacing on."""


class Source(NamedTuple):
    """Who collects an equal share of the frames.

    Args:
        name: of a random process of `worldmodels.envs.actions`, or a folder in ``pretrained/``.
        max_steps: of an episode; None is the environment's.
    """

    name: str
    max_steps: int | None = None

    @property
    def is_agent(self) -> bool:
        """Whether a trained agent collects, with noise."""
        return self.name.startswith("pretrained/")


SOURCES: dict[str, tuple[Source, ...]] = {
    "carracing": (Source("pretrained/carracing-dream"), Source("brownian", 150)),
    "takecover": (Source("persistent_uniform"),),
}
"""Environment -> who collects."""
KINDS = ("data", "held-out")
"""What episodes are for: training and validation of every row, or its measures."""


def config_of(words: Sequence[str]) -> schema.Config:
    """The configuration of a command line, checked."""
    schema.register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = OmegaConf.to_object(compose("config", overrides=list(words)))
    assert isinstance(config, schema.Config)
    limits.check(config)
    return config


def recorded(run: Run) -> EpisodeSet:
    """The episodes of a run; raises `ArtifactError` where they are missing or damaged."""
    return EpisodeSet.listed(listed(run.locate("rollouts"), "shard-*.h5"))


def record(config: schema.Config, run: Run, kind: str, frames: int) -> None:
    """Record the rollouts of a run, if it does not have them; shards that are there are kept.

    Args:
        config: environment and seed.
        run: whose stage ``rollouts`` it is.
        kind: of `KINDS`.
        frames: of all sources, at least; whole shards of `SHARD` episodes.

    Raises:
        Stopped: the process was asked to stop; the same call continues.
    """
    runtime, sources = Runtime(config), SOURCES[config.env.name]
    spec = runtime.env_spec()
    inputs = {
        source.name: agent_fingerprint(_agent(source)) for source in sources if source.is_agent
    }
    content = schema.flat(seed=config.seed, **runtime.env_content(spec))
    noise = {"noise": NOISE, "ez_greedy_epsilon": EZ_GREEDY_EPSILON}
    content |= {"kind": kind, "frames": frames, "sources": [[*source] for source in sources]}
    with run.begin("rollouts", content | noise, inputs) as folder:
        if folder.complete:
            return
        names = []
        for number, source in enumerate(sources):
            policy, world_spec = _collection(runtime, source)
            attrs = _attributes(spec, source, folder.record["made_by"])
            path = (PATH, KINDS.index(kind), number)
            max_steps = min(source.max_steps or spec.max_steps, spec.max_steps)
            with runtime.pool(world_spec) as pool:
                for name, drawn in _shards(folder.path, config.seed, path, frames / len(sources)):
                    names.append(name)
                    if not (folder.path / name).exists():
                        job = CollectShard(folder.path / name, drawn, max_steps, policy, attrs)
                        pool.map([job])
                        interrupts.check()
        made_by = folder.record["made_by"]
        episodes = EpisodeSet.listed([Listed(folder.path / n, made_by=made_by) for n in names])
        summary = {"episodes": episodes.num_episodes, "frames": episodes.num_frames}
        folder.finish(episodes.fingerprint, {}, summary, names)
        say(f"{run.name}: {episodes.num_episodes} episodes, {episodes.num_frames:,} frames")


def _shards(
    folder: Path, seed: int, path: tuple[int, ...], frames: float
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and episode seeds of each shard of a source, until those before it have all `frames`.

    Each shard has to be written before the next is asked for.
    """
    found, number = 0, 0
    while found < frames:
        drawn = seeds.draw(seeds.Purpose.ROLLOUTS, seed, *path, number, count=SHARD)
        name = f"shard-{path[-1]}{number:04d}.h5"
        yield name, tuple(drawn)
        with Shard(folder / name) as shard:
            found += shard.num_frames
        number += 1


def _agent(source: Source) -> Path:
    return require_agent("agent", source.name)


def _attributes(spec: EnvSpec, source: Source, made_by: str) -> dict[str, str | int | float]:
    return {"env": spec.id, "engine": spec.engine, "policy": source.name, "made_by": made_by}


def _collection(runtime: Runtime, source: Source) -> tuple[CollectionPolicy, RealWorldSpec]:
    """The policy of a source, and the world in which it acts."""
    if not source.is_agent:
        return RandomActions(source.name, runtime.controls), runtime.real(None)
    folder = _agent(source)
    files = folder / "vae.safetensors", folder / "rnn.safetensors"
    world = runtime.real(None, *files, read_agent(folder).config.features)
    return NoisyAgent(folder, NOISE, EZ_GREEDY_EPSILON, runtime.controls), world
