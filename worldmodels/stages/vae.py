"""Stage ``vae``: train the VAE encoder on the recorded frames (paper, section 4.3, step 2)."""

from __future__ import annotations

import torch

from worldmodels.agents.model_files import load_encoder, save_encoder
from worldmodels.agents.registry import build_encoder
from worldmodels.reporting.pictures import save_reconstructions
from worldmodels.runs.integrity import fingerprint_arrays
from worldmodels.runs.stage_folder import StageFolder
from worldmodels.runs.tracking import say
from worldmodels.stages.context import Context
from worldmodels.stages.inputs import check_frames
from worldmodels.training.encoder import EncoderTask
from worldmodels.training.fit import FitOptions, fit


def run(context: Context) -> None:
    """Train an encoder on the recorded frames."""
    config = context.config.vae
    inputs = context.inputs.episode_fingerprints() | context.inputs.previous_fingerprint("vae")
    with context.begin("vae", inputs, (), vae=config) as folder:
        if not folder.complete:
            _train(context, folder)


def _train(context: Context, folder: StageFolder) -> None:
    config, trainer = context.config.vae, context.config.trainer
    fabric = context.runtime.fabric()
    episodes = context.inputs.episodes()
    check_frames(episodes, context.config.env.size, f"env.size={context.config.env.size}")
    split = episodes.split(config.validation_fraction, context.config.seed)
    torch.manual_seed(context.config.seed)
    before = context.inputs.previous("vae")
    model = build_encoder(
        config, context.config.env.size, None if before is None else load_encoder(before.path)
    )
    context.inputs.warm_start("vae", model)
    task = EncoderTask(model, episodes, split, config.batch_size, context.config.seed, fabric)
    options = FitOptions(
        epochs=config.epochs,
        learning_rate=config.learning_rate,
        final_learning_rate=config.final_learning_rate,
        gradient_clip=None,
        seed=context.config.seed,
        checkpoint_seconds=trainer.checkpoint_seconds,
        log_every=trainer.log_every,
        made_by=folder.record["made_by"],
    )
    with context.tracker(folder) as tracker:
        result = fit(task, folder.path, options, fabric, tracker)
    save_encoder(folder.path / "vae.safetensors", model)
    save_reconstructions(folder.path, model, episodes, split[1], context.runtime.device)
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
