"""Stage ``rnn``: encode the episodes once and train the dynamics model (paper, 4.3, step 3)."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import numpy as np
import torch

from worldmodels.agents.model_files import load_encoder, save_dynamics
from worldmodels.agents.registry import build_dynamics
from worldmodels.data.episodes import EpisodeSet
from worldmodels.data.latents import LatentSet
from worldmodels.errors import DataError
from worldmodels.models.dynamics import DynamicsModel
from worldmodels.runs.integrity import (
    Listed,
    fingerprint_arrays,
    set_aside_damaged,
    sha256_of,
    verified,
)
from worldmodels.runs.stage_folder import StageFolder
from worldmodels.runs.tracking import say
from worldmodels.stages.context import Context
from worldmodels.stages.inputs import check_frames
from worldmodels.training.copy_baseline import copy_baseline_nll
from worldmodels.training.dynamics import DynamicsTask
from worldmodels.training.encode import encode_episodes
from worldmodels.training.fit import FitOptions, FitResult, fit


def run(context: Context) -> None:
    """Train the dynamics model, and the baselines it is compared with."""
    config = context.config.rnn
    inputs = {"vae": context.run.fingerprint("vae")} | context.inputs.episode_fingerprints()
    inputs |= context.inputs.previous_fingerprint("rnn")
    with context.begin("rnn", inputs, (), rnn=config) as folder:
        if not folder.complete:
            _learn(context, folder)


def _learn(context: Context, folder: StageFolder) -> None:
    config = context.config.rnn
    episodes = context.inputs.episodes()
    latents = _latents(context, folder, episodes)
    split = episodes.split(config.validation_fraction, context.config.seed)
    model, result = _train(context, folder, folder.path, latents, split, {})
    table = {config.model: result.validation["nll"]}
    if config.baselines:
        if config.model == "mdn_rnn":
            path = folder.path / "single_gaussian"
            _, single = _train(context, folder, path, latents, split, {"mixtures": 1})
            table["single_gaussian"] = single.validation["nll"]
        table["copy_last"] = copy_baseline_nll(latents, *split, model.sampled)
    save_dynamics(folder.path / "rnn.safetensors", model, latents.first_latents())
    folder.finish(
        fingerprint_arrays({k: v.cpu().numpy() for k, v in model.state_dict().items()}),
        result.rates,
        {"validation_nll": table, **result.validation},
        ["rnn.safetensors", "latents.h5"],
    )
    rows = ", ".join(f"{name} {nll:.4f}" for name, nll in table.items())
    say(f"rnn: validation nats per dimension: {rows} ({result.pace})")


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
    encode_episodes(episodes, encoder, path, {"made_by": made_by}, device, bfloat16)
    folder.keep(sha256_of(folder.path, [path.name]))
    return LatentSet(file._replace(sha256=folder.record["files"][path.name]))


def _train(
    context: Context,
    folder: StageFolder,
    path: Path,
    latents: LatentSet,
    split: tuple[np.ndarray, np.ndarray],
    other: dict[str, int],
) -> tuple[DynamicsModel, FitResult]:
    """Train one model, with the options `other` instead of the configured ones; see `fit`."""
    config, trainer, seed = context.config.rnn, context.config.trainer, context.config.seed
    fabric = context.runtime.fabric()
    torch.manual_seed(seed)
    model = build_dynamics(config, latents.latent_size, latents.action_size, other)
    if not other:
        context.inputs.warm_start("rnn", model)
    task = DynamicsTask(
        model, latents, split, config.batch_size, config.sequence_length, seed, fabric
    )
    options = FitOptions(
        epochs=config.epochs,
        learning_rate=config.learning_rate,
        final_learning_rate=config.final_learning_rate,
        gradient_clip=config.gradient_clip,
        seed=seed,
        checkpoint_seconds=trainer.checkpoint_seconds,
        log_every=trainer.log_every,
        made_by=folder.record["made_by"],
    )
    with context.tracker(dataclasses.replace(folder, path=path)) as tracker:
        return model, fit(task, path, options, fabric, tracker)
