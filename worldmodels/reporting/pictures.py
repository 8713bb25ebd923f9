"""Pictures of recorded frames, their reconstructions by the VAE, and predicted frames."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from worldmodels.agents.folder import Agent
from worldmodels.data.clips import clips, read_clip
from worldmodels.data.episodes import EpisodeSet
from worldmodels.data.latents import FirstLatents
from worldmodels.files.atomic import atomic_path
from worldmodels.files.images import png
from worldmodels.models.dynamics import DynamicsModel
from worldmodels.models.encoder import Encoder, to_frames, to_input
from worldmodels.models.features import FeatureSpec
from worldmodels.worlds.dream import DreamWorld
from worldmodels.worlds.noise import EpisodeNoise
from worldmodels.worlds.rollout import PopulationPolicy

COLUMNS = 12
STRIDE = 8
"""Steps between two columns of a picture: open-loop predictions are compared over 88 steps."""
_BATCH = 256
"""Frames that are encoded at once; of clips, all frames count."""


def save_picture(path: Path, image: np.ndarray) -> None:
    """Write an image, uint8 (height, width, 3 or 4), as PNG, atomically."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(png(image))


def save_pictures(folder: Path, images: Mapping[str, np.ndarray]) -> None:
    """Write each image as ``<name>.png`` in `folder`; see `save_picture`."""
    for name, image in images.items():
        save_picture(folder / f"{name}.png", image)


def image_grid(*rows: np.ndarray) -> np.ndarray:
    """Arrange frames in a grid with transparent gaps.

    Args:
        rows: of the grid, each uint8 (columns, height, width, 3).

    Returns:
        uint8 (rows * (height + 2), columns * (width + 2), 4). The gaps have alpha 0, so that they
        take the colour of a light or dark page.
    """
    images = []
    for row in rows:
        opaque = np.pad(row, ((0, 0), (0, 0), (0, 0), (0, 1)), constant_values=255)
        bordered = np.pad(opaque, ((0, 0), (1, 1), (1, 1), (0, 0)))
        images.append(np.concatenate(list(bordered), axis=1))
    return np.concatenate(images, axis=0)


@torch.inference_mode()
def reconstructions(
    model: Encoder, episodes: EpisodeSet, validation_indices: np.ndarray, device: torch.device
) -> dict[str, np.ndarray]:
    """Two pictures of what the VAE has learned, as from `image_grid`.

    ``reconstructions`` has validation frames above their reconstructions, and ``prior_samples``
    frames decoded from z ~ N(0, I), drawn from a fixed seed.

    Args:
        model: VAE; it is left on `device` and in evaluation mode.
        episodes: recorded episodes.
        validation_indices: (n,) numbers of the episodes to take frames from, n at least 1.
        device: where the VAE runs.
    """
    model = model.to(device).eval()
    # One frame from each of several episodes, early ones of the first, late ones of the last.
    found = []
    spread = validation_indices[_spread(len(validation_indices), COLUMNS)]
    for index, place in zip(spread, np.linspace(0.1, 0.9, COLUMNS), strict=True):
        number = int(place * episodes.lengths[index])
        found.append(read_clip(episodes, int(index), number, model.clip_length))
    taken = np.concatenate(found)
    shown = taken if model.clip_length == 1 else taken[:, -1]  # (columns, height, width, 3)
    mean = model.encode(to_input(torch.from_numpy(taken).to(device))).mean
    noise = EpisodeNoise(range(2 * COLUMNS), 0, device).normal(0, model.latent_size)
    samples = decode(model, noise)
    return {
        "reconstructions": image_grid(shown, decode(model, mean)),
        "prior_samples": image_grid(samples[:COLUMNS], samples[COLUMNS:]),
    }


def contact_sheet(episodes: EpisodeSet, rows: int = 6) -> np.ndarray:
    """Frames of some episodes, evenly spaced over the set: an episode a row, from start to end.

    Args:
        episodes: recorded episodes, at least one.
        rows: number of episodes at most.

    Returns:
        uint8 (rows * (height + 2), columns * (width + 2), 4).
    """
    strips = []
    for index in _spread(episodes.num_episodes, min(rows, episodes.num_episodes)):
        steps = _spread(int(episodes.lengths[index]) + 1, COLUMNS)
        strips.append(np.concatenate([episodes.frames(index, at, at + 1) for at in steps]))
    return image_grid(*strips)


def _spread(size: int, count: int) -> list[int]:
    """`count` integers from 0 to `size` - 1, evenly spaced."""
    return [int(number) for number in np.linspace(0, size - 1, count).round()]


