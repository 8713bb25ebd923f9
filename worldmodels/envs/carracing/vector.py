"""CarRacing behind Gymnasium's vector interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.error import InvalidAction, ResetNeeded
from gymnasium.spaces import Box, Discrete
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from worldmodels.envs.carracing import game, picture
from worldmodels.envs.carracing.arguments import check_indices, check_mask, check_seeds
from worldmodels.envs.carracing.compiled import announced_compilation, forget_stale
from worldmodels.envs.carracing.courses import Course, draw_course, seeded_course
from worldmodels.envs.carracing.simulator import CpuSimulator
from worldmodels.envs.carracing.snapshot import (
    State,
    check_state,
    own_arrays,
    pack_generator,
    unpack_generator,
)
from worldmodels.envs.carracing.track import DEFAULT_COLORS, Colors
from worldmodels.errors import WorldModelsError

if TYPE_CHECKING:
    from worldmodels.envs.carracing.cuda import CudaSimulator

Frames = Any
"""``(N, size, size, 3)`` uint8: a NumPy array, or a torch tensor on a GPU."""
StepResult = tuple[
    Frames, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]
]

_DISCRETE = np.array([(0, 0, 0), (0.6, 0, 0), (-0.6, 0, 0), (0, 0.2, 0), (0, 0, 0.8)], np.float64)
"""Steering, gas and brake of the five discrete actions: nothing, right, left, gas, brake."""


class CarRacingVectorEnv(VectorEnv[Frames, NDArray[Any], NDArray[Any]]):
    """N environments of CarRacing, stepped and drawn together.

    Environment i gives the episode that ``gymnasium.make("CarRacing-v3")`` gives with the same seed
    and actions: the same track, physics and rewards to the bit, and nearly the same frames
    (``benchmarks/carracing_parity.py``). The interface is `gymnasium.vector.VectorEnv`.

    Args:
        num_envs: number of environments N.
        max_episode_steps: time limit; the step that reaches it is truncated. None is no limit.
        lap_complete_percent: share of the tiles after which a lap counts.
        domain_randomize: draw new colours at each reset.
        continuous: actions are steering in [-1, 1], gas and brake in [0, 1]; else one of five.
        size: side of the frames: 96 is Gymnasium's frame; 64 is its part above the instruments,
            reduced, as the models use it, and costs less than drawing 96 and reducing it.
        autoreset_mode: as in Gymnasium's vector environments. With ``DISABLED``, an environment
            that has ended keeps its state, costs no time, and returns reward 0 and its flags until
            it is reset (Gymnasium's own fails instead).
        copy: as in Gymnasium's vector environments: with False, observations are the memory that is
            drawn into; the next `reset`, `step` or `set_state` overwrites them, and `keep` replaces
            them.
        threads: how many threads compute; at most as many as the machine has cores.
        device: "cpu", or "cuda" or "cuda:1" to simulate on a GPU: the frames are torch tensors
            there, and actions may be. Rewards and flags are NumPy arrays all the same.
        render_mode: None, "rgb_array" or "state_pixels": `render` returns the frames.

    Raises:
        WorldModelsError: an argument is out of range, or the device cannot be used.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012  (Gymnasium's)
        "render_modes": ["rgb_array", "state_pixels"],
        "render_fps": game.FPS,
        "autoreset_mode": AutoresetMode.NEXT_STEP,
    }

    def __init__(
        self,
        num_envs: int = 1,
        max_episode_steps: int | None = 1000,
        lap_complete_percent: float = 0.95,
        *,
        domain_randomize: bool = False,
        continuous: bool = True,
        size: int = 96,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        copy: bool = True,
        threads: int = 1,
        device: str = "cpu",
        render_mode: str | None = None,
    ) -> None:
        if num_envs < 1:
            raise WorldModelsError(f"num_envs={num_envs}: is below 1; choose 1 or more")
        if size not in picture.SIZES:
            raise WorldModelsError(f"size={size}: is not supported; choose one of {picture.SIZES}")
        self.num_envs = num_envs
        self.render_mode = render_mode
        self.single_observation_space = Box(0, 255, (size, size, 3), np.uint8)
        self.single_action_space = (
            Box(np.array([-1, 0, 0], np.float32), np.array([1, 1, 1], np.float32))
            if continuous
            else Discrete(5)
        )
        self._autoreset = AutoresetMode(autoreset_mode)
        self.metadata = {**self.metadata, "autoreset_mode": self._autoreset}
        self._limit = max_episode_steps
        self._randomize = domain_randomize
        self._copy, self._size = copy, size
        self._simulator = _simulator(num_envs, size, lap_complete_percent, threads, device)
        self._own = own_arrays(num_envs)
        self._batch()
        warm_up(device)

    def _batch(self) -> None:
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Frames, dict[str, Any]]:
        """Begin new episodes.

        Args:
            seed: one for each environment, where None continues with the environment's generator;
                or the first of consecutive ones.
            options: ``reset_mask``, ``(N,)`` bool, resets only these environments. ``randomize``
                False keeps the colours of ``domain_randomize``.

        Returns:
            observations ``(N, size, size, 3)`` uint8 of all environments, and no infos.

        Raises:
            WorldModelsError: seeds, a mask or options that do not fit.
        """
        mask, randomize = self._options(options)
        seeds = check_seeds(seed, self.num_envs)
        self._begin(mask, seeds, randomize)
        self._simulator.draw(mask)
        return self._simulator.frames(self._copy), {}

    def step(self, actions: Any, draw: bool = True) -> StepResult:
        """Step every environment.

        Args:
            actions: ``(N, 3)`` numbers, or ``(N,)`` integers below 5: a NumPy array or a torch
                tensor. Float64 on the CPU is used without a copy.
            draw: False draws only the environments that end in this step or begin an episode: the
                observations of the others are those of a step before, and `copy` does not hold.
                For steps whose observations nobody needs, which then take a third of the time.

        Returns:
            observations ``(N, size, size, 3)`` uint8, rewards ``(N,)`` float64, terminated and
            truncated ``(N,)`` bool, and infos as Gymnasium's vector environments give them:
            ``lap_finished`` of environments that terminated; with ``SAME_STEP``, ``final_obs`` and
            ``final_info`` of environments that ended.

        Raises:
            ResetNeeded: an environment was never reset.
            WorldModelsError: actions of another shape or type, or not finite.
            gymnasium.error.InvalidAction: a discrete action that does not exist.
        """
        own = self._own
        if not own["started"].all():
            env = int(np.flatnonzero(~own["started"])[0])
            raise ResetNeeded(f"environment {env}: was never reset; call reset() first")
        controls = self._controls(actions)
        ended = own["terminated"] | own["truncated"]
        active = ~ended
        rewards, ends = self._simulator.step(controls, active)
        own["steps"][active] += 1
        own["terminated"][active] = ends[active] != game.RUNNING
        if self._limit is not None:
            own["truncated"][active] = own["steps"][active] >= self._limit
        drawn = active if draw else active & (own["terminated"] | own["truncated"])
        if self._autoreset is AutoresetMode.NEXT_STEP and ended.any():
            self._begin(ended, [None] * self.num_envs, True)
            drawn = drawn | ended
        if drawn.any():
            self._simulator.draw(drawn)
        infos: dict[str, Any] = {}
        if (ends != game.RUNNING).any():
            infos["lap_finished"] = ends == game.LAP_FINISHED
            infos["_lap_finished"] = ends != game.RUNNING
        terminated, truncated = own["terminated"].copy(), own["truncated"].copy()
        now = terminated | truncated
        if self._autoreset is AutoresetMode.SAME_STEP and now.any():
            infos = self._final_infos(now, infos)
            self._begin(now, [None] * self.num_envs, True)
            self._simulator.draw(now)
        frames = self._simulator.frames(self._copy and draw)
        return frames, rewards, terminated, truncated, infos

    def keep(self, mask: NDArray[np.bool_]) -> None:
        """Drop environments; the others move together, in their order, and continue.

        Args:
            mask: ``(N,)`` bool, False for the environments to drop.

        Raises:
            WorldModelsError: a mask of another shape or type, or without a True.
        """
        mask = check_mask(mask, self.num_envs, "keep")
        self.num_envs = int(mask.sum())
        self._simulator.keep(mask)
        self._own = {name: array[mask] for name, array in self._own.items()}
        self._batch()

    def get_state(self, envs: Any = None) -> State:
        """Copy the state of environments: all that their future depends on, but the actions.

        Arguments of the constructor, as the time limit, are no part of it.

        Args:
            envs: ``(M,)`` indices, repeated or in another order as wanted; None is all of them.

        Returns:
            arrays by name; see `snapshot.State`.

        Raises:
            WorldModelsError: an index of no environment.
        """
        index = check_indices(envs, self.num_envs)
        own = {name: array[index] for name, array in self._own.items()}
        return self._simulator.get_state(index) | own

    def set_state(self, state: Mapping[str, NDArray[Any]], envs: Any = None) -> None:
        """Continue from a state that `get_state` returned, here or elsewhere, on any device.

        The observations of the restored environments are ``state["frames"]``.

        Args:
            state: of M environments, or of one, which is then copied into all of `envs`.
            envs: ``(M,)`` indices of the environments to overwrite; None is all of them.

        Raises:
            WorldModelsError: an array of another shape or type, another number of environments, or
                indices that are repeated or of no environment. Nothing was changed.
        """
        index = check_indices(envs, self.num_envs)
        if len(np.unique(index)) < len(index):
            raise WorldModelsError(
                "envs: an environment is named twice; give each environment to overwrite once"
            )
        count = check_state(state, self._size)
        if count not in (1, len(index)):
            raise WorldModelsError(
                f"state: is of {count} environments, and {len(index)} are to be overwritten;"
                " give as many, or the state of one"
            )
        self._simulator.set_state(state, index)
        for name, array in self._own.items():
            array[index] = state[name]

    def render(self) -> tuple[Frames, ...] | None:
        """Copies of the frames, ``(size, size, 3)`` uint8 each, or None without a render mode."""
        return None if self.render_mode is None else tuple(self._simulator.frames(copy=True))

    def _final_infos(self, ended: NDArray[np.bool_], infos: dict[str, Any]) -> dict[str, Any]:
        """The infos of a step after which environments are reset at once."""
        index = np.flatnonzero(ended)
        final = np.full(self.num_envs, None, object)
        for env, frame in zip(index, self._simulator.frames(copy=False)[index], strict=True):
            final[env] = frame
        return {"final_obs": final, "_final_obs": ended, "final_info": infos, "_final_info": ended}

    def _options(self, options: dict[str, Any] | None) -> tuple[NDArray[np.bool_], bool]:
        options = dict(options or {})
        mask = options.pop("reset_mask", np.ones(self.num_envs, np.bool_))
        randomize = bool(options.pop("randomize", True))
        if options:
            raise WorldModelsError(
                f"options: {sorted(options)} are unknown; CarRacing takes reset_mask and randomize"
            )
        return check_mask(mask, self.num_envs, "reset_mask"), randomize

    def _controls(self, actions: Any) -> Any:
        """Steering, gas and brake ``(N, 3)`` float64, as CarRacing-v3 takes them."""
        if getattr(actions, "requires_grad", False):
            raise WorldModelsError("actions: the tensor requires gradients; give actions.detach()")
        shape = tuple(np.shape(actions))
        if shape != self.action_space.shape:
            raise WorldModelsError(
                f"actions: have shape {shape}, not {self.action_space.shape};"
                " give one action for each environment"
            )
        if isinstance(self.single_action_space, Discrete):
            numbers = np.asarray(actions)
            wrong = ~np.isin(numbers, np.arange(5))
            if wrong.any():
                env = int(np.flatnonzero(wrong)[0])
                raise InvalidAction(
                    f"actions: {numbers[env]} of environment {env} does not exist; choose 0 to 4"
                )
            actions = _DISCRETE[numbers.astype(np.int64)]
        try:
            controls, finite = self._simulator.controls(actions)
        except (TypeError, ValueError) as error:  # text, or a tensor on another device
            raise WorldModelsError(
                f"actions: {str(error).splitlines()[0]}; give numbers in a NumPy array or a tensor"
            ) from error
        if not finite.all():
            env = int(np.flatnonzero(~finite)[0])
            raise WorldModelsError(
                f"actions: {controls[env].tolist()} of environment {env} is not finite;"
                " check the controller or model that computed it"
            )
        return controls

    def _begin(self, mask: NDArray[np.bool_], seeds: Sequence[int | None], recolor: bool) -> None:
        """Put the environments of `mask` (N,) bool at the start of new courses."""
        envs = np.flatnonzero(mask).tolist()
        courses = [self._course(env, seeds[env], recolor) for env in envs]
        for env, course in zip(envs, courses, strict=True):
            self._own["generator"][env] = pack_generator(course.generator)
            self._own["colors"][env] = course.colors
        self._simulator.begin(envs, courses)
        for name in ("steps", "terminated", "truncated"):
            self._own[name][mask] = 0
        self._own["started"][mask] = True

    def _course(self, env: int, seed: int | None, recolor: bool) -> Course:
        """The next course of an environment."""
        colors: Colors | None = DEFAULT_COLORS
        if self._randomize:
            kept = self._own["started"][env] and not recolor
            colors = Colors(*self._own["colors"][env]) if kept else None
        if seed is not None and (colors is None or not self._randomize):
            return seeded_course(seed, self._randomize)
        if seed is not None:
            rng, _ = seeding.np_random(seed)
        elif self._own["started"][env]:
            rng = unpack_generator(self._own["generator"][env])
        else:
            rng = np.random.Generator(np.random.PCG64())
        return draw_course(rng, colors)


def _simulator(
    num_envs: int, size: int, percent: float, threads: int, device: str
) -> CpuSimulator | CudaSimulator:
    if device == "cpu":
        return CpuSimulator(num_envs, size, percent, threads)
    # torch and numba's CUDA are imported for a GPU only: the rest of this package needs neither.
    from worldmodels.envs.carracing.cuda import CudaSimulator

    return CudaSimulator(num_envs, size, percent, device)


_warm: set[str] = set()


def warm_up(device: str = "cpu") -> None:
    """Load the compiled kernels, or compile them and log that.

    Args:
        device: "cpu", "cuda" or "cuda:1".
    """
    if device in _warm:
        return
    compiled = game.step.stats.cache_path
    if not _warm and compiled is not None:
        forget_stale(Path(compiled), Path(__file__).parent)
    with announced_compilation():
        for size in picture.SIZES:
            simulator = _simulator(1, size, 0.95, 1, device)
            simulator.begin([0], [seeded_course(0, False)])
            on = np.ones(1, np.bool_)
            controls, _ = simulator.controls(np.zeros((1, 3)))
            simulator.step(controls, on)
            simulator.draw(on)
    _warm.add(device)
