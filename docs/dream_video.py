"""An agent in the environment, and beside it the same agent in its learned model."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw

import worldmodels
from worldmodels.agents.folder import read_agent
from worldmodels.models.controller import Controllers
from worldmodels.models.encoder import to_frames

STEPS, SCALE, CAPTION = 125, 3, 14
"""Steps of the video, screen pixels of a pixel, and rows of the captions."""


def write_video(folder: Path, path: Path, seed: int, fps: float) -> None:
    """Write a GIF: on the left the environment, on the right an episode of the learned model.

    Args:
        folder: of the agent.
        path: of the GIF.
        seed: of both episodes.
        fps: pictures a second.
    """
    pairs = zip(_in_environment(folder, seed), _in_model(folder, seed), strict=False)
    pictures = [_side_by_side(*pair) for pair in pairs]
    palette = Image.fromarray(np.concatenate([np.asarray(one) for one in pictures[::10]]))
    colours = palette.quantize(64, dither=Image.Dither.NONE)
    reduced = [one.quantize(palette=colours, dither=Image.Dither.NONE) for one in pictures]
    reduced[0].save(path, save_all=True, append_images=reduced[1:], duration=1000 / fps, loop=0)


def _in_environment(folder: Path, seed: int) -> list[np.ndarray]:
    """Frames (size, size, 3) of an episode of the environment."""
    config, agent = read_agent(folder).config, worldmodels.load_agent(folder)
    env = worldmodels.make_env(
        config.env_id,
        crop_rows=config.observation.crop_rows,
        size=config.observation.size,
        frame_skip=config.frame_skip,
    )
    with closing(env):
        frames, _ = env.reset(seed=[seed])  # type: ignore[arg-type]  # gymnasium's stub
        found = [np.array(frames[0])]
        for _ in range(STEPS):
            frames, *_ = env.step(np.asarray(agent.act(frames)))
            found.append(np.array(frames[0]))
    return found


@torch.inference_mode()
def _in_model(folder: Path, seed: int) -> list[np.ndarray]:
    """Frames (size, size, 3) of an episode of the learned model, drawn by the decoder."""
    agent, found = read_agent(folder), []
    parameters = torch.from_numpy(agent.parameters[None].astype(np.float32))
    with closing(worldmodels.make_dream(folder)) as dream:
        features, _ = dream.reset(seed=seed)
        size = features.shape[1]
        controllers = Controllers(parameters, size, agent.config.controller)
        for _ in range(STEPS):
            taken = torch.from_numpy(features)
            latents = taken[:, : agent.encoder.latent_size]
            found.append(to_frames(agent.encoder.decode(latents))[0].numpy())
            features, *_ = dream.step(controllers.act(taken).numpy())
    return found


def _side_by_side(left: np.ndarray, right: np.ndarray) -> Image.Image:
    """Two frames with their captions."""
    gap = np.full((len(left), 1, 3), 255, np.uint8)
    joined = Image.fromarray(np.concatenate([left, gap, right], axis=1))
    joined = joined.resize((joined.width * SCALE, joined.height * SCALE), Image.Resampling.NEAREST)
    picture = Image.new("RGB", (joined.width, joined.height + CAPTION), "white")
    picture.paste(joined, (0, CAPTION))
    draw = ImageDraw.Draw(picture)
    for text, x in (("environment", 2), ("learned model", left.shape[1] * SCALE + SCALE + 2)):
        draw.text((x, 1), text, fill="black")
    return picture
