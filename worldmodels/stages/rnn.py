"""Stage ``rnn``: encode the episodes once, then train M on them (paper, section 4.3, step 3)."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import numpy as np
import torch

from worldmodels.agent import load_vision, save_memory
from worldmodels.artifacts import StageFolder, fingerprint_arrays
from worldmodels.config import LatentChoice
from worldmodels.data.episodes import EpisodeSet
from worldmodels.data.latents import LatentSet
from worldmodels.errors import DataError
from worldmodels.integrity import Listed, set_aside_damaged, sha256_of, verified
from worldmodels.models.mdnrnn import MDNRNN
from worldmodels.stages.context import Context
from worldmodels.tracking import say
from worldmodels.training.copy_baseline import copy_baseline_nll
from worldmodels.training.encode import encode_episodes
from worldmodels.training.fit import FitOptions, FitResult, fit
from worldmodels.training.memory import MemoryTask


def run(context: Context) -> None:
    """Train an MDN-RNN, and the single-Gaussian head it is compared with."""
    config = context.config.rnn
    inputs = {"vae": context.run.fingerprint("vae")} | context.rollout_fingerprints()
    inputs |= context.initial_fingerprint("rnn")
    with context.begin("rnn", inputs, (), rnn=config) as folder:
        if not folder.complete:
            _learn(context, folder)


def _learn(context: Context, folder: StageFolder) -> None:
    config = context.config.rnn
    episodes = context.episodes()
    latents = _latents(context, folder, episodes)
    split = episodes.split(config.validation_fraction, context.config.seed)
    model, result = _train(context, folder, folder.path, latents, split, config.mixtures)
    table = {"mdn_rnn": result.validation["nll"]}
    if config.baselines:
        path = folder.path / "single_gaussian"
        _, single = _train(context, folder, path, latents, split, 1)
        table["single_gaussian"] = single.validation["nll"]
        table["copy_last"] = copy_baseline_nll(latents, *split, model.sampled)
    save_memory(folder.path / "rnn.safetensors", model, latents.first_latents())
    folder.finish(
        fingerprint_arrays({k: v.cpu().numpy() for k, v in model.state_dict().items()}),
        result.rates,
        {"validation_nll": table, **result.validation},
        ["rnn.safetensors", "latents.h5"],
    )
    rows = ", ".join(f"{name} {nll:.4f}" for name, nll in table.items())
    say(f"rnn: validation nats per dimension: {rows} ({result.pace})")


def _latents(context: Context, folder: StageFolder, episodes: EpisodeSet) -> LatentSet:
    """The encoded episodes; those that a process before this one wrote, if they are whole."""
    made_by, known = folder.record["made_by"], folder.record.get("files", {})
    path = folder.path / "latents.h5"
    file = Listed(path, known.get(path.name), made_by, "it is encoded again")
    if os.path.lexists(path):
        try:
            return LatentSet(file)
        except DataError as error:
            say(f"rnn: {error} ({set_aside_damaged(path)})")
    vision = load_vision(verified(context.run.locate("vae"), "vae.safetensors")).to(context.device)
    attrs = {"made_by": made_by}
    encode_episodes(episodes, vision, path, attrs, context.device, context.bfloat16)
    folder.keep(sha256_of(folder.path, [path.name]))
    return LatentSet(file._replace(sha256=folder.record["files"][path.name]))


def _train(
    context: Context,
    folder: StageFolder,
    path: Path,
    latents: LatentSet,
    split: tuple[np.ndarray, np.ndarray],
    mixtures: int,
) -> tuple[MDNRNN, FitResult]:
    """Train one RNN with `mixtures` Gaussians a dimension, everything else equal."""
    config, trainer, seed = context.config.rnn, context.config.trainer, context.config.seed
    fabric = context.fabric()
    torch.manual_seed(seed)
    model = MDNRNN(
        latents.latent_size,
        latents.action_size,
        config.hidden_size,
        mixtures,
        config.shared_mixture,
        config.latent is LatentChoice.sampled,
        config.restart,
        config.reward_weight,
        config.termination_weight,
        config.death_weight,
    )
    if mixtures == config.mixtures:
        context.warm_start("rnn", model)
    task = MemoryTask(
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
