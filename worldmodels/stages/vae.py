"""Stage ``vae``: train the VAE encoder on the recorded frames (paper, section 4.3, step 2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from worldmodels.agents import pretrained
from worldmodels.agents.model_files import load_encoder, save_encoder
from worldmodels.agents.registry import build_encoder
from worldmodels.config.schema import Config
from worldmodels.data.episodes import EpisodeSet
from worldmodels.errors import DataError
from worldmodels.models.encoder import Encoder
from worldmodels.reporting.pictures import reconstructions, save_pictures
from worldmodels.reporting.snapshots import encoder_snapshot
from worldmodels.runs import health
from worldmodels.runs.integrity import Listed, fingerprint_arrays
from worldmodels.runs.stage_folder import StageFolder
from worldmodels.runs.tracking import say
from worldmodels.stages.context import Context
from worldmodels.stages.inputs import check_frames
from worldmodels.stages.runtime import Runtime
from worldmodels.stages.training import call, fit_options
from worldmodels.training.encoder import EncoderTask
from worldmodels.training.fit import fit
from worldmodels.training.ranks import Ranks


def run(context: Context) -> None:
    """Train an encoder on the recorded frames."""
    config = context.config.vae
    inputs = context.inputs.episode_fingerprints() | context.inputs.previous_fingerprint("vae")
    inputs |= context.inputs.pretrained_fingerprint()
    with context.begin("vae", inputs, (), vae=config) as folder:
        if not folder.complete:
            _train(context, folder)


def _train(context: Context, folder: StageFolder) -> None:
    config, seed = context.config.vae, context.config.seed
    episodes = context.inputs.episodes()
    check_frames(episodes, context.config.env.size, f"env.size={context.config.env.size}")
    split = episodes.split(config.validation_fraction, seed)
    with context.runtime.ranks() as ranks:
        fabric = context.runtime.fabric()
        torch.manual_seed(seed)
        before = context.inputs.previous("vae")
        like = None if before is None else before.path
        model = _model(context.config, like)
        source = context.inputs.pretrained_source()
        if source is not None:
            pretrained.load(model, source)
            if source.address is not None:
                folder.record.setdefault("hub", {})[pretrained.KEY] = source.address
        context.inputs.warm_start("vae", model)
        task = EncoderTask(model, episodes, split, config.batch_size, seed, fabric)
        options = fit_options(context.config, config, None, folder.record["made_by"])
        options = replace(options, continued=context.inputs.checkpoint("vae"))
        called = {
            **call("vae", context.config, folder.path, options.made_by),
            "shards": [str(shard.path.resolve()) for shard in episodes.shards],
            "episodes": episodes.fingerprint,
            "like": None if like is None else str(like.resolve()),
        }
        draw = encoder_snapshot(model, episodes, split[1], fabric.device)
        with context.tracker(folder, draw, health.of_encoder(model.latent_size)) as tracker:
            ranks.call(called)
            result = fit(task, folder.path, options, fabric, tracker, ranks)
    save_encoder(folder.path / "vae.safetensors", model)
    images = reconstructions(model, episodes, split[1], context.runtime.device)
    save_pictures(folder.path, images)
    folder.finish(
        fingerprint_arrays({k: v.cpu().numpy() for k, v in model.state_dict().items()}),
        result.rates,
        result.validation,
        ["vae.safetensors"],
    )
    best = result.validation
    say(
        f"vae: validation loss {best['loss']:.2f} (reconstruction {best['reconstruction']:.2f},"
        f" KL {best['kl']:.2f} nats, {best['active_dims']:.0f} of {config.latent_size} dimensions"
        f" active; {result.pace})"
    )


def _model(config: Config, like: Path | None) -> Encoder:
    """A new encoder, with the sizes of the one in the file `like` that no key gives."""
    return build_encoder(config.vae, config.env.size, None if like is None else load_encoder(like))


def join(config: Config, called: Mapping[str, Any], ranks: Ranks) -> None:
    """Train with rank 0, in another process.

    Args:
        config: of rank 0.
        called: what rank 0 sent.
        ranks: the processes.

    Raises:
        DataError: the episodes are not those of rank 0.
    """
    fabric = Runtime(config).fabric()
    episodes = EpisodeSet.listed([Listed(Path(path)) for path in called["shards"]])
    if episodes.fingerprint != called["episodes"]:
        raise DataError(
            f"{episodes.shards[0].path.parent}: other episodes than in rank 0; put data= on storage"
            " that all nodes share"
        )
    model = _model(config, None if called["like"] is None else Path(called["like"]))
    split = episodes.split(config.vae.validation_fraction, config.seed)
    task = EncoderTask(model, episodes, split, config.vae.batch_size, config.seed, fabric)
    options = fit_options(config, config.vae, None, called["made_by"])
    fit(task, Path(called["folder"]), options, fabric, None, ranks)
