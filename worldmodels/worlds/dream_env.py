"""The learned model as a Gymnasium environment, single or vectorised, for other programs."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from worldmodels.envs.vector import check_actions
from worldmodels.models.encoder import Encoder, to_frames
from worldmodels.worlds.dream import DreamWorld


class DreamVectorEnv(VectorEnv[np.ndarray, np.ndarray, np.ndarray]):
    """N episodes in the learned model, with the autoreset mode ``NEXT_STEP``.

    Observations are the world's features, (N, F) float32: z, and the parts of the dynamics model's
    state that the world's features contain. If `decoded`, they are decoded frames, (N, H, W, 3)
    uint8.

    Args:
        world: the learned model; this environment owns it and closes it.
        num_envs: N.
        low: (A,) lower bounds of actions.
        high: (A,) upper bounds of actions.
        max_steps: time limit of an episode in steps.
        encoder: whose decoder makes frames; None for an environment without frames.
        decoded: observations are frames.

    Raises:
        ValueError: `decoded` without an encoder.
    """

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(
        self,
        world: DreamWorld,
        num_envs: int,
        low: np.ndarray,
        high: np.ndarray,
        max_steps: int,
        encoder: Encoder | None = None,
        decoded: bool = False,
    ) -> None:
        self._world, self._encoder, self._max_steps = world, encoder, max_steps
        self._decoded = decoded
        self.num_envs = num_envs
        self.single_action_space = gymnasium.spaces.Box(
            np.asarray(low, np.float32), np.asarray(high, np.float32)
        )
        self.action_space = batch_space(self.single_action_space, num_envs)
        space: gymnasium.spaces.Box = gymnasium.spaces.Box(
            -np.inf, np.inf, (world.feature_size,), np.float32
        )
        if decoded:
            side = self._decoder().frame_size
            space = gymnasium.spaces.Box(0, 255, (side, side, 3), np.uint8)
        self.single_observation_space = space
        self.observation_space = batch_space(space, num_envs)
        self._started = False
        self._lengths = np.zeros(num_envs, np.int64)
        self._ended = np.zeros(num_envs, bool)

    def reset(
        self,
        *,
        seed: int | list[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start all episodes.

        Args:
            seed: an integer gives environment i the seed ``seed + i``; a list has one seed for each
                environment, None in it and instead of it draws a new one.
            options: ``reset_mask``, (N,) bool, starts the episodes of these environments only.

        Returns:
            observations and an empty dictionary.

        Raises:
            ResetNeeded: a ``reset_mask`` that leaves environments out before the first reset.
            ValueError: as many seeds as there are environments are needed.
        """
        mask = np.asarray((options or {}).get("reset_mask", np.ones(self.num_envs, bool)))
        if not mask.all():
            self._check_started(int(np.flatnonzero(~mask)[0]))
        if isinstance(seed, int | np.integer):
            super().reset(seed=int(seed))
            seeds = [int(seed) + index for index in range(self.num_envs)]
        else:
            given = [None] * self.num_envs if seed is None else list(seed)
            if len(given) != self.num_envs:
                raise ValueError(f"{len(given)} seeds for {self.num_envs} environments")
            fresh = self._fresh_seeds(self.num_envs)
            pairs = zip(given, fresh, strict=True)
            seeds = [new if old is None else int(old) for old, new in pairs]
        if mask.all():
            self._world.reset(seeds)
            self._started = True
        else:
            self._world.restart(mask, [seeds[index] for index in np.flatnonzero(mask)])
        self._lengths[mask] = 0
        self._ended[mask] = False
        return self._observe(), {}

    def step(
        self, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Take one step; environments whose episode ended in the step before are reset instead.

        Args:
            actions: (N, A) float32.

        Returns:
            observations, rewards (N,) float64 (0 where reset), terminated and truncated (N,) bool,
            and an empty dictionary.

        Raises:
            ResetNeeded: before the first reset.
            WorldModelsError: actions of another shape, or not finite.
        """
        self._check_started(0)
        restarting, checked = self._ended, check_actions(actions, self.action_space)
        tensor = torch.from_numpy(checked).to(self._world.device)
        step = self._world.step(tensor)
        if restarting.any():
            self._world.restart(restarting, self._fresh_seeds(int(restarting.sum())))
        self._lengths = np.where(restarting, 0, self._lengths + 1)
        terminated = step.terminated & ~restarting
        truncated = (self._lengths >= self._max_steps) & ~terminated
        self._ended = terminated | truncated
        return self._observe(), np.where(restarting, 0.0, step.reward), terminated, truncated, {}

    def _check_started(self, env: int) -> None:
        """Raise `ResetNeeded`, which names environment `env`, before the first reset."""
        if not self._started:
            raise ResetNeeded(f"environment {env}: was never reset; call reset() first")

    def close_extras(self, **kwargs: Any) -> None:
        """Close the world."""
        self._world.close()

    def _fresh_seeds(self, count: int) -> list[int]:
        return [int(seed) for seed in self.np_random.integers(2**31, size=count)]

    @torch.inference_mode()
    def frames(self) -> np.ndarray:
        """The decoded frames of the current latents: (N, H, W, 3) uint8.

        Raises:
            ResetNeeded: before the first reset.
            ValueError: there is no `encoder`.
        """
        self._check_started(0)
        return to_frames(self._decoder().decode(self._world.latents)).cpu().numpy()

    def _decoder(self) -> Encoder:
        if self._encoder is None:
            raise ValueError(
                "frames are drawn by the encoder's decoder: build this environment with encoder="
            )
        return self._encoder

    def _observe(self) -> np.ndarray:
        return self.frames() if self._decoded else self._world.features().cpu().numpy()


class DreamEnv(gymnasium.Env[np.ndarray, np.ndarray]):
    """The learned model as a single Gymnasium environment; ``render`` returns decoded frames.

    Args:
        envs: a `DreamVectorEnv` with one environment; this one owns it and closes it.

    Raises:
        ValueError: `num_envs` has more than one environment.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 50}  # noqa: RUF012
    render_mode = "rgb_array"

    def __init__(self, envs: DreamVectorEnv) -> None:
        if envs.num_envs != 1:
            raise ValueError(f"DreamEnv takes a DreamVectorEnv of 1, not of {envs.num_envs}")
        self._envs = envs
        self.observation_space = envs.single_observation_space
        self.action_space = envs.single_action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode; returns the observation and an empty dictionary."""
        super().reset(seed=None if seed is None else int(seed))
        observation, info = self._envs.reset(seed=seed)
        return observation[0], info

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Take one step with an action (A,) float32; returns the five values of Gymnasium, and
        raises as `DreamVectorEnv.step`."""
        observation, reward, terminated, truncated, info = self._envs.step(np.asarray(action)[None])
        return observation[0], float(reward[0]), bool(terminated[0]), bool(truncated[0]), info

    def render(self) -> np.ndarray:
        """The decoded frame: (H, W, 3) uint8; raises ValueError without an encoder."""
        frame: np.ndarray = self._envs.frames()[0]
        return frame

    def close(self) -> None:
        """Close the world."""
        self._envs.close()
