"""CarRacing in numba behind Gymnasium's vector interface."""

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
from worldmodels.envs.carracing.compiled import announced_compilation, forget_stale
from worldmodels.envs.carracing.courses import Course, draw_course, seeded_course
from worldmodels.envs.carracing.simulator import CpuSimulator
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

_FLAGS = ("steps", "terminated", "truncated", "started")
"""What is known of each lane here, beside the simulator's state."""


class CarRacingVectorEnv(VectorEnv[Frames, NDArray[Any], NDArray[Any]]):
    """N lanes of CarRacing, stepped and drawn together.

    Lane i plays the episode that ``gymnasium.make("CarRacing-v3")`` plays with the same seed and
    actions: the same track, physics and rewards to the bit, and nearly the same picture
    (``benchmarks/carracing_parity.py``).

    Args:
        num_envs: lanes N.
        max_episode_steps: time limit; the step that reaches it is truncated. None is no limit.
        lap_complete_percent: share of the tiles after which a lap counts.
        domain_randomize: draw new colours at each reset.
        continuous: actions are steering in [-1, 1], gas and brake in [0, 1]; else one of five.
        size: side of the frames: 96 is Gymnasium's picture; 64 is its part above the instruments,
            reduced, as the models see it, and costs less than drawing 96 and reducing it.
        autoreset_mode: as in Gymnasium's vector environments; with ``DISABLED``, a lane that has
            ended stays as it is, costs nothing, and gives reward 0 and its flags until it is reset.
        threads: how many threads compute; at most the cores of the machine do.
        device: "cpu", or "cuda" or "cuda:1" to simulate on a GPU: the frames are torch tensors
            there, and actions may be. Rewards and flags are NumPy arrays all the same.
        render_mode: None, "rgb_array" or "state_pixels": `render` gives the lanes' frames.
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
        domain_randomize: bool = False,
        continuous: bool = True,
        size: int = 96,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        threads: int = 1,
        device: str = "cpu",
        render_mode: str | None = None,
    ) -> None:
        if num_envs < 1:
            raise WorldModelsError(f"num_envs={num_envs}: choose 1 or more")
        if size not in picture.SIZES:
            raise WorldModelsError(f"size={size}: choose one of {picture.SIZES}")
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
        self._simulator = _simulator(num_envs, size, lap_complete_percent, threads, device)
        self._generators: list[dict[str, Any] | None] = [None] * num_envs
        self._colors: list[Colors | None] = [None] * num_envs
        self._steps = np.zeros(num_envs, np.int64)
        self._terminated = np.zeros(num_envs, np.bool_)
        self._truncated = np.zeros(num_envs, np.bool_)
        self._started = np.zeros(num_envs, np.bool_)
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
            seed: one for each lane, where None goes on with what the lane draws from; or the first
                of consecutive ones.
            options: ``reset_mask``, ``(N,)`` bool, begins only these lanes anew. ``randomize``
                False keeps the colours of a domain that is randomised.

        Raises:
            WorldModelsError: seeds or a mask that do not fit the lanes.
        """
        mask, randomize = self._options(options)
        seeds = self._seeds(seed)
        self._begin(mask, seeds, randomize)
        self._simulator.draw(mask)
        return self._simulator.frames(), {}

    def step(self, actions: Any) -> StepResult:
        """Step every lane; ``actions (N, 3)``, or ``(N,)`` of five.

        Raises:
            ResetNeeded: a lane was never reset.
            WorldModelsError: actions of another shape, or not finite.
            gymnasium.error.InvalidAction: a discrete action that does not exist.
        """
        if not self._started.all():
            lane = int(np.flatnonzero(~self._started)[0])
            raise ResetNeeded(f"lane {lane} was not reset: call reset() first")
        controls = self._controls(actions)
        ended = self._terminated | self._truncated
        active = ~ended
        rewards, ends = self._simulator.step(controls, active)
        self._steps[active] += 1
        self._terminated[active] = ends[active] != game.RUNNING
        if self._limit is not None:
            self._truncated[active] = self._steps[active] >= self._limit
        infos: dict[str, Any] = {}
        if self._autoreset is AutoresetMode.NEXT_STEP and ended.any():
            self._begin(ended, [None] * self.num_envs, True)
            active = np.ones(self.num_envs, np.bool_)
        self._simulator.draw(active)
        if (ends != game.RUNNING).any():
            infos["lap_finished"] = ends == game.LAP_FINISHED
            infos["_lap_finished"] = ends != game.RUNNING
        terminated, truncated = self._terminated.copy(), self._truncated.copy()
        now = terminated | truncated
        if self._autoreset is AutoresetMode.SAME_STEP and now.any():
            final = np.empty(self.num_envs, object)
            for lane, frame in enumerate(self._simulator.frames()):
                final[lane] = frame if now[lane] else None
            infos = {
                "final_obs": final,
                "_final_obs": now,
                "final_info": infos,
                "_final_info": now,
            }
            self._begin(now, [None] * self.num_envs, True)
            self._simulator.draw(now)
        return self._simulator.frames(), rewards, terminated, truncated, infos

    def keep(self, mask: NDArray[np.bool_]) -> None:
        """Drop the lanes where `mask` (N,) is False; the others close ranks and go on."""
        mask = self._mask(mask, "keep")
        self.num_envs = int(mask.sum())
        self._simulator.keep(mask)
        self._generators = [one for one, kept in zip(self._generators, mask, strict=True) if kept]
        self._colors = [colors for colors, kept in zip(self._colors, mask, strict=True) if kept]
        for name in _FLAGS:
            setattr(self, f"_{name}", getattr(self, f"_{name}")[mask])
        self._batch()

    def get_state(self) -> dict[str, NDArray[Any]]:
        """All that the lanes' future depends on, as arrays; their next random tracks excepted."""
        flags = {name: getattr(self, f"_{name}").copy() for name in _FLAGS}
        return self._simulator.get_state() | flags

    def set_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what `get_state` gave, of an environment with as many lanes, on any device.

        Raises:
            WorldModelsError: a state of another number of lanes or another kind.
        """
        wanted = self.observation_space.shape
        try:
            if state["frames"].shape != wanted:
                raise WorldModelsError(
                    f"set_state: frames of shape {state['frames'].shape}, not {wanted}:"
                    " use as many lanes of the same size"
                )
            flags = {name: state[name].copy() for name in _FLAGS}
            self._simulator.set_state(state)
        except KeyError as missing:
            raise WorldModelsError(
                f"set_state: {missing} is missing: give what get_state gave"
            ) from None
        for name, flag in flags.items():
            setattr(self, f"_{name}", flag)

    def render(self) -> tuple[Frames, ...] | None:
        """The frames of the lanes, or None without a render mode."""
        return None if self.render_mode is None else tuple(self._simulator.frames())

    def _options(self, options: dict[str, Any] | None) -> tuple[NDArray[np.bool_], bool]:
        options = dict(options or {})
        mask = options.pop("reset_mask", np.ones(self.num_envs, np.bool_))
        randomize = bool(options.pop("randomize", True))
        if options:
            raise WorldModelsError(
                f"CarRacing cannot reset with options {sorted(options)}: it takes reset_mask and"
                " randomize"
            )
        return self._mask(mask, "reset_mask"), randomize

    def _mask(self, mask: NDArray[np.bool_], name: str) -> NDArray[np.bool_]:
        mask = np.asarray(mask)
        if mask.shape != (self.num_envs,) or mask.dtype != np.bool_ or not mask.any():
            raise WorldModelsError(
                f"{name} is {mask.dtype} of shape {mask.shape}, {int(mask.sum())} set: give one"
                f" bool for each of the {self.num_envs} lanes, and set at least one"
            )
        return mask

    def _seeds(self, seed: int | Sequence[int | None] | None) -> list[int | None]:
        if seed is None:
            return [None] * self.num_envs
        if isinstance(seed, int | np.integer):
            return [int(seed) + lane for lane in range(self.num_envs)]
        seeds = [None if one is None else int(one) for one in seed]
        if len(seeds) != self.num_envs:
            raise WorldModelsError(
                f"{len(seeds)} seeds for {self.num_envs} lanes: give one for each lane"
            )
        for lane, one in enumerate(seeds):
            if one is not None and one < 0:
                raise WorldModelsError(f"lane {lane}: seed {one} is negative: choose another seed")
        return seeds

    def _controls(self, actions: Any) -> Any:
        """Steering, gas and brake ``(N, 3)`` float64, as CarRacing-v3 takes them."""
        shape = tuple(np.shape(actions))
        if shape != self.action_space.shape:
            raise WorldModelsError(
                f"actions have shape {shape}, not {self.action_space.shape}:"
                " give one action for each lane"
            )
        if isinstance(self.single_action_space, Discrete):
            numbers = np.asarray(actions)
            wrong = ~np.isin(numbers, np.arange(5))
            if wrong.any():
                lane = int(np.flatnonzero(wrong)[0])
                raise InvalidAction(f"lane {lane}: action {numbers[lane]} is not one of 0 to 4")
            actions = _DISCRETE[numbers.astype(np.int64)]
        controls, finite = self._simulator.controls(actions)
        if not finite.all():
            lane = int(np.flatnonzero(~finite)[0])
            raise WorldModelsError(
                f"lane {lane}: action {controls[lane].tolist()} is not finite: "
                "the controller or the model before it has diverged"
            )
        return controls

    def _begin(self, mask: NDArray[np.bool_], seeds: Sequence[int | None], recolor: bool) -> None:
        """Put the lanes of `mask` at the start of new courses."""
        lanes = np.flatnonzero(mask).tolist()
        courses = [self._course(lane, seeds[lane], recolor) for lane in lanes]
        for lane, course in zip(lanes, courses, strict=True):
            self._generators[lane], self._colors[lane] = course.generator, course.colors
        self._simulator.begin(lanes, courses)
        self._steps[mask] = 0
        self._terminated[mask] = False
        self._truncated[mask] = False
        self._started[mask] = True

    def _course(self, lane: int, seed: int | None, recolor: bool) -> Course:
        """The next course of a lane."""
        colors = self._colors[lane] if self._randomize else DEFAULT_COLORS
        if self._randomize and recolor:
            colors = None
        if seed is not None and (colors is None or not self._randomize):
            return seeded_course(seed, self._randomize)
        if seed is not None:
            rng, _ = seeding.np_random(seed)
        else:
            rng = np.random.Generator(np.random.PCG64())
            state = self._generators[lane]
            if state is not None:
                rng.bit_generator.state = state
        return draw_course(rng, colors)


def _simulator(
    lanes: int, size: int, percent: float, threads: int, device: str
) -> CpuSimulator | CudaSimulator:
    if device == "cpu":
        return CpuSimulator(lanes, size, percent, threads)
    # Loading torch and numba's CUDA takes a second that others need not spend.
    from worldmodels.envs.carracing.cuda import CudaSimulator

    return CudaSimulator(lanes, size, percent, device)


_warm: set[str] = set()


def warm_up(device: str = "cpu") -> None:
    """Load the compiled kernels, or compile them; says so where they have to be compiled."""
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