@torch.inference_mode()
def dream_sheet(agent: Agent, first: FirstLatents, temperature: float, rows: int = 4) -> np.ndarray:
    """Frames of episodes in an agent's learned model, in which its controller acts.

    Args:
        agent: its parts, on the CPU.
        first: latents at which episodes begin.
        temperature: of the learned model.
        rows: number of episodes.

    Returns:
        uint8 (rows * (height + 2), columns * (width + 2), 4), `STRIDE` steps between two columns.
    """
    spec = agent.config
    world = DreamWorld(agent.dynamics, first, temperature, spec.features, others=agent.others)
    policy = PopulationPolicy(
        agent.parameters[None], rows, world.feature_size, spec.controller, world.device
    )
    features, columns = world.reset(range(rows)), []
    for time in range((COLUMNS - 1) * STRIDE + 1):
        if time % STRIDE == 0:
            columns.append(decode(agent.encoder, world.latents))
        features = world.step(policy.act(features)).features
    return image_grid(*np.stack(columns, axis=1))


class EpisodeComparison(NamedTuple):
    """A recorded episode beside the outputs of the models.

    Args:
        image: uint8 (4 * (height + 2), columns * (width + 2), 4). Rows: recorded frames; their
            reconstructions; one-step predictions; open-loop prediction from the first frame and
            the recorded actions.
        times: (columns,) the step that each column shows.
        seed: of the episode.
    """

    image: np.ndarray
    times: tuple[int, ...]
    seed: int


@torch.inference_mode()
def compare_episode(
    encoder: Encoder,
    dynamics: DynamicsModel,
    episodes: EpisodeSet,
    index: int,
    temperature: float = 1.0,
) -> EpisodeComparison:
    """Compare the first steps of a recorded episode with reconstructions and predictions.

    A one-step prediction is the mean of the likeliest mixture component of each latent dimension;
    the first frame has none, and its place is transparent. The open-loop prediction is sampled by
    `DreamWorld`, the environment in which controllers are trained.

    Args:
        encoder: VAE, float32, on the CPU.
        dynamics: dynamics model, on the CPU.
        episodes: recorded episodes.
        index: number of the episode in `episodes`.
        temperature: of the open-loop prediction.
    """
    episode = episodes.episode(index)
    steps = min((COLUMNS - 1) * STRIDE, len(episode.actions))
    times = np.linspace(0, steps, COLUMNS).round().astype(int)
    actions = torch.from_numpy(episode.actions[:steps])
    latents = posterior_means(encoder, episode.frames[: steps + 1])

    state, modes = dynamics.initial_state(1), []
    for time in range(steps):
        state = dynamics.advance(latents[time : time + 1], actions[time : time + 1], state)
        modes.append(dynamics.predict(state).latent.mode())
    predicted = torch.cat(modes)  # (steps, latent): of the frames after the first

    # A log-variance of -inf: the dream starts from the posterior mean of the first frame.
    certain = np.full((1, encoder.latent_size), -np.inf, np.float32)
    first = FirstLatents(latents[:1].numpy(), certain)
    dream = DreamWorld(dynamics, first, temperature, FeatureSpec(state=()))
    open_loop = [dream.reset([episode.seed])]
    for time in range(steps):
        open_loop.append(dream.step(actions[time : time + 1]).features)

    rows = [
        episode.frames[times],
        decode(encoder, latents[times]),
        decode(encoder, predicted[times - 1]),
        decode(encoder, torch.cat(open_loop)[times]),
    ]
    image = image_grid(*rows)
    height, width = (side + 2 for side in episode.frames.shape[1:3])
    image[2 * height : 3 * height, :width] = 0
    return EpisodeComparison(image, tuple(times.tolist()), episode.seed)


def posterior_means(encoder: Encoder, frames: np.ndarray) -> Tensor:
    """Posterior means (T + 1, Z) of an episode's frames (T + 1, height, width, 3) uint8."""
    means = []
    rows = max(1, _BATCH // encoder.clip_length)
    for start in range(0, len(frames), rows):
        part = clips(frames, start, min(start + rows, len(frames)), encoder.clip_length)
        means.append(encoder.encode(to_input(torch.from_numpy(part))).mean)
    return torch.cat(means)


def decode(encoder: Encoder, latents: Tensor) -> np.ndarray:
    """Frames, uint8 (batch, height, width, 3), decoded from latents (batch, latent)."""
    frames: np.ndarray = to_frames(encoder.decode(latents)).cpu().numpy()
    return frames
