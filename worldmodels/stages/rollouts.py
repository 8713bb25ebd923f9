"""Stage ``rollouts``: drive, and record what is seen and done (paper, section 4.3, step 1)."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from worldmodels import seeds
from worldmodels.agent import fingerprint as agent_fingerprint
from worldmodels.agent import load_agent
from worldmodels.artifacts import StageFolder
from worldmodels.config import ActionSource
from worldmodels.data.episodes import EpisodeSet, Shard
from worldmodels.errors import ConfigError, DataError
from worldmodels.reporting.pictures import contact_sheet, save_picture
from worldmodels.stages.context import Context
from worldmodels.tracking import Progress, say
from worldmodels.worlds.collect import CollectShard, Driver, NoisyAgent, RandomDriver
from worldmodels.worlds.recipes import RealRecipe


def run(context: Context) -> None:
    """Collect the shards that are missing."""
    config = context.config.rollouts
    if config.policy is not ActionSource.controller:
        config = replace(config, noise=0.0, epsilon=0.0)  # of no concern to a random driver
    driver, recipe, inputs = _driver(context)
    growable = ("rollouts.episodes",)
    content = context.env_content(context.env_spec())
    with context.begin("rollouts", inputs, growable, **content, rollouts=config) as folder:
        lanes = context.config.env.lanes
        drawn = seeds.draw(
            seeds.Purpose.ROLLOUTS,
            context.config.seed,
            len(context.collectors),
            count=config.episodes,
        )
        parts = [tuple(drawn[start : start + lanes]) for start in range(0, len(drawn), lanes)]
        paths = [folder.path / f"shard-{number:05d}.h5" for number in range(len(parts))]
        missing = [
            (path, part) for path, part in zip(paths, parts, strict=True) if not _holds(path, part)
        ]
        if missing and folder.complete:
            say(f"rollouts: {len(missing)} of {len(parts)} shards are gone: collecting them again")
        if missing or not folder.complete:
            folder.hold()
            _collect(context, folder, driver, recipe, missing)


def _collect(
    context: Context,
    folder: StageFolder,
    driver: Driver,
    recipe: RealRecipe,
    missing: list[tuple[Path, tuple[int, ...]]],
) -> None:
    """Drive the episodes of the `missing` shards, and account for the whole set."""
    config, spec = context.config.rollouts, context.env_spec()
    attrs: dict[str, str | int | float] = {
        "env": spec.id,
        "engine": spec.engine,
        "policy": config.policy.name,
    }
    jobs = [CollectShard(path, part, config.max_steps, driver, attrs) for path, part in missing]
    began = time.monotonic()
    frames, count = 0, sum(len(part) for _, part in missing)
    with (
        Progress(f"driving ({spec.engine})", count, "episodes") as progress,
        context.pool(recipe, jobs=len(jobs)) as pool,
    ):
        for _, outcome in pool.run(jobs):
            frames += int(outcome.lengths.sum()) + len(outcome.lengths)
            rate = frames / (time.monotonic() - began)
            progress.advance(len(outcome.lengths), f"{rate:,.0f} frames/s")
    rate = frames / (time.monotonic() - began)
    episodes = EpisodeSet.open([folder.path], config.on_corrupt.name)
    save_picture(folder.path / "contact_sheet.png", contact_sheet(episodes))
    returns = episodes.returns()
    folder.finish(
        episodes.fingerprint,
        {"frames/s": rate} if frames else {},
        {
            "episodes": episodes.num_episodes,
            "frames": episodes.num_frames,
            "mean_return": float(returns.mean()),
            "engine": spec.engine,
        },
    )
    say(
        f"rollouts: {episodes.num_episodes} episodes, {episodes.num_frames:,} frames,"
        f" mean return {returns.mean():.1f} ({rate:,.0f} frames/s, {spec.engine})"
    )


def _driver(context: Context) -> tuple[Driver, RealRecipe, dict[str, str]]:
    """Who drives, in what world, and the fingerprints of what that was made from."""
    config = context.config.rollouts
    if config.policy is not ActionSource.controller:
        world = context.real(None, None, None, context.wiring())
        return RandomDriver(config.policy.name, context.controls), world, {}
    folder, inputs = _agent_folder(context)
    wiring = load_agent(folder).wiring
    world = context.real(None, folder / "vae.safetensors", folder / "rnn.safetensors", wiring)
    return NoisyAgent(folder, config.noise, config.epsilon, context.controls), world, inputs


def _agent_folder(context: Context) -> tuple[Path, dict[str, str]]:
    """The trained agent that collects: of the run before, of ``model=``, or of ``base=``."""
    if context.collectors:
        if context.model is not None:
            raise ConfigError(
                "rollouts: both a run before and model= would drive; give one of them"
            )
        last = context.collectors[-1]
        return last.locate("controller") / "agent", {"controller": last.fingerprint("controller")}
    if context.model is not None:
        folder = context.model
    elif context.published is not None:
        folder = context.published
    else:
        raise ConfigError(
            "rollouts.policy=controller needs the folder of a trained agent: model= or base="
        )
    return folder, {"model": agent_fingerprint(folder)}


def _holds(path: Path, part: tuple[int, ...]) -> bool:
    """Whether a shard is there, whole, and of these seeds."""
    if not path.exists():
        return False
    try:
        with Shard(path) as shard:
            return tuple(int(seed) for seed in shard.seeds) == part
    except DataError as error:
        say(f"rollouts: {error}; collecting it again")
        path.unlink()
        return False
