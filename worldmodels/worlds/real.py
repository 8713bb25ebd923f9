"""The environment as a world: its frames become features by encoder and dynamics model.

Shapes are in the letters of docs/shapes.md: N environments, A action, F features, Z latent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from torch import Tensor

from worldmodels.models.dynamics import DynamicsModel, State, select_rows
from worldmodels.models.encoder import Encoder, to_input
from worldmodels.models.features import FeatureSpec
from worldmodels.system.spent import spending
from worldmodels.worlds.clips import Clips
from worldmodels.worlds.noise import EpisodeNoise
from worldmodels.worlds.world import Step

if TYPE_CHECKING:  # it loads numba, which the other engines do not need
    from worldmodels.envs.carracing.snapshot import State as EnvState
    from worldmodels.envs.carracing.vector import CarRacingVectorEnv

LATENT_STREAM = 0


@dataclass(frozen=True)
class Perception:
    """The models that turn frames into features.

    Args:
        encoder: None for a world without features, for random policies.
        dynamics: None where `features` contain no part of its state.
        features: input of the controller.
        device: of the models.
        dtype: that the encoder computes in.
    """

    encoder: Encoder | None
    dynamics: DynamicsModel | None
    features: FeatureSpec
    device: torch.device = torch.device("cpu")  # noqa: RUF009  (immutable)
    dtype: torch.dtype = torch.float32

    @property
    def feature_size(self) -> int:
        """F, the number of features."""
        return self.features.size(self.encoder.latent_size, self.dynamics) if self.encoder else 0

    def latents(self, frames: Tensor, noise: EpisodeNoise, time: int | Tensor) -> Tensor:
        """z of frames: (rows, latent) float32, on `device`.

        Args:
            frames: uint8 (rows, size, size, 3), or the clips (rows, C, size, size, 3) that the
                encoder takes, on `device`.
            noise: of the rows' episodes, for a draw from the posterior.
            time: step of the episodes, one or one for each row.
        """
        assert self.encoder is not None
        posterior = self.encoder.encode(to_input(frames).to(self.dtype))
        mean, logvar = posterior.mean.float(), posterior.logvar.float()
        if not self.features.sampled:
            return mean
        return mean + torch.exp(0.5 * logvar) * noise.normal(time, mean.shape[1])


class Moment(NamedTuple):
    """A moment of an episode: all that the rest depends on, but actions and seed.

    Args:
        env: state of the environment.
        actions: a_{t-1}, (1, A) float32.
        state: the dynamics model's state after z_{t-1} and a_{t-1}, one row; None without one.
        frame: of the moment, (1, size, size, 3) uint8.
        frames: before that of the moment, for an encoder that takes clips: (1, C - 1, size, size,
            3) uint8; None for others.
    """

    env: EnvState
    actions: Tensor
    state: State | None
    frame: np.ndarray
    frames: Tensor | None


class RealWorld:
    """Episodes of an environment, observed through an agent's models.

    Args:
        make_env: makes a vector environment of the given number of environments with
            ``AutoresetMode.DISABLED``: environments whose episode has ended keep their state until
            the next reset.
        perception: from frames to features.
    """

    def __init__(self, make_env: Callable[[int], VectorEnv], perception: Perception) -> None:
        self.feature_size = perception.feature_size
        self.device = perception.device
        self.perception = perception
        self._make_env = make_env
        self._latents: Tensor
        self._env: VectorEnv | None = None
        self._clips = Clips(1 if perception.encoder is None else perception.encoder.clip_length)
        if perception.encoder is not None:
            perception.encoder.to(perception.device, perception.dtype).eval()

    @property
    def frames(self) -> np.ndarray:
        """The current frames: (N, size, size, 3) uint8."""
        return np.asarray(self._running_frames().cpu())

    @property
    def latents(self) -> Tensor:
        """The current latents z_t: (N, Z) float32."""
        return self._latents

    @property
    def state(self) -> State:
        """The dynamics model's state after z_{t-1} and a_{t-1}, N rows."""
        return self._state

    @torch.inference_mode()
    def reset(self, seeds: Sequence[int]) -> Tensor:
        """Start one episode per seed.

        Args:
            seeds: of the N episodes; a new vector environment is made where N has changed.

        Returns:
            features (N, F) float32; (N, 0) without an encoder.
        """
        env, device = self._begin(seeds), self.perception.device
        with spending("simulating"):
            self._observations, _ = env.reset(seed=list(seeds))  # type: ignore[arg-type]  # gymnasium's stub
        action_size = int(np.prod(env.single_action_space.shape or ()))
        self._actions = torch.zeros(self._num_envs, action_size, device=device)
        if self.perception.dynamics is not None:
            self._state = self.perception.dynamics.initial_state(self._num_envs, device)
        return self._perceive()

    def moment(self, row: int) -> Moment:
        """The present moment of an environment; of the native engine only.

        Args:
            row: of the environment among those that have not been dropped.
        """
        state = None
        if self.perception.dynamics is not None:
            chosen = torch.tensor([row], device=self.perception.device)
            state = select_rows(self._state, chosen)
        assert self._env is not None
        native, index = cast("CarRacingVectorEnv", self._env.unwrapped), int(self._running[row])
        frame = torch.as_tensor(self._observations)[index][None].cpu().numpy().copy()
        actions = self._actions[row : row + 1].clone()
        return Moment(native.get_state([index]), actions, state, frame, self._clips.before(row))

    @torch.inference_mode()
    def resume(self, moments: Sequence[Moment], seeds: Sequence[int]) -> Tensor:
        """Continue from moments; their times count as time 0.

        Args:
            moments: one for each of the N environments.
            seeds: (N,), of what is drawn from then on, in place of those of the moments.

        Returns:
            features (N, F) float32.
        """
        env = cast("CarRacingVectorEnv", self._begin(seeds).unwrapped)
        with spending("simulating"):
            for index, moment in enumerate(moments):
                env.set_state(moment.env, [index])
        self._observations = np.concatenate([moment.frame for moment in moments])
        self._actions = torch.cat([moment.actions for moment in moments])
        self._clips.resume([moment.frames for moment in moments])
        states = [moment.state for moment in moments if moment.state is not None]
        if states:
            self._state = tuple(torch.cat(parts) for parts in zip(*states, strict=True))
        return self._perceive()

    def _begin(self, seeds: Sequence[int]) -> VectorEnv:
        """The environments of N episodes that begin."""
        if self._env is None or self._env.num_envs != len(seeds):
            self.close()
            self._env = self._make_env(len(seeds))
        self._num_envs = len(seeds)
        self._running = np.arange(self._num_envs)
        self._time = 0
        self._clips.begin()
        self._noise = EpisodeNoise(seeds, LATENT_STREAM, self.perception.device)
        return self._env

    @torch.inference_mode()
    def step(self, actions: Tensor) -> Step:
        """Take one step in every environment that has not been dropped.

        Args:
            actions: a_t, (N, A) float32, in the ranges of the environment's action space.

        Returns:
            features of t + 1 (N, F) float32; rewards (N,) float64; terminated and truncated (N,)
            bool.
        """
        assert self._env is not None
        if self.perception.dynamics is not None:
            with spending("predicting"):
                self._state = self.perception.dynamics.advance(self._latents, actions, self._state)
        self._actions = actions
        all_actions = np.zeros((self._num_envs, actions.shape[1]), np.float32)
        with spending("encoding"):  # on a GPU this waits for the encoder; on a CPU it takes no time
            all_actions[self._running] = actions.cpu().numpy()
        with spending("simulating"):
            self._observations, reward, terminated, truncated, _ = self._env.step(all_actions)
        self._time += 1
        running = self._running
        return Step(self._perceive(), reward[running], terminated[running], truncated[running])

    def keep(self, mask: np.ndarray) -> None:
        """Drop the environments where `mask` (N,) bool is False."""
        self._running = self._running[mask]
        if self.perception.encoder is None:
            return
        index = torch.from_numpy(mask).to(self.perception.device)
        self._noise.keep(index)
        self._clips.keep(index)
        self._latents = self._latents[index]
        self._actions = self._actions[index]
        if self.perception.dynamics is not None:
            self._state = select_rows(self._state, index)

    def close(self) -> None:
        """Close the vector environment. May be called twice."""
        if self._env is not None:
            self._env.close()
            self._env = None

    def _running_frames(self) -> Tensor:
        """The frames (N, size, size, 3) uint8, on the device of the environment."""
        frames = torch.as_tensor(self._observations)
        if len(self._running) == self._num_envs:
            return frames
        return frames[torch.from_numpy(self._running).to(frames.device)]

    def _perceive(self) -> Tensor:
        """Features (N, F) of the current frames."""
        perception = self.perception
        if perception.encoder is None:
            return torch.zeros(len(self._running), 0)
        # On Metal, an asynchronous copy may read the host's memory after it was overwritten.
        on_cuda = perception.device.type == "cuda"
        frames = self._running_frames().to(perception.device, non_blocking=on_cuda)
        with spending("encoding"):
            clips = self._clips.add(frames)
            self._latents = perception.latents(clips, self._noise, self._time)
        if perception.dynamics is None:
            return self._latents
        return perception.features.features(
            self._latents, self._actions, self._state, perception.dynamics
        )
