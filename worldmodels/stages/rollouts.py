"""Stage ``rollouts``: drive, and record what is seen and done (paper, section 4.3, step 1)."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from worldmodels import seeds
from worldmodels.agent import fingerprint as agent_fingerprint
from worldmodels.agent import load_agent
from worldmodels.artifacts import StageFolder
from worldmodels.config import ActionSource
from worldmodels.data.episodes import EpisodeSet
from worldmodels.data.shards import Shard
from worldmodels.errors import ArtifactError, ConfigError, DataError
from worldmodels.integrity import Listed, set_aside_damaged
from worldmodels.reporting.pictures import contact_sheet, save_picture
from worldmodels.stages.context import Context, agent_of
from worldmodels.tracking import Progress, say
from worldmodels.worlds.collect import CollectShard, Driver, NoisyAgent, RandomDriver
from worldmodels.worlds.specs import RealWorldSpec


def run(context: Context) -> None:
    """Collect the shards that are missing."""
    config = context.config.rollouts
    if config.policy is not ActionSource.controller:
        config = replace(
            config, noise=0.0, ez_greedy_epsilon=0.0
        )  # of no concern to a random driver
    driver, world_spec, inputs = _driver(context)
    growable = ("rollouts.episodes",)
    content = context.env_content(context.env_spec())
    with context.begin("rollouts", inputs, growable, **content, rollouts=config) as folder:
        parts = _parts(context)
        _refuse_others(folder.path, parts)
        missing = _missing(folder, parts)
        if missing and folder.complete:
            say(f"rollouts: {len(missing)} of {len(parts)} shards are gone: collecting them again")
        if not missing and folder.complete:
            return
        folder.hold()
        known = folder.record.get("files", {})
        folder.keep({name: known[name] for name in parts if name in known and name not in missing})
        rate = 0.0
        while missing:
            rate = _collect(context, folder, driver, world_spec, missing)
            # One that was removed while others were collected is collected again.
            missing = {n: part for n, part in parts.items() if not (folder.path / n).exists()}
        _finish(context, folder, list(parts), rate)


def _parts(context: Context) -> dict[str, tuple[int, ...]]:
    """The shards that there are to be: the seeds of each, by its name."""
    config, num_envs = context.config.rollouts, context.config.env.num_envs
    drawn = seeds.draw(
        seeds.Purpose.ROLLOUTS,
        context.config.seed,
        len(context.collectors),
        count=config.episodes,
    )
    starts = range(0, len(drawn), num_envs)
    return {f"shard-{n:05d}.h5": tuple(drawn[at : at + num_envs]) for n, at in enumerate(starts)}


def _refuse_others(folder: Path, parts: Mapping[str, object]) -> None:
    """Raise `ArtifactError` for shards that are not among `parts`."""
    others = sorted(path.name for path in folder.glob("shard-*.h5") if path.name not in parts)
    if others:
        named = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if others[3:] else "")
        raise ArtifactError(
            f"{folder}: it holds {named}, which this run has not made; move that away, or choose"
            " another run=<name>"
        )


def _missing(
    folder: StageFolder, parts: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """The shards that have to be collected; those that are damaged are moved aside."""
    known = folder.record.get("files", {})
    missing = {}
    for name, part in parts.items():
        path = folder.path / name
        if not os.path.lexists(path):
            missing[name] = part
            continue
        file = Listed(path, known.get(name), folder.record.get("made_by"))
        try:
            with Shard(file) as shard:
                if file.sha256 is None:
                    shard.verify()
                found = tuple(shard.seeds.tolist())
        except DataError as error:
            folder.hold()
            say(f"rollouts: {error} ({set_aside_damaged(path)})")
            missing[name] = part
            continue
        if found == part[: len(found)] and not folder.complete:
            if len(found) < len(part):  # the last one of fewer rollouts.episodes
                missing[name] = part
        elif found != part:
            raise ArtifactError(
                f"{path}: its episodes have other seeds than shard {name} of this run; move it away"
                " and run the same command again, which collects it anew"
            )
    return missing


def _collect(
    context: Context,
    folder: StageFolder,
    driver: Driver,
    world_spec: RealWorldSpec,
    missing: Mapping[str, tuple[int, ...]],
) -> float:
    """Collect the episodes of the `missing` shards; returns frames a second."""
    config, spec = context.config.rollouts, context.env_spec()
    attrs: dict[str, str | int | float] = {
        "env": spec.id,
        "engine": spec.engine,
        "policy": config.policy.name,
        "made_by": folder.record["made_by"],
    }
    jobs = [
        CollectShard(folder.path / name, part, config.max_steps, driver, attrs)
        for name, part in missing.items()
    ]
    began = time.monotonic()
    frames, count = 0, sum(map(len, missing.values()))
    with (
        Progress(f"driving ({spec.engine})", count, "episodes") as progress,
        context.pool(world_spec, jobs=len(jobs)) as pool,
    ):
        for _, outcome in pool.run(jobs):
            frames += int(outcome.lengths.sum()) + len(outcome.lengths)
            rate = frames / (time.monotonic() - began)
            progress.advance(len(outcome.lengths), f"{rate:,.0f} frames/s")
    return frames / (time.monotonic() - began)


def _finish(context: Context, folder: StageFolder, names: list[str], rate: float) -> None:
    """Account for the whole set."""
    files = [Listed(folder.path / name, made_by=folder.record["made_by"]) for name in names]
    episodes = EpisodeSet.listed(files)
    save_picture(folder.path / "contact_sheet.png", contact_sheet(episodes))
    returns, engine = episodes.returns(), context.env_spec().engine
    folder.finish(
        episodes.fingerprint,
        {"frames/s": rate} if rate else {},
        {
            "episodes": episodes.num_episodes,
            "frames": episodes.num_frames,
            "mean_return": float(returns.mean()),
            "engine": engine,
        },
        names,
    )
    say(
        f"rollouts: {episodes.num_episodes} episodes, {episodes.num_frames:,} frames,"
        f" mean return {returns.mean():.1f} ({rate:,.0f} frames/s, {engine})"
    )


def _driver(context: Context) -> tuple[Driver, RealWorldSpec, dict[str, str]]:
    """Who drives, in what world, and the fingerprints of what that was made from."""
    config = context.config.rollouts
    if config.policy is not ActionSource.controller:
        world = context.real(None)
        return RandomDriver(config.policy.name, context.controls), world, {}
    folder, inputs = _agent_folder(context)
    features = load_agent(folder).config.features
    world = context.real(None, folder / "vae.safetensors", folder / "rnn.safetensors", features)
    return (
        NoisyAgent(folder, config.noise, config.ez_greedy_epsilon, context.controls),
        world,
        inputs,
    )


def _agent_folder(context: Context) -> tuple[Path, dict[str, str]]:
    """The trained agent that collects: of the run before, of ``model=``, or of ``base=``."""
    if context.collectors:
        if context.model is not None:
            raise ConfigError(
                "rollouts: both a run before and model= would drive; give one of them"
            )
        last = context.collectors[-1]
        return agent_of(last), {"controller": last.fingerprint("controller")}
    if context.model is not None:
        folder = context.model
    elif context.published is not None:
        folder = context.published
    else:
        raise ConfigError(
            "rollouts.policy=controller needs the folder of a trained agent: model= or base="
        )
    return folder, {"model": agent_fingerprint(folder)}
