"""The real world: a vector environment, seen by V and remembered by M."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from torch import Tensor

from worldmodels.models.mdnrnn import MDNRNN, State
from worldmodels.models.vae import ConvVAE, to_input
from worldmodels.worlds.noise import LaneNoise
from worldmodels.worlds.world import Step

LATENT_STREAM = 0


@dataclass(frozen=True)
class Perception:
    """How an agent turns frames into features.

    Args:
        vision: V, or None for a world without features (random policies need none).
        memory: M, or None for features of V alone.
        sampled: draw z from its posterior (the paper's code) or take its mean.
        hidden_after: the hidden state beside z_t has seen z_t with a_{t-1}, at the price of a
            second step of M; otherwise it has seen z_{t-1} with a_{t-1} (the paper's code).
        use_cell: features hold M's cell state as well.
        device: of V and M.
        dtype: of V's arithmetic.
    """

    vision: ConvVAE | None
    memory: MDNRNN | None
    sampled: bool = True
    hidden_after: bool = False
    use_cell: bool = False
    device: torch.device = torch.device("cpu")  # noqa: RUF009  (immutable)
    dtype: torch.dtype = torch.float32

    @property
    def feature_size(self) -> int:
        """Length of what the controller sees."""
        latent = self.vision.latent_size if self.vision else 0
        return latent + (self.memory.hidden_size * (1 + self.use_cell) if self.memory else 0)


class RealWorld:
    """Episodes of an environment as an agent perceives them.

    Args:
        make_env: builds a vector environment of as many lanes as it is told, whose ended lanes
            stay as they are until the next reset (``AutoresetMode.DISABLED``).
        perception: how frames become features.
    """

    def __init__(self, make_env: Callable[[int], VectorEnv], perception: Perception) -> None:
        self.feature_size = perception.feature_size
        self.device = perception.device
        self.perception = perception
        self._make_env = make_env
        self._latents: Tensor
        self._env: VectorEnv | None = None
        self._vision = perception.vision
        if self._vision is not None:
            self._vision.to(perception.device, perception.dtype).eval()

    @property
    def frames(self) -> np.ndarray:
        """What the lanes see now: uint8 (lanes, size, size, 3)."""
        return np.asarray(self._seen().cpu())

    @property
    def latents(self) -> Tensor:
        """z of the lanes now: (lanes, latent)."""
        return self._latents

    @property
    def state(self) -> State:
        """M's state before it sees the latents of now: (lanes, hidden) each."""
        return self._state

    @torch.inference_mode()
    def reset(self, seeds: Sequence[int]) -> Tensor:
        """Begin one episode a seed; features (lanes, features)."""
        if self._env is None or self._env.num_envs != len(seeds):
            self.close()
            self._env = self._make_env(len(seeds))
        self._lanes = len(seeds)
        self._alive = np.arange(self._lanes)
        self._time = 0
        device = self.perception.device
        self._noise = LaneNoise(seeds, LATENT_STREAM, device)
        self._observations, _ = self._env.reset(seed=list(seeds))  # type: ignore[arg-type]  # gymnasium's stub
        action_size = int(np.prod(self._env.single_action_space.shape or ()))
        self._actions = torch.zeros(self._lanes, action_size, device=device)
        if self.perception.memory is not None:
            self._state = self.perception.memory.initial(self._lanes, device)
        return self._perceive()

    @torch.inference_mode()
    def step(self, actions: Tensor) -> Step:
        """Act in each lane with actions (lanes, action), in the environment's own ranges."""
        assert self._env is not None
        if self.perception.memory is not None:
            self._state = self.perception.memory.advance(self._latents, actions, self._state)
        self._actions = actions
        everyone = np.zeros((self._lanes, actions.shape[1]), np.float32)
        everyone[self._alive] = actions.cpu().numpy()
        self._observations, reward, terminated, truncated, _ = self._env.step(everyone)
        self._time += 1
        live = self._alive
        return Step(self._perceive(), reward[live], terminated[live], truncated[live])

    def keep(self, mask: np.ndarray) -> None:
        """Drop the lanes where `mask` (lanes,) is False."""
        self._alive = self._alive[mask]
        if self.perception.vision is None:
            return
        index = torch.from_numpy(mask).to(self.perception.device)
        self._noise.keep(index)
        self._latents = self._latents[index]
        self._actions = self._actions[index]
        if self.perception.memory is not None:
            self._state = State(self._state.h[index], self._state.c[index])

    def close(self) -> None:
        """Close the environment."""
        if self._env is not None:
            self._env.close()
            self._env = None

    def _seen(self) -> Tensor:
        """The frames of the lanes that are left, wherever the environment has them."""
        frames = torch.as_tensor(self._observations)
        if len(self._alive) == self._lanes:
            return frames
        return frames[torch.from_numpy(self._alive).to(frames.device)]

    def _perceive(self) -> Tensor:
        """Features of the current frames: z, and with M its hidden state."""
        perception = self.perception
        if self._vision is None:
            return torch.zeros(len(self._alive), 0)
        # Metal may read the host's memory after it has been used again.
        on_cuda = perception.device.type == "cuda"
        frames = self._seen().to(perception.device, non_blocking=on_cuda)
        posterior = self._vision.encode(to_input(frames).to(perception.dtype))
        mean, logvar = posterior.mean.float(), posterior.logvar.float()
        if perception.sampled:
            noise = self._noise.normal(self._time, mean.shape[1])
            mean = mean + torch.exp(0.5 * logvar) * noise
        self._latents = mean
        if perception.memory is None:
            return mean
        state = self._state
        if perception.hidden_after:
            state = perception.memory.advance(mean, self._actions, state)
        return torch.cat([mean, state.seen(perception.use_cell)], dim=1)  # (lanes, features)
