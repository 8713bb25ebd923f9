"""Still pictures of what V sees and M dreams."""

from __future__ import annotations

import io
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from worldmodels.data.episodes import EpisodeSet
from worldmodels.data.latents import FirstLatents
from worldmodels.files import atomic_path
from worldmodels.models.dynamics import DynamicsModel
from worldmodels.models.encoder import Encoder, to_frames, to_input
from worldmodels.models.features import FeatureSpec
from worldmodels.worlds.dream import DreamWorld
from worldmodels.worlds.noise import LaneNoise

COLUMNS = 12
STRIDE = 8
"""Steps between two frames of a film strip: 88 steps are what a dream stays recognisable for."""


def png(image: np.ndarray) -> bytes:
    """An image, uint8 (height, width, 3) or with alpha (height, width, 4), as PNG."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def save_picture(path: Path, image: np.ndarray) -> None:
    """Write an image, uint8 (height, width, 3 or 4), as PNG, atomically."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(png(image))


def rows_of(*strips: np.ndarray) -> np.ndarray:
    """One image of strips (frames, height, width, 3), a strip a row, with clear gaps between.

    Returns:
        uint8 (strips * (height + 2), frames * (width + 2), 4): the gaps have alpha 0, so that
        they are light on a light page and dark on a dark one.
    """
    rows = []
    for strip in strips:
        opaque = np.pad(strip, ((0, 0), (0, 0), (0, 0), (0, 1)), constant_values=255)
        bordered = np.pad(opaque, ((0, 0), (1, 1), (1, 1), (0, 0)))
        rows.append(np.concatenate(list(bordered), axis=1))
    return np.concatenate(rows, axis=0)


@torch.inference_mode()
def save_reconstructions(
    folder: Path,
    model: Encoder,
    episodes: EpisodeSet,
    validation_indices: np.ndarray,
    device: torch.device,
) -> None:
    """Write ``reconstructions.png`` (frames, reconstructions below) and ``prior_samples.png``.

    Args:
        model: V; it is left on `device` and in evaluation mode.
        validation_indices: numbers of the episodes to take frames from.
    """
    model = model.to(device).eval()
    # Across the episodes, and from early in the first to late in the last.
    frames = []
    spread = validation_indices[_spread(len(validation_indices), COLUMNS)]
    for index, place in zip(spread, np.linspace(0.1, 0.9, COLUMNS), strict=True):
        number = int(place * episodes.lengths[index])
        frames.append(episodes.frames(int(index), number, number + 1))
    shown = np.concatenate(frames)  # (columns, height, width, 3)
    mean = model.encode(to_input(torch.from_numpy(shown).to(device))).mean
    save_picture(folder / "reconstructions.png", rows_of(shown, decode(model, mean)))
    noise = LaneNoise(range(2 * COLUMNS), 0, device).normal(0, model.latent_size)
    samples = decode(model, noise)
    picture = rows_of(samples[:COLUMNS], samples[COLUMNS:])
    save_picture(folder / "prior_samples.png", picture)


def contact_sheet(episodes: EpisodeSet, rows: int = 6) -> np.ndarray:
    """Some episodes spread over the set, each a row of frames from start to end.

    Returns:
        uint8 (rows * (height + 2), columns * (width + 2), 4).
    """
    strips = []
    for index in _spread(episodes.num_episodes, min(rows, episodes.num_episodes)):
        steps = _spread(int(episodes.lengths[index]) + 1, COLUMNS)
        strips.append(np.concatenate([episodes.frames(index, at, at + 1) for at in steps]))
    return rows_of(*strips)


def _spread(size: int, count: int) -> list[int]:
    """`count` numbers from 0 to `size` - 1, evenly."""
    return [int(number) for number in np.linspace(0, size - 1, count).round()]


class DreamStrip(NamedTuple):
    """A recorded episode and three accounts of it.

    Args:
        image: uint8 (4 * (height + 2), columns * (width + 2), 4); rows: the frames; their
            reconstructions; what M predicted one step before; a dream that knows the first frame
            and the actions alone.
        times: (columns,) the step that each column shows.
        seed: of the episode.
    """

    image: np.ndarray
    times: tuple[int, ...]
    seed: int


@torch.inference_mode()
def dream_strip(
    vision: Encoder,
    memory: DynamicsModel,
    episodes: EpisodeSet,
    index: int,
    temperature: float = 1.0,
) -> DreamStrip:
    """Compare episode `index` with what V and M, both on the CPU, make of it.

    A prediction is the mean of each dimension's likeliest Gaussian; the first frame has none and
    is left clear. The dream is `DreamWorld`'s, as controllers are trained in it.
    """
    episode = episodes.episode(index)
    steps = min((COLUMNS - 1) * STRIDE, len(episode.actions))
    times = np.linspace(0, steps, COLUMNS).round().astype(int)
    actions = torch.from_numpy(episode.actions[:steps])
    latents = vision.encode(to_input(torch.from_numpy(episode.frames[: steps + 1]))).mean

    state, modes = memory.initial_state(1), []
    for time in range(steps):
        state = memory.advance(latents[time : time + 1], actions[time : time + 1], state)
        modes.append(memory.predict(state).latent.mode())
    predicted = torch.cat(modes)  # (steps, latent): of the frames after the first

    certain = np.full((1, vision.latent_size), -np.inf, np.float32)
    first = FirstLatents(latents[:1].numpy(), certain)
    dream = DreamWorld(memory, first, temperature, FeatureSpec(state=()))
    dreamt = [dream.reset([episode.seed])]
    for time in range(steps):
        dreamt.append(dream.step(actions[time : time + 1]).features)

    rows = [
        episode.frames[times],
        decode(vision, latents[times]),
        decode(vision, predicted[times - 1]),
        decode(vision, torch.cat(dreamt)[times]),
    ]
    image = rows_of(*rows)
    height, width = (side + 2 for side in episode.frames.shape[1:3])
    image[2 * height : 3 * height, :width] = 0
    return DreamStrip(image, tuple(times.tolist()), episode.seed)


def decode(vision: Encoder, latents: Tensor) -> np.ndarray:
    """Frames (batch, height, width, 3) uint8 of latents (batch, latent)."""
    frames: np.ndarray = to_frames(vision.decode(latents)).cpu().numpy()
    return frames
