"""Pictures and videos of a training that goes on, for trackers: see `MetricsLog.show`.

All are made of the same few episodes each time, without random numbers of the process, and leave
the models as they are.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from worldmodels.data.episodes import EpisodeSet
from worldmodels.data.latents import LatentSet
from worldmodels.models.controller import ControllerSpec
from worldmodels.models.dynamics import DynamicsModel
from worldmodels.models.encoder import Encoder
from worldmodels.reporting.open_loop import open_loop_world, under_recorded_actions
from worldmodels.reporting.pictures import decode, image_grid, reconstructions
from worldmodels.runs.tracking import Draw
from worldmodels.worlds.dream import DreamWorld
from worldmodels.worlds.novelty import NoveltyWorld
from worldmodels.worlds.real import RealWorld
from worldmodels.worlds.rollout import PopulationPolicy, rollout
from worldmodels.worlds.world import Step, World

EPISODES = 4
"""Validation episodes in the video of open-loop predictions."""
STEPS, STRIDE = 100, 4
"""Steps of these predictions, and between two frames of their video."""
FRAMES = 100
"""Of the video of an agent's episode, at most."""
_GREY = 128


def encoder_snapshot(
    model: Encoder, episodes: EpisodeSet, validation: np.ndarray, device: torch.device
) -> Draw:
    """Draws ``vae/reconstructions`` and ``vae/prior_samples``; see `reconstructions`.

    Args:
        model: VAE that is trained, on `device`.
        episodes: recorded episodes.
        validation: (n,) numbers of the validation episodes.
        device: of the model.
    """

    def draw() -> dict[str, np.ndarray]:
        images = reconstructions(model, episodes, validation, device)
        # Trackers show a picture in a narrow column: the halves below one another.
        halves = {name: np.split(_opaque(image), 2, axis=1) for name, image in images.items()}
        return {f"vae/{name}": np.concatenate(parts)[None] for name, parts in halves.items()}

    return draw


def dynamics_snapshot(
    load: Callable[[], Encoder],
    model: DynamicsModel,
    episodes: EpisodeSet,
    latents: LatentSet,
    validation: np.ndarray,
) -> Draw:
    """Draws ``rnn/open_loop``, a video of `EPISODES` validation episodes: a column each, recorded
    frames above the open-loop prediction from the first frame and the recorded actions.

    Args:
        load: reads the VAE, float32, on the CPU; called once, for the first video.
        model: dynamics model that is trained.
        episodes: recorded episodes.
        latents: the same, encoded.
        validation: (n,) numbers of the validation episodes.
    """
    loaded: list[Encoder] = []
    chosen = validation[:EPISODES]
    times = np.arange(0, STEPS + 1, STRIDE)

    @torch.inference_mode()
    def draw() -> dict[str, np.ndarray]:
        if not loaded:
            loaded.append(load())
        world = open_loop_world(copy.deepcopy(model), temperature=1.0)  # it moves its model
        encoded = [latents.read(int(i), 0, min(STEPS, int(latents.lengths[i]))) for i in chosen]
        starts = torch.from_numpy(np.stack([episode.mean[0] for episode in encoded]))
        world.begin(starts, [episode.seed for episode in encoded])
        # (times, episodes, Z): an episode that has ended keeps its last latent.
        predicted = world.latents.repeat(len(times), 1, 1)
        for time, rows, _ in under_recorded_actions(world, [one.actions for one in encoded]):
            later = torch.from_numpy(np.flatnonzero(times > time))[:, None]
            predicted[later, torch.from_numpy(rows)] = world.latents
        columns = []
        for row, index in enumerate(chosen):
            last = int(episodes.lengths[index])
            frames = [episodes.frames(int(index), at, at + 1) for at in np.minimum(times, last)]
            columns.append([np.concatenate(frames), decode(loaded[0], predicted[:, row])])
        recorded, dreamt = (np.stack(part, axis=1) for part in zip(*columns, strict=True))
        video = [_opaque(image_grid(*pair)) for pair in zip(recorded, dreamt, strict=True)]
        return {"rnn/open_loop": np.stack(video)}

    return draw


def agent_snapshot(
    build: Callable[[], World], encoder: Encoder, spec: ControllerSpec, seed: int, max_steps: int
) -> Draw:
    """Draws ``controller/episode``, a video of an episode of the parameters it is given: in the
    environment beside the VAE's reconstruction; in the learned model decoded from the latents.

    Args:
        build: makes the world, which is closed after the episode.
        encoder: VAE, float32, on the CPU.
        spec: layers of the controller.
        seed: of the episode.
        max_steps: its time limit in steps.
    """

    def draw(parameters: np.ndarray) -> dict[str, np.ndarray]:
        world = build()
        try:
            video = _Video(max(1, -(-max_steps // FRAMES)))
            policy = PopulationPolicy(parameters[None], 1, world.feature_size, spec, world.device)
            rollout(world, policy, [seed], max_steps, video)
        finally:
            world.close()
        return {"controller/episode": video.frames(encoder)}

    return draw


class _Video:
    """A `Recorder` of a world of one environment.

    Args:
        stride: steps between two frames.
    """

    def __init__(self, stride: int) -> None:
        self._stride, self._time = stride, 0
        self._frames: list[np.ndarray] = []
        self._latents: list[Tensor] = []

    def begin(self, world: World) -> None:
        """Record the first frame."""
        self._take(world)

    def record(self, indices: np.ndarray, actions: Tensor, step: Step, world: World) -> None:
        """Record a frame where it is time for one."""
        self._time += 1
        if self._time % self._stride == 0:
            self._take(world)

    def _take(self, world: World) -> None:
        assert isinstance(world, RealWorld | DreamWorld | NoveltyWorld)
        if isinstance(world, RealWorld):
            self._frames.append(world.frames[:1].copy())
        self._latents.append(world.latents[:1].float().cpu())

    @torch.inference_mode()
    def frames(self, encoder: Encoder) -> np.ndarray:
        """The video, uint8 (frames, height, width, 3)."""
        decoded = decode(encoder, torch.cat(self._latents))
        if not self._frames:
            return decoded
        pairs = zip(np.concatenate(self._frames), decoded, strict=True)
        return np.stack([_opaque(image_grid(np.stack(pair))) for pair in pairs])


def _opaque(image: np.ndarray) -> np.ndarray:
    """An image of `image_grid` with grey gaps, uint8 (height, width, 3)."""
    opaque: np.ndarray = np.where(image[..., 3:] > 0, image[..., :3], np.uint8(_GREY))
    return opaque
