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
from worldmodels.config.choices import ActionSource
from worldmodels.data.episodes import EpisodeSet
from worldmodels.data.shards import Shard
from worldmodels.errors import ArtifactError, ConfigError, DataError
from worldmodels.reporting.pictures import contact_sheet, save_picture
from worldmodels.runs.integrity import Listed, set_aside_damaged
from worldmodels.runs.stage_folder import StageFolder
from worldmodels.runs.tracking import Progress, say
from worldmodels.stages.context import Context
from worldmodels.stages.inputs import agent_of
from worldmodels.worlds.branches import CollectBranches
from worldmodels.worlds.collect import CollectionPolicy, CollectShard, NoisyAgent, RandomActions
from worldmodels.worlds.specs import RealWorldSpec

BRANCH_STEPS = 100
"""The meaning of ``rollouts.branch_steps=null``."""


def run(context: Context) -> None:
    """Collect the shards that are missing."""
    config = context.config.rollouts
    if config.policy is not ActionSource.controller:
        config = replace(  # of controllers only
            config,
            noise=0.0,
            action_noise=0.0,
            ez_greedy_epsilon=0.0,
            branches=None,
            branch_steps=None,
        )
    policy, world_spec, inputs = _collection_policy(context)
    growable = ("rollouts.episodes",)
    content = context.runtime.env_content(context.runtime.env_spec())
    with context.begin("rollouts", inputs, growable, **content, rollouts=config) as folder:
        parts = _parts(context)
        _refuse_others(folder.path, parts)
        missing = _missing(folder, parts)
        if missing and folder.complete:
            say(f"rollouts: {len(missing)} of {len(parts)} shards missing: collecting them again")
        if not missing and folder.complete:
            return
        folder.hold()
        known = folder.record.get("files", {})
        folder.keep({name: known[name] for name in parts if name in known and name not in missing})
        rate = 0.0
        while missing:
            rate = _collect(context, folder, policy, world_spec, missing)
            # One that was removed while others were collected is collected again.
            missing = {n: part for n, part in parts.items() if not (folder.path / n).exists()}
        _finish(context, folder, list(parts), rate)


def _parts(context: Context) -> dict[str, tuple[int, ...]]:
    """The shards of the configured data set: name -> seeds of its episodes."""
    config, num_envs = context.config.rollouts, context.config.env.num_envs
    drawn = seeds.draw(
        seeds.Purpose.ROLLOUTS,
        context.config.seed,
        len(context.inputs.collectors),
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
    missing: Mapping[str, tuple[int, ...]],
) -> float:
    """Collect the episodes of the `missing` shards; returns the rate in frames per second."""
    config, spec = context.config.rollouts, context.runtime.env_spec()
    attrs: dict[str, str | int | float] = {
        "env": spec.id,
        "engine": spec.engine,
        "policy": config.policy.name,
        "made_by": folder.record["made_by"],
    }
    shards = [
        CollectShard(folder.path / name, part, config.max_steps, policy, attrs, config.stall_steps)
        for name, part in missing.items()
    ]
    jobs: list[CollectShard | CollectBranches] = [*shards]
    if config.branches is not None and isinstance(policy, NoisyAgent):
        before = config.branch_steps or BRANCH_STEPS
        jobs = [CollectBranches(shard, config.branches, before) for shard in shards]
    began = time.monotonic()
    frames, count = 0, sum(map(len, missing.values()))
    with (
        Progress(f"collecting ({spec.engine})", count, "episodes") as progress,
        context.runtime.pool(world_spec, jobs=len(jobs)) as pool,
    ):
        for number, outcome in pool.run(jobs):
            frames += int(outcome.lengths.sum()) + len(outcome.lengths)
            rate = frames / (time.monotonic() - began)
            progress.advance(len(shards[number].seeds), f"{rate:,.0f} frames/s")
    return frames / (time.monotonic() - began)


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
        raise ConfigError(
            "rollouts.policy=controller: there is no agent to collect; give the folder of one by"
            " model= or base="
        )
    return folder, {"model": agent_fingerprint(folder)}
