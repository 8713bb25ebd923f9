"""Still pictures of what V sees and M dreams."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from worldmodels.artifacts import atomic_path
from worldmodels.data.episodes import EpisodeSet
from worldmodels.models.mdnrnn import MDNRNN
from worldmodels.models.vae import ConvVAE, to_frames, to_input
from worldmodels.worlds.noise import LaneNoise

COLUMNS = 12


def save_picture(path: Path, image: np.ndarray) -> None:
    """Write an image, uint8 (height, width, 3), as PNG."""
    with atomic_path(path) as temporary:
        Image.fromarray(image).save(temporary, format="PNG")


def rows_of(*strips: np.ndarray) -> np.ndarray:
    """One image of strips (frames, height, width, 3), a strip a row, with a white border."""
    rows = []
    for strip in strips:
        bordered = np.pad(strip, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=255)
        rows.append(np.concatenate(list(bordered), axis=1))
    return np.concatenate(rows, axis=0)


@torch.inference_mode()
def save_reconstructions(
    folder: Path,
    vision: ConvVAE,
    episodes: EpisodeSet,
    validation: np.ndarray,
    device: torch.device,
) -> None:
    """Write ``reconstructions.png`` (frames, reconstructions below) and ``prior_samples.png``.

    Args:
        validation: numbers of the episodes to take frames from.
    """
    vision = vision.to(device).eval()
    chosen = np.resize(validation, COLUMNS)
    places = np.linspace(0.1, 0.9, COLUMNS)
    numbers = [int(place * episodes.lengths[i]) for i, place in zip(chosen, places, strict=True)]
    frames = np.concatenate(
        [episodes.frames(int(i), n, n + 1) for i, n in zip(chosen, numbers, strict=True)]
    )
    mean = vision.encode(to_input(torch.from_numpy(frames).to(device))).mean
    save_picture(folder / "reconstructions.png", rows_of(frames, _decode(vision, mean)))
    noise = LaneNoise(range(2 * COLUMNS), 0, device).normal(0, vision.latent_size)
    samples = _decode(vision, noise)
    picture = rows_of(samples[:COLUMNS], samples[COLUMNS:])
    save_picture(folder / "prior_samples.png", picture)


@torch.inference_mode()
def film_strip(
    vision: ConvVAE, memory: MDNRNN, episodes: EpisodeSet, index: int, stride: int = 4
) -> np.ndarray:
    """A recorded episode and three accounts of it, a row each and every `stride`-th frame.

    Rows: the frames; their reconstructions; what M predicted one step before; and a dream at
    temperature 1 that knows the first frame and the actions alone.

    Returns:
        uint8 (4 * 66, 12 * 66, 3).
    """
    episode = episodes.episode(index)
    steps = min((COLUMNS - 1) * stride, len(episode.actions))
    picks = np.linspace(0, steps, COLUMNS).round().astype(int)
    frames = torch.from_numpy(episode.frames[: steps + 1])
    actions = torch.from_numpy(episode.actions[:steps])
    latents = vision.encode(to_input(frames)).mean  # (steps + 1, latent)
    size = vision.latent_size
    uniform, normal = LaneNoise([0], 2, latents.device), LaneNoise([0], 3, latents.device)
    predicted, dreamt = [latents[:1]], [latents[:1]]
    waking = sleeping = memory.initial(1)
    for time in range(steps):
        action = actions[time : time + 1]
        waking = memory.advance(latents[time : time + 1], action, waking)
        predicted.append(memory.predict(waking.h).latent.mode())
        sleeping = memory.advance(dreamt[-1], action, sleeping)
        mixture = memory.predict(sleeping.h).latent
        dreamt.append(mixture.sample(uniform.uniform(time, size), normal.normal(time, size), 1.0))
    accounts = [latents, torch.cat(predicted), torch.cat(dreamt)]
    decoded = [_decode(vision, account[torch.from_numpy(picks)]) for account in accounts]
    return rows_of(episode.frames[picks], *decoded)


def _decode(vision: ConvVAE, latents: torch.Tensor) -> np.ndarray:
    return to_frames(vision.decode(latents)).cpu().numpy()
