"""The mirror image of an environment, in which some episodes are played."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv, VectorWrapper

from worldmodels.envs.streams import Stream, generator_of
from worldmodels.envs.vector import VectorStep, beginning
from worldmodels.errors import ConfigError


@dataclass(frozen=True)
class Panel:
    """The lower part of a frame: it stays as it is but for parts that are mirrored in themselves.

    Args:
        top: where it begins, as a fraction of the frame's height.
        columns: left and right edge of each of these parts, as fractions of the frame's width.
    """

    top: float
    columns: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Mirroring:
    """What makes the mirror image of an environment.

    Args:
        share: probability that an episode is mirrored; its seed decides.
        actions: numbers of the actions that change sign.
        panel: of instruments, in each frame; None where there is none.
    """

    share: float
    actions: tuple[int, ...]
    panel: Panel | None = None


def mirrored_pixels(height: int, width: int, panel: Panel | None) -> np.ndarray:
    """Which pixel of a frame is shown in which place of its mirror image.

    Args:
        height: of the frame.
        width: of the frame.
        panel: see `Mirroring`.

    Returns:
        (height x width,) int64, numbers of pixels row by row.
    """
    place = np.arange(height * width).reshape(height, width)
    found = place[:, ::-1].copy()
    if panel is not None:
        top = round(panel.top * height)
        found[top:] = place[top:]
        for edges in panel.columns:
            left, right = (round(edge * width) for edge in edges)
            found[top:, left:right] = place[top:, left:right][:, ::-1]
    return found.reshape(-1)


class MirroredEpisodes(VectorWrapper[Any, Any, Any, Any, Any]):
    """Plays some episodes of N environments, without autoreset, in the mirror image.

    The frames of such an episode are flipped from left to right, and some of its actions change
    sign: a track whose curves bend left mostly becomes one whose curves bend right. Whether an
    episode is mirrored depends on its seed alone.

    Args:
        env: environments with frames (N, H, W, 3) and actions (N, A), each within symmetric bounds
            where it changes sign.
        mirroring: what makes the mirror image.

    Raises:
        ConfigError: an action that changes sign does not exist, or its bounds are not symmetric.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], mirroring: Mirroring) -> None:
        super().__init__(env)
        space: Any = env.single_action_space
        for action in mirroring.actions:
            if action >= len(space.low) or space.low[action] != -space.high[action]:
                raise ConfigError(
                    f"env.mirrored_actions: action {action} cannot change sign, actions are from"
                    f" {space.low.tolist()} to {space.high.tolist()}"
                )
        height, width, _ = env.single_observation_space.shape or ()
        self._share = mirroring.share
        self._pixels = mirrored_pixels(height, width, mirroring.panel)
        self._signs = np.ones(len(space.low), np.float32)
        self._signs[list(mirroring.actions)] = -1
        self._mirrored = np.zeros(env.num_envs, bool)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Begin episodes; see `worldmodels.envs.engines.make_vector_env`."""
        seeds, chosen = beginning(seed, options, self.num_envs)
        for index in np.flatnonzero(chosen):
            self._mirrored[index] = is_mirrored(seeds[index], self._share)
        frames, infos = self.env.reset(seed=seeds, options=options)  # type: ignore[arg-type]  # gymnasium's stub
        return self._shown(frames), infos

    def step(self, actions: Any) -> VectorStep:
        """Take one step in each environment."""
        signs = np.where(self._mirrored[:, None], self._signs, np.float32(1))
        frames, *rest = self.env.step(actions * signs)
        return (self._shown(frames), *rest)

    def _shown(self, frames: Any) -> Any:
        """The frames (N, H, W, 3), those of mirrored episodes flipped."""
        shown = frames.clone() if hasattr(frames, "clone") else frames.copy()
        flat, rows = shown.reshape(len(shown), -1, 3), np.flatnonzero(self._mirrored)
        flat[rows] = flat[rows][:, self._pixels]
        return shown


def is_mirrored(seed: int, share: float) -> bool:
    """Whether the episode of this seed is mirrored, with a probability of `share`."""
    return bool(generator_of(seed, Stream.MIRRORING).random() < share)
