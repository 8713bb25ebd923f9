"""A trained agent as a policy: an environment's own frames in, its own actions out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from gymnasium import Space
from gymnasium.spaces import Box
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray
from torch import Tensor

from worldmodels.agents.description import AgentConfig
from worldmodels.agents.folder import Agent
from worldmodels.envs.vector import check_actions
from worldmodels.errors import WorldModelsError
from worldmodels.models.dynamics import State, replace_rows, reset_rows
from worldmodels.system.devices import has_bfloat16
from worldmodels.worlds.clips import Clips
from worldmodels.worlds.noise import EpisodeNoise
from worldmodels.worlds.real import LATENT_STREAM, Perception
from worldmodels.worlds.rollout import PopulationPolicy

ActionChoice = Callable[[NDArray[np.float32]], NDArray[np.float32]]
"""From the features of N episodes, (N, F), to actions as the dynamics model takes them, (N, A)."""


class AgentPolicy:
    """Acts in an environment as the pipeline's agent does in the stage ``evaluate``.

    A frame is cropped, reduced and encoded; the controller computes the action from the latent and
    the dynamics model's state; the state is advanced with the action, for the next call. So `act`
    is called once for each step of the environment, and `reset` where an episode begins. An agent
    that was trained with a frame skip decides in one call of so many, and returns the same action
    in those between.

    Args:
        agent: encoder, dynamics model and controller; the policy takes over the models.
        folder: where they were read from.
        device: of the models.
        seed: of the random draws of an agent that samples its latents; others make none.
    """

    config: AgentConfig
    """The environment's id, its observations and actions, and the controller's features."""
    folder: Path
    """Where the agent was read from."""
    parameters: NDArray[np.float32]
    """Of the controller, (size,)."""
    device: torch.device
    """Of the models."""

    _noise: EpisodeNoise
    _state: State  # of the dynamics model, after the step before
    _actions: Tensor  # (N, action), of the step before
    _time: Tensor  # (N,) int64, steps of the environment since the episode began
    _clips: Clips
    _controller: PopulationPolicy
    _vectors: Space[NDArray[np.float32]]  # of N actions as the dynamics model takes them

    def __init__(self, agent: Agent, folder: Path, device: torch.device, seed: int) -> None:
        self.config, self.folder, self.device = agent.config, folder, device
        dtype = torch.bfloat16 if has_bfloat16(device) else torch.float32
        self._encoder = agent.encoder.to(device, dtype)
        self._dynamics = agent.dynamics.to(device)
        self.parameters = agent.parameters
        self._perception = Perception(
            self._encoder, self._dynamics, agent.config.features, device, dtype
        )
        self._generator = np.random.default_rng(seed)
        self._rows = 0
        self._seed: int | None = None

    @torch.inference_mode()
    def reset(self, mask: NDArray[np.bool_] | None = None, *, seed: int | None = None) -> None:
        """Begin new episodes: the next frames are their first ones.

        Args:
            mask: (N,) bool, the rows of the batch that begin a new episode; None is all, and the
                next batch may have another number of rows.
            seed: row i draws as the pipeline does in the episode of seed ``seed + i``; None takes
                seeds from the generator that was seeded when the agent was loaded.

        Raises:
            WorldModelsError: the mask does not fit the batch.
        """
        if mask is None:
            self._rows, self._seed = 0, seed
            return
        mask = np.asarray(mask)
        if mask.dtype != np.bool_ or mask.shape != (self._rows,):
            raise WorldModelsError(
                f"mask: is {mask.dtype} {mask.shape}, not bool ({self._rows},); give one bool for"
                " each row of the last batch"
            )
        if not mask.any():
            return
        index = torch.from_numpy(mask).to(self.device)
        self._noise.restart(index, self._seeds(np.flatnonzero(mask), seed))
        self._state = reset_rows(self._dynamics, self._state, index)
        self._actions = self._actions * ~index.unsqueeze(1)
        self._time = self._time * ~index

    @torch.inference_mode()
    def act(
        self,
        frames: NDArray[np.uint8] | Tensor | Sequence[NDArray[np.uint8]],
        choose: ActionChoice | None = None,
    ) -> NDArray[np.float32] | NDArray[np.int64] | int:
        """The next action of each episode.

        Args:
            frames: uint8, (H, W, 3) of one environment or (N, H, W, 3) of N, as the environment
                returns them; or a list of N frames. Frames that have the encoder's size already
                are not reduced again.
            choose: a function in place of the agent's controller, such as a policy that was trained
                in `worldmodels.make_dream`: from features, float32 (N, F), to actions, float32
                (N, A), both as that environment has them; for one frame N is 1. With a frame skip
                it is called where an episode decides, with the features of all episodes.

        Returns:
            for one frame the environment's action: float32 (A,) within its bounds, or an int; for
            N frames float32 (N, A) or int64 (N,).

        Raises:
            WorldModelsError: frames of another shape or type, or another number of them than in
                the step before; or actions of another shape, or not finite.
        """
        array = self._checked(frames)
        pictures = array[None] if array.ndim == 3 else array
        if self._rows == 0:
            self._begin(len(pictures))
        if len(pictures) != self._rows:
            raise WorldModelsError(
                f"frames: {len(pictures)} after {self._rows} in the step before; call reset() where"
                " another batch begins"
            )
        decides = self._time % self.config.frame_skip == 0
        if decides.any():
            self._decide(pictures, decides, choose)
        self._time = self._time + 1
        actions = self.config.actions.from_vectors(self._actions.cpu().numpy())
        if array.ndim == 4:
            return actions
        return actions[0] if actions.ndim == 2 else int(actions[0])

    def _decide(
        self, pictures: NDArray[np.uint8], rows: Tensor, choose: ActionChoice | None
    ) -> None:
        """Compute new actions in some rows, and advance their states.

        Args:
            pictures: uint8 (N, H, W, 3), the frames of all rows.
            rows: (N,) bool, those that get a new action. The others, whose episodes began in other
                steps, are computed as well and stay as they are: noise is a function of the time.
            choose: of `act`.
        """
        spec, time = self.config.features, self._time // self.config.frame_skip
        reduced = torch.from_numpy(self.config.observation.reduce(pictures)).to(self.device)
        clips = self._clips.add(reduced, self._time == 0, rows)
        latents = self._perception.latents(clips, self._noise, time)  # (N, latent)
        features = spec.features(latents, self._actions, self._state, self._dynamics)
        if choose is None:
            vectors = self._controller.act(features)  # (N, action)
        else:
            chosen = check_actions(choose(features.float().cpu().numpy()), self._vectors)
            vectors = torch.from_numpy(chosen).to(self.device)
        if spec.state:
            advanced = self._dynamics.advance(latents, vectors, self._state)
            self._state = replace_rows(self._state, advanced, rows)
        self._actions = torch.where(rows.unsqueeze(1), vectors, self._actions)

    def _begin(self, rows: int) -> None:
        """Begin an episode in each of `rows` rows."""
        self._rows = rows
        seeds = self._seeds(np.arange(rows), self._seed)
        self._noise = EpisodeNoise(seeds, LATENT_STREAM, self.device)
        self._clips = Clips(self._encoder.clip_length)
        self._state = self._dynamics.initial_state(rows, self.device)
        self._actions = torch.zeros(rows, self._dynamics.action_size, device=self.device)
        self._time = torch.zeros(rows, dtype=torch.int64, device=self.device)
        bounds = self.config.actions.bounds
        self._vectors = batch_space(
            Box(np.array(bounds.low, np.float32), np.array(bounds.high, np.float32)), rows
        )
        size = self._perception.feature_size
        controller = self.config.controller
        self._controller = PopulationPolicy(
            self.parameters[None], rows, size, controller, self.device
        )

    def _seeds(self, rows: NDArray[np.int64], seed: int | None) -> Sequence[int]:
        if seed is None:
            return [int(drawn) for drawn in self._generator.integers(2**31, size=len(rows))]
        return [seed + int(row) for row in rows]

    def _checked(
        self, frames: NDArray[np.uint8] | Tensor | Sequence[NDArray[np.uint8]]
    ) -> NDArray[np.uint8]:
        """The frames as an array, in memory of its own, which the filter may read as a tensor."""
        try:
            array = frames.cpu().numpy() if isinstance(frames, Tensor) else np.asarray(frames)
        except ValueError as error:  # a list of arrays of which one is of another shape
            raise WorldModelsError(
                "frames: are of several shapes; give one uint8 array (N, H, W, 3), or N of the"
                " same (H, W, 3)"
            ) from error
        if array.dtype != np.uint8 or array.ndim not in (3, 4) or array.shape[-1] != 3:
            raise WorldModelsError(
                f"frames: are {array.dtype} {array.shape}, not uint8 (H, W, 3) or (N, H, W, 3);"
                " give the environment's colour pictures"
            )
        crop_rows, size = self.config.observation.crop_rows, self.config.observation.size
        rows, columns = array.shape[-3:-1]
        if crop_rows is not None and rows < crop_rows and (rows, columns) != (size, size):
            raise WorldModelsError(
                f"frames: have {rows} rows, and the agent takes the upper {crop_rows}; give the"
                f" frames of {self.config.env_id} as they are"
            )
        if 0 in array.shape:
            raise WorldModelsError(f"frames: {array.shape} has no pixels; give one frame or more")
        return np.array(array, order="C")
