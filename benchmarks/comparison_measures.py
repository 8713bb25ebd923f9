"""What ``benchmarks/model_comparison.py`` measures: epochs of equal time, the models of a row, and
the picture of an environment.

Seconds are of processor time, which other programs on the machine change little: everything runs on
one thread. The share of it in the time of a part is that in the whole stage or measurement.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from worldmodels.agents.model_files import load_dynamics, load_encoder
from worldmodels.config.schema import Config
from worldmodels.data.episodes import EpisodeSet
from worldmodels.data.latents import LatentSet
from worldmodels.files.atomic import read_json
from worldmodels.models.dynamics import DynamicsModel
from worldmodels.models.encoder import Encoder
from worldmodels.reporting.calibration import calibrate
from worldmodels.reporting.closed_loop import read_horizons
from worldmodels.reporting.open_loop import open_loop_world, under_recorded_actions
from worldmodels.reporting.pictures import compare_episode, decode, posterior_means
from worldmodels.runs.manifests import read_manifest
from worldmodels.runs.provenance import provenance
from worldmodels.stages.calibration import models
from worldmodels.stages.calibration.setting import Setting
from worldmodels.training.encode import encode_episodes

STEPS = (1, 3, 10, 30, 100)
"""Steps after which the open-loop error is stated."""
PAIRED = 2000
"""Frames whose differences are those of unrelated frames; half of them are reconstructed."""
UNITS = {"vae": "images/s", "rnn": "transitions/s"}
"""Stage -> the unit of its throughput."""


class Folders(NamedTuple):
    """The finished stages of a row.

    Args:
        vae: of the encoder.
        rnn: of the dynamics model.
        trained: world of the controller's training -> folder of the run with ``controller`` and
            ``evaluate``: ``dream``, and where the row has it ``real``.
    """

    vae: Path
    rnn: Path
    trained: Mapping[str, Path]


def budget(
    config: Config, episodes: EpisodeSet, stage: str, seconds: float, probe: float
) -> dict[str, Any]:
    """The epochs that take about so many seconds, and the measurement that they are chosen by.

    Args:
        config: of the stage; its model and batches are trained as the stage trains them, the
            dynamics model on random latents.
        episodes: training data of the stage.
        stage: ``vae`` or ``rnn``.
        seconds: of processor time, validation included. At least one epoch is trained.
        probe: seconds of the measurement.
    """
    began, worked = time.perf_counter(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        setting = Setting(config, Path(folder), probe)
        if stage == "vae":
            rate = models.vae(setting, episodes)
        else:
            rate = models.rnn(setting, episodes.episode(0).actions.shape[1])
    busy = (time.process_time() - worked) / (time.perf_counter() - began)
    split = _split(config, episodes, stage)
    train, validation = (_computed(config, episodes, part, stage) for part in split)
    epoch_s = busy * (train / rate.training + validation / rate.validation)
    return {
        "epochs": max(1, round(seconds / epoch_s)),
        "epoch_s": epoch_s,
        UNITS[stage]: rate.training / busy,
        "machine": provenance()["machine"],
    }


def _split(config: Config, episodes: EpisodeSet, stage: str) -> tuple[np.ndarray, np.ndarray]:
    return episodes.split(getattr(config, stage).validation_fraction, config.seed)


def _count(episodes: EpisodeSet, part: np.ndarray, stage: str) -> int:
    """Frames of some episodes, or their transitions."""
    return int((episodes.lengths[part] + (stage == "vae")).sum())


def _computed(config: Config, episodes: EpisodeSet, part: np.ndarray, stage: str) -> int:
    """Frames of some episodes, or their transitions and the padding of their last windows, which
    takes as long: the measurement has none."""
    if stage == "vae":
        return _count(episodes, part, stage)
    lengths = episodes.lengths[part]
    window = config.rnn.sequence_length or int(lengths.max())
    return int((-(-lengths // window) * window).sum())


def trained(
    folder: Path, config: Config, episodes: EpisodeSet, model: torch.nn.Module
) -> dict[str, Any]:
    """What the training of a model took.

    ``training_s`` is the time of its steps: what they trained on, divided by the throughput.
    ``stage_s`` is that of the stage: with validation, encoding, pictures; ``wall_s`` is its time by
    the clock.

    Args:
        folder: of the finished stage ``vae`` or ``rnn``.
        config: of the stage.
        episodes: its training data.
        model: that it made.
    """
    manifest, stage = read_manifest(folder), folder.name
    epochs, rate = manifest["config"][f"{stage}.epochs"], throughput(manifest, UNITS[stage])
    seen = epochs * _count(episodes, _split(config, episodes, stage)[0], stage)
    return {
        "parameters": sum(part.numel() for part in model.parameters()),
        "epochs": epochs,
        "learning_rate": manifest["config"][f"{stage}.learning_rate"],
        "training_s": seen / rate,
        "stage_s": manifest["resources"]["cpu_s"],
        "wall_s": manifest["wall_s"],
        UNITS[stage]: rate,
        "peak_bytes": max(manifest["resources"]["peak_bytes"].values()),
        "validation": manifest["summary"],
        "machine": manifest["machine"],
        "commit": manifest["commit"],
    }


def throughput(manifest: Mapping[str, Any], unit: str) -> float:
    """A rate of a finished stage that ran on one core, per second of processor time."""
    return float(manifest["throughput"][unit] / manifest["resources"]["cpu_share"])


def measure(
    folders: Folders, config: Config, episodes: EpisodeSet, held_out: EpisodeSet
) -> dict[str, Any]:
    """The measures of a row and a seed.

    Args:
        folders: its finished stages.
        config: of their commands.
        episodes: training data.
        held_out: episodes that nothing was trained or selected on.
    """
    encoder = load_encoder(folders.vae / "vae.safetensors")
    dynamics = load_dynamics(folders.rnn / "rnn.safetensors")
    return {
        "encoder": trained(folders.vae, config, episodes, _module(encoder)),
        "dynamics": trained(folders.rnn, config, episodes, _module(dynamics)),
        "nll": read_manifest(folders.rnn)["summary"]["nll"],
        "open_loop": open_loop_errors(encoder, dynamics, held_out),
        "calibration": calibrated(encoder, dynamics, held_out),
        "controllers": {world: controller(run) for world, run in folders.trained.items()},
    }


def _module(model: Encoder | DynamicsModel) -> torch.nn.Module:
    assert isinstance(model, torch.nn.Module)
    return model


@torch.inference_mode()
def open_loop_errors(
    encoder: Encoder, dynamics: DynamicsModel, held_out: EpisodeSet
) -> dict[str, Any]:
    """Errors of frames, predicted from the first one and the recorded actions at temperature 1.

    They are root mean squares over episodes and pixels, as shares of that between unrelated frames,
    so that encoders are comparable.

    Returns:
        ``reconstruction``, the error of reconstructed frames; and ``errors``, a row for each of
        `STEPS` that an episode is long enough for, with the number of these episodes.
    """
    episodes = [held_out.episode(number) for number in range(held_out.num_episodes)]
    latents = [posterior_means(encoder, episode.frames) for episode in episodes]
    frames = np.concatenate([episode.frames for episode in episodes])
    order = np.random.default_rng(0).permutation(len(frames))[:PAIRED]
    first, second = order[: len(order) // 2], order[(len(order) + 1) // 2 :]
    unrelated = _difference(frames[first], frames[second])
    reconstructed = decode(encoder, torch.cat(latents)[first])
    world, rows = open_loop_world(dynamics, 1.0), []
    world.begin(torch.stack([mean[0] for mean in latents]), [one.seed for one in episodes])
    for before, running, _ in under_recorded_actions(world, [one.actions for one in episodes]):
        if (steps := before + 1) in STEPS:
            recorded = np.stack([episodes[number].frames[steps] for number in running])
            error = _difference(decode(encoder, world.latents), recorded) / unrelated
            rows.append({"steps": steps, "episodes": len(running), "error": error})
    return {
        "reconstruction": _difference(reconstructed, frames[first]) / unrelated,
        "errors": rows,
    }


def _difference(frames: np.ndarray, others: np.ndarray) -> float:
    """The root mean square of the difference of frames, uint8."""
    return float(np.sqrt(np.square(frames.astype(np.float32) - others).mean()))


def calibrated(encoder: Encoder, dynamics: DynamicsModel, held_out: EpisodeSet) -> dict[str, Any]:
    """The calibration of rewards and terminations on held-out episodes."""
    with tempfile.TemporaryDirectory() as folder:
        path, cpu = Path(folder) / "latents.h5", torch.device("cpu")
        encode_episodes(held_out, encoder, path, {}, cpu, bfloat16=False)
        found = calibrate(LatentSet(path), np.arange(held_out.num_episodes), dynamics)
    return found.record()


def controller(run: Path) -> dict[str, Any]:
    """The scores of a controller and its training.

    Args:
        run: folder with its stages ``controller`` and ``evaluate``.
    """
    search = read_manifest(run / "controller")
    return {
        "steps": search["summary"]["steps"],
        "generations": search["summary"]["generations"],
        "steps/s": throughput(search, "steps/s"),
        "wall_s": search["wall_s"],
        "peak_bytes": max(search["resources"]["peak_bytes"].values()),
        "scores": read_json(run / "evaluate" / "scores.json"),
        "horizons": [asdict(one) for one in read_horizons(run / "evaluate")],
    }


def dreams(
    encoder: Encoder, dynamics: Sequence[DynamicsModel], held_out: EpisodeSet
) -> tuple[np.ndarray, int]:
    """The longest held-out episode beside open-loop predictions of it.

    Args:
        encoder: of all models, float32, on the CPU.
        dynamics: models on the latents of `encoder`.
        held_out: recorded episodes.

    Returns:
        the picture: recorded frames, their reconstructions, and a row of predictions for each
        model, from the first frame and the recorded actions at temperature 1; and the episode's
        seed.
    """
    longest = int(held_out.lengths.argmax())
    found = [compare_episode(encoder, model, held_out, longest) for model in dynamics]
    height = held_out.frame_shape[0] + 2
    rows = [found[0].image[: 2 * height], *(one.image[3 * height :] for one in found)]
    return np.concatenate(rows), found[0].seed
