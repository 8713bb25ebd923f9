"""Stage ``rnn``: encode the episodes once and train the dynamics model (paper, 4.3, step 3)."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from worldmodels import seeds
from worldmodels.agents.model_files import load_dynamics, load_encoder, save_dynamics
from worldmodels.agents.registry import build_dynamics
from worldmodels.config.choices import LatentChoice
from worldmodels.config.schema import Config
from worldmodels.data.episodes import EpisodeSet
from worldmodels.data.latents import LatentSet
from worldmodels.data.sequences import FailureShare, balanced
from worldmodels.errors import DataError
from worldmodels.files.atomic import write_json
from worldmodels.models.dynamics import DynamicsModel
from worldmodels.reporting.calibration import calibrate
from worldmodels.reporting.snapshots import dynamics_snapshot
from worldmodels.reporting.verdict import CALIBRATION, exceeded_thresholds, in_words
from worldmodels.runs import health
from worldmodels.runs.integrity import (
    Listed,
    fingerprint_arrays,
    set_aside_damaged,
    sha256_of,
    verified,
)
from worldmodels.runs.stage_folder import StageFolder
from worldmodels.runs.tracking import Draw, say
from worldmodels.stages.context import Context
from worldmodels.stages.inputs import check_frames, check_rewards
from worldmodels.stages.runtime import Runtime
from worldmodels.stages.training import call, failure_end, fit_options
from worldmodels.training.copy_baseline import copy_baseline_nll
from worldmodels.training.dynamics import DynamicsTask
from worldmodels.training.encode import encode_episodes
from worldmodels.training.fit import FitResult, fit
from worldmodels.training.ranks import Ranks

if TYPE_CHECKING:
    from lightning_fabric import Fabric

FAILURE_STEPS = 100
"""The meaning of ``rnn.failure_steps=null``."""


def run(context: Context) -> None:
    """Train the dynamics model, and the baselines it is compared with."""
    config = context.config.rnn
    inputs = {"vae": context.run.fingerprint("vae")} | context.inputs.episode_fingerprints()
    inputs |= context.inputs.previous_fingerprint("rnn")
    content: dict[str, object] = {"rnn": config}
    if config.failure_share is not None or config.failure_termination is not None:
        content["rollouts.stall_steps"] = context.config.rollouts.stall_steps
    with context.begin("rnn", inputs, (), **content) as folder:
        if not folder.complete:
            _learn(context, folder)


def _learn(context: Context, folder: StageFolder) -> None:
    config = context.config.rnn
    episodes = context.inputs.episodes()
    check_rewards(episodes, config.reward_weight)
    latents = _latents(context, folder, episodes)
    split = episodes.split(config.validation_fraction, context.config.seed)
    copy_last = None
    if config.baselines:
        sampled = config.latent is LatentChoice.sampled
        copy_last = copy_baseline_nll(latents, *split, sampled, failure_end(context.config))
    followed = _Followed(episodes, copy_last)
    if config.newest_rounds is not None:
        newest = context.inputs.newest(episodes, config.newest_rounds)
        train = balanced(split[0], newest, latents.lengths, context.config.seed)
        split = train, split[1]
    with context.runtime.ranks() as ranks:
        model, result = _train(context, folder, folder.path, latents, split, ranks, 0, followed)
        table, others = {config.model: result.validation["nll"]}, []
        for member in range(1, config.members):
            path = folder.path / f"member_{member + 1}"
            other, found = _train(context, folder, path, latents, split, ranks, member)
            others.append(other)
            table[f"{config.model}, member {member + 1}"] = found.validation["nll"]
        if config.baselines and config.model == "mdn_rnn":
            path = folder.path / "single_gaussian"
            _, single = _train(context, folder, path, latents, split, ranks, 0, mixtures=1)
            table["single_gaussian"] = single.validation["nll"]
    if copy_last is not None:
        table["copy_last"] = copy_last
    starts = latents.first_latents(np.flatnonzero(~episodes.branches))
    save_dynamics(folder.path / "rnn.safetensors", model, starts, others)
    tensors = dict(model.state_dict())
    for number, other in enumerate(others, start=2):
        tensors |= {f"member {number}/{name}": v for name, v in other.state_dict().items()}
    calibrated = _calibrate(context, folder, episodes, latents, split[1])
    folder.finish(
        fingerprint_arrays({name: tensor.cpu().numpy() for name, tensor in tensors.items()}),
        result.rates,
        {"validation_nll": table, **result.validation},
        ["rnn.safetensors", "latents.h5", *calibrated],
    )
    rows = ", ".join(f"{name} {nll:.4f}" for name, nll in table.items())
    say(f"rnn: validation nats per dimension: {rows} ({result.pace})")


def _calibrate(
    context: Context,
    folder: StageFolder,
    episodes: EpisodeSet,
    latents: LatentSet,
    validation: np.ndarray,
) -> list[str]:
    """Measure the calibration on the held-out episodes of this run's own data, which the present
    controller collected; the name of the file, if there are such episodes."""
    held_out = np.intersect1d(validation, context.inputs.newest(episodes))
    if not len(held_out):
        say("rnn: calibration: not measured, for no episode of the newest data was held out")
        return []
    dynamics = load_dynamics(folder.path / "rnn.safetensors")
    stall_steps = context.config.rollouts.stall_steps
    found = calibrate(latents, held_out, dynamics, stall_steps, failure_end(context.config))
    write_json(folder.path / CALIBRATION, found.record())
    say(f"rnn: calibration on {in_words(found)}")
    for reason in exceeded_thresholds(found, context.config.calibration):
        say(f"rnn: calibration: {reason}")
    return [CALIBRATION]


def _latents(context: Context, folder: StageFolder, episodes: EpisodeSet) -> LatentSet:
    """The encoded episodes; the file of an earlier process is used if it is not damaged."""
    made_by, known = folder.record["made_by"], folder.record.get("files", {})
    path = folder.path / "latents.h5"
    file = Listed(path, known.get(path.name), made_by, "it is encoded again")
    if os.path.lexists(path):
        try:
            return LatentSet(file)
        except DataError as error:
            say(f"rnn: {error} ({set_aside_damaged(path)})")
    trained = verified(context.run.locate("vae"), "vae.safetensors")
    encoder = load_encoder(trained)
    check_frames(episodes, encoder.frame_size, trained)
    device, bfloat16 = context.runtime.device, context.runtime.bfloat16
    attrs, known = {"made_by": made_by}, context.inputs.encoded(episodes)
    encode_episodes(episodes, encoder, path, attrs, device, bfloat16, known)
    folder.keep(sha256_of(folder.path, [path.name]))
    return LatentSet(file._replace(sha256=folder.record["files"][path.name]))


class _Followed(NamedTuple):
    """What is shown and judged while a model is trained.

    Args:
        episodes: recorded ones, for a tracker's videos.
        copy_last: likelihood of that baseline, nats per dimension; None without baselines.
    """

    episodes: EpisodeSet
    copy_last: float | None


def _train(
    context: Context,
    folder: StageFolder,
    path: Path,
    latents: LatentSet,
    split: tuple[np.ndarray, np.ndarray],
    ranks: Ranks,
    member: int = 0,
    followed: _Followed | None = None,
    **other: int,
) -> tuple[DynamicsModel, FitResult]:
    """Train one model, with the options `other` instead of the configured ones; see `fit`.

    The `member` of an ensemble, from 0, determines initial weights and order of batches.
    """
    config = context.config.rnn
    fabric = context.runtime.fabric()
    torch.manual_seed(seeds.of_member(context.config.seed, member))
    model = build_dynamics(config, latents.latent_size, latents.action_size, other)
    if not other:
        context.inputs.warm_start("rnn", model, member)
    task = _task(context.config, model, latents, split, fabric, member)
    options = fit_options(context.config, config, config.gradient_clip, folder.record["made_by"])
    part = str(path.relative_to(folder.path))
    options = dataclasses.replace(options, continued=context.inputs.checkpoint("rnn", part))
    called = {
        **call("rnn", context.config, path, options.made_by),
        "latents": str((folder.path / "latents.h5").resolve()),
        "split": [part.tolist() for part in split],
        "member": member,
        "other": other,
    }
    draw: Draw | None = None
    ranges: tuple[health.Range, ...] = ()
    if followed is not None:
        load = partial(load_encoder, context.run.locate("vae") / "vae.safetensors")
        draw = dynamics_snapshot(load, model, followed.episodes, latents, split[1])
        if followed.copy_last is not None:
            steps = sum(task.steps(epoch) for epoch in range(config.epochs))
            ranges = health.of_dynamics(followed.copy_last, steps)
    with context.tracker(dataclasses.replace(folder, path=path), draw, ranges) as tracker:
        ranks.call(called)
        return model, fit(task, path, options, fabric, tracker, ranks)


def _task(
    config: Config,
    model: DynamicsModel,
    latents: LatentSet,
    split: tuple[np.ndarray, np.ndarray],
    fabric: Fabric,
    member: int,
) -> DynamicsTask:
    rnn, failures = config.rnn, None
    if rnn.failure_share is not None:
        steps = FAILURE_STEPS if rnn.failure_steps is None else rnn.failure_steps
        failures = FailureShare(rnn.failure_share, steps, config.rollouts.stall_steps)
    return DynamicsTask(
        model,
        latents,
        split,
        rnn.batch_size,
        rnn.sequence_length,
        seeds.of_member(config.seed, member),
        fabric,
        failures,
        failure_end(config),
    )


def join(config: Config, called: Mapping[str, Any], ranks: Ranks) -> None:
    """Train with rank 0, in another process.

    Args:
        config: of rank 0.
        called: what rank 0 sent.
        ranks: the processes.
    """
    fabric = Runtime(config).fabric()
    latents = LatentSet(Listed(Path(called["latents"]), made_by=called["made_by"]))
    train, validation = (np.array(part) for part in called["split"])
    model = build_dynamics(config.rnn, latents.latent_size, latents.action_size, called["other"])
    task = _task(config, model, latents, (train, validation), fabric, called["member"])
    options = fit_options(config, config.rnn, config.rnn.gradient_clip, called["made_by"])
    fit(task, Path(called["folder"]), options, fabric, None, ranks)
