"""Stage ``rollouts``: collect episodes and record them (paper, section 4.3, step 1)."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from worldmodels import seeds
from worldmodels.agents.folder import fingerprint as agent_fingerprint
from worldmodels.agents.folder import read_agent
from worldmodels.config.choices import ActionSource, Stage
from worldmodels.data.episodes import EpisodeSet
from worldmodels.data.shards import Shard
from worldmodels.envs.engines import mirrored_panel
from worldmodels.envs.mirror import Mirroring
from worldmodels.errors import ArtifactError, ConfigError, DataError
from worldmodels.planning.schedule import training_length
from worldmodels.reporting.pictures import contact_sheet, save_picture
from worldmodels.runs.integrity import Listed, set_aside_damaged
from worldmodels.runs.stage_folder import StageFolder
from worldmodels.runs.tracking import Progress, say
from worldmodels.stages.context import Context
from worldmodels.stages.trained import agent_of
from worldmodels.worlds.branches import CollectBranches
from worldmodels.worlds.collect import (
    CollectionPolicy,
    CollectShard,
    NoiseActions,
    NoisyAgent,
    RandomActions,
)
from worldmodels.worlds.specs import RealWorldSpec

BRANCH_STEPS = 100
"""The meaning of ``rollouts.branch_steps=null``, in steps of the simulator."""


def run(context: Context) -> None:
    """Collect the shards that are missing."""
    config = context.config.rollouts
    if config.policy is not ActionSource.controller:
        config = replace(  # of controllers only
            config,
            noise=0.0,
            noise_exponent=0.0,
            ez_greedy_epsilon=0.0,
            branches=None,
            branch_steps=None,
        )
        if config.policy is not ActionSource.action_noise:
            config.action_noise = 0.0
    policy, world_spec, inputs = _collection_policy(context)
    growable = ("rollouts.episodes", "rollouts.frames")
    content = context.runtime.env_content(context.runtime.env_spec())
    if config.policy is ActionSource.action_noise:
        content["env.squash"] = context.config.env.squash
    if config.mirrored_share:
        spec, actions = world_spec.env, context.config.env.mirrored_actions or ()
        mirroring = Mirroring(config.mirrored_share, tuple(actions), mirrored_panel(spec))
        world_spec = replace(world_spec, mirroring=mirroring)
        content["env.mirrored_actions"] = list(actions)
    content["rollouts"] = config
    content["rollouts.on_corrupt"] = None  # of what reads the episodes
    with context.begin("rollouts", inputs, growable, **content) as folder:
        parts: Parts = _parts(context)
        _refuse_others(folder.path, parts)
        if folder.complete and config.frames is not None:
            parts = {name: parts[name] for name in folder.record["files"]}
        damaged = _missing(folder, parts)
        parts, missing = _wanted(context, folder, parts)
        missing |= {name: damaged[name] for name in damaged if name in parts}
        if missing and folder.complete:
            say(f"rollouts: {len(missing)} of {len(parts)} shards missing: collecting them again")
        if not missing and folder.complete:
            return
        folder.hold()
        known = folder.record.get("files", {})
        folder.keep({name: known[name] for name in parts if name in known and name not in missing})
        rate = 0.0
        if missing:
            parts, rate = _collect(context, folder, policy, world_spec, missing)
        for name in _parts(context).keys() - parts.keys():  # more than rollouts.frames need
            (folder.path / name).unlink(missing_ok=True)
        _finish(context, folder, list(parts), rate)


Parts = Mapping[str, tuple[int, ...]]
"""Shards: name -> seeds of its episodes."""


def _parts(context: Context) -> dict[str, tuple[int, ...]]:
    """The shards that the configured data set may have; with ``rollouts.frames`` the first ones."""
    config, num_envs = context.config.rollouts, context.config.env.num_envs
    drawn = seeds.draw(
        seeds.Purpose.ROLLOUTS,
        context.config.seed,
        len(context.inputs.collectors),
        count=config.episodes,
    )
    starts = range(0, len(drawn), num_envs)
    return {f"shard-{n:05d}.h5": tuple(drawn[at : at + num_envs]) for n, at in enumerate(starts)}


def _wanted(
    context: Context, folder: StageFolder, parts: Parts
) -> tuple[Parts, dict[str, tuple[int, ...]]]:
    """The shards of the data set, as far as they are known, and those of them to collect.

    With ``rollouts.frames`` the data set is the smallest number of first shards that have so many
    frames; those that are missing count as the mean of the others.
    """
    frames = context.config.rollouts.frames
    if frames is not None:
        sizes = {}
        for name in parts:
            if (folder.path / name).exists():
                with Shard(folder.path / name) as shard:
                    sizes[name] = shard.num_frames
        mean = sum(sizes.values()) / len(sizes) if sizes else _expected_frames(context)
        before, found = 0.0, {}
        for name, part in parts.items():
            if before < frames:
                found[name] = part
            before += sizes.get(name, mean)
        parts = found
    return parts, {n: part for n, part in parts.items() if not (folder.path / n).exists()}


def _expected_frames(context: Context) -> float:
    """Of a shard before any was collected: as in the round before, or as `training_length` says."""
    config = context.config.rollouts
    steps = training_length(config)
    if context.inputs.collectors:
        summary = context.inputs.collectors[-1].manifest("rollouts")["summary"]
        steps = summary.get("frames", steps) / summary.get("episodes", 1)
    return steps * min(config.episodes, context.config.env.num_envs)


def _refuse_others(folder: Path, parts: Mapping[str, object]) -> None:
    """Raise `ArtifactError` for shards that are not among `parts`."""
    others = sorted(path.name for path in folder.glob("shard-*.h5") if path.name not in parts)
    if others:
        named = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if others[3:] else "")
        raise ArtifactError(
            f"{folder}: contains {named}, which this run did not make; move these files away, or"
            " choose another run=<name>"
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
                found = tuple(shard.seeds[shard.seeds == shard.parents].tolist())
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
                " and run the same command again, which collects it again"
            )
    return missing


def _collect(
    context: Context,
    folder: StageFolder,
    policy: CollectionPolicy,
    world_spec: RealWorldSpec,
    missing: Parts,
) -> tuple[Parts, float]:
    """Collect the `missing` shards, and what then is missing, until nothing is.

    Returns:
        all shards of the data set, and the rate in frames per second.
    """
    config, spec = context.config.rollouts, context.runtime.env_spec()
    attrs: dict[str, str | int | float] = {
        "env": spec.id,
        "engine": spec.engine,
        "policy": config.policy.name,
        "made_by": folder.record["made_by"],
    }
    began, frames = time.monotonic(), 0
    count = sum(map(len, missing.values()))
    with (
        Progress(f"collecting ({spec.engine})", count, "episodes") as progress,
        context.runtime.pool(world_spec, jobs=len(missing)) as pool,
    ):
        while missing:
            shards = [
                CollectShard(
                    folder.path / name, part, config.max_steps, policy, attrs, config.stall_steps
                )
                for name, part in missing.items()
            ]
            jobs: list[CollectShard | CollectBranches] = [*shards]
            if config.branches is not None and isinstance(policy, NoisyAgent):
                before = config.branch_steps or max(1, BRANCH_STEPS // spec.frame_skip)
                extra = config.branches, before, spec.frame_skip
                jobs = [CollectBranches(shard, *extra) for shard in shards]
            for number, outcome in pool.run(jobs):
                frames += int(outcome.lengths.sum()) + len(outcome.lengths)
                rate = frames / (time.monotonic() - began)
                progress.advance(len(shards[number].seeds), f"{rate:,.0f} frames/s")
            # One that was removed while others were collected is collected again.
            parts, missing = _wanted(context, folder, _parts(context))
    return parts, frames / (time.monotonic() - began)


def _finish(context: Context, folder: StageFolder, names: list[str], rate: float) -> None:
    """Write the pictures, the summary and the manifest of the finished data set."""
    files = [Listed(folder.path / name, made_by=folder.record["made_by"]) for name in names]
    episodes = EpisodeSet.listed(files)
    save_picture(folder.path / "contact_sheet.png", contact_sheet(episodes))
    returns = episodes.returns()[~episodes.branches]
    engine, branches = context.runtime.env_spec().engine, int(episodes.branches.sum())
    folder.finish(
        episodes.fingerprint,
        {"frames/s": rate} if rate else {},
        {
            "episodes": episodes.num_episodes,
            "frames": episodes.num_frames,
            "mean_return": float(returns.mean()),
            "engine": engine,
        }
        | ({"branches": branches} if branches else {}),
        names,
    )
    among = f" ({branches} branches of failures)" if branches else ""
    say(
        f"rollouts: {episodes.num_episodes} episodes{among}, {episodes.num_frames:,} frames,"
        f" mean return {returns.mean():.1f} ({rate:,.0f} frames/s, {engine})"
    )


def _collection_policy(context: Context) -> tuple[CollectionPolicy, RealWorldSpec, dict[str, str]]:
    """The policy that collects, its world, and the fingerprints of the agent that it uses."""
    config, runtime = context.config.rollouts, context.runtime
    if config.policy is ActionSource.action_noise:
        squash = tuple(context.config.env.squash or runtime.controls.squash)
        return NoiseActions(config.action_noise, squash), runtime.real(None), {}
    if config.policy is not ActionSource.controller:
        return RandomActions(config.policy.name, runtime.controls), runtime.real(None), {}
    folder, inputs = _agent_folder(context)
    features = read_agent(folder).config.features
    world = runtime.real(None, folder / "vae.safetensors", folder / "rnn.safetensors", features)
    return (
        NoisyAgent(
            folder,
            config.noise,
            config.ez_greedy_epsilon,
            runtime.controls,
            config.noise_exponent,
            config.action_noise,
        ),
        world,
        inputs,
    )


def _agent_folder(context: Context) -> tuple[Path, dict[str, str]]:
    """The agent that collects, of the run before, ``model=`` or ``base=``, and its fingerprint.

    Raises:
        ConfigError: there is none, or ``model=`` conflicts with the run before.
    """
    earlier, model = context.inputs.collectors, context.inputs.model
    if earlier:
        if model is not None:
            raise ConfigError(
                "model: conflicts with the controller of the run before; remove model="
            )
        last = earlier[-1]
        return agent_of(last), {"controller": last.fingerprint("controller")}
    if model is not None:
        folder = model
    elif context.published is not None:
        folder = context.published
    else:
        alone = context.config.stage is Stage.rollouts  # a chain trains, and takes no model=
        raise ConfigError(
            "rollouts.policy=controller: no agent is given; give the folder of one by"
            f" {'model= or base=' if alone else 'base='}"
        )
    return folder, {"model": agent_fingerprint(folder)}
