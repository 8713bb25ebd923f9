"""CarRacing in numba behind Gymnasium's vector interface."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numba
import numpy as np
from gymnasium.error import InvalidAction, ResetNeeded
from gymnasium.spaces import Box, Discrete
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from worldmodels.envs.carracing import game, picture
from worldmodels.envs.carracing.courses import (
    Courses,
    draw_course,
    empty_courses,
    put,
    seeded_course,
)
from worldmodels.envs.carracing.state import Lanes, empty_lanes, with_room
from worldmodels.envs.carracing.track import DEFAULT_COLORS, Colors
from worldmodels.errors import WorldModelsError

Frames = NDArray[np.uint8]
StepResult = tuple[
    Frames, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]
]

_DISCRETE = np.array([(0, 0, 0), (0.6, 0, 0), (-0.6, 0, 0), (0, 0.2, 0), (0, 0, 0.8)], np.float64)
"""Steering, gas and brake of the five discrete actions: nothing, right, left, gas, brake."""

_CORES: int = vars(numba.config)["NUMBA_NUM_THREADS"]

log = logging.getLogger(__name__)


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
        self._percent, self._randomize, self._threads = (
            lap_complete_percent,
            domain_randomize,
            min(threads, _CORES),
        )
        self._lanes = empty_lanes(num_envs, 1)
        self._courses = empty_courses(num_envs)
        self._rngs: list[np.random.Generator | None] = [None] * num_envs
        self._colors: list[Colors | None] = [None] * num_envs
        self._frames = np.zeros((num_envs, size, size, 3), np.uint8)
        self._steps = np.zeros(num_envs, np.int64)
        self._terminated = np.zeros(num_envs, np.bool_)
        self._truncated = np.zeros(num_envs, np.bool_)
        self._started = np.zeros(num_envs, np.bool_)
        self._batch()
        warm_up()

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
        self._draw(mask)
        return self._frames.copy(), {}

    def step(self, actions: NDArray[Any]) -> StepResult:
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
        rewards = np.zeros(self.num_envs, np.float64)
        ends = np.zeros(self.num_envs, np.int8)
        numba.set_num_threads(self._threads)
        game.step(self._lanes, self._courses, controls, active, self._percent, rewards, ends)
        self._steps[active] += 1
        self._terminated[active] = ends[active] != game.RUNNING
        if self._limit is not None:
            self._truncated[active] = self._steps[active] >= self._limit
        infos: dict[str, Any] = {}
        if self._autoreset is AutoresetMode.NEXT_STEP and ended.any():
            self._begin(ended, [None] * self.num_envs, True)
            active = np.ones(self.num_envs, np.bool_)
        self._draw(active)
        if (ends != game.RUNNING).any():
            infos["lap_finished"] = ends == game.LAP_FINISHED
            infos["_lap_finished"] = ends != game.RUNNING
        terminated, truncated = self._terminated.copy(), self._truncated.copy()
        now = terminated | truncated
        if self._autoreset is AutoresetMode.SAME_STEP and now.any():
            infos = {
                "final_obs": np.array(
                    [f.copy() if end else None for f, end in zip(self._frames, now, strict=True)],
                    object,
                ),
                "_final_obs": now,
                "final_info": infos,
                "_final_info": now,
            }
            self._begin(now, [None] * self.num_envs, True)
            self._draw(now)
        return self._frames.copy(), rewards, terminated, truncated, infos

    def keep(self, mask: NDArray[np.bool_]) -> None:
        """Drop the lanes where `mask` (N,) is False; the others close ranks and go on."""
        mask = self._mask(mask, "keep")
        self.num_envs = int(mask.sum())
        self._lanes = Lanes._make(array[mask] for array in self._lanes)
        self._courses = Courses._make(array[mask] for array in self._courses)
        self._rngs = [rng for rng, kept in zip(self._rngs, mask, strict=True) if kept]
        self._colors = [colors for colors, kept in zip(self._colors, mask, strict=True) if kept]
        for name in ("_frames", "_steps", "_terminated", "_truncated", "_started"):
            setattr(self, name, getattr(self, name)[mask])
        self._batch()

    def get_state(self) -> dict[str, NDArray[Any]]:
        """All that the lanes' future depends on, as arrays; their next random tracks excepted."""
        state = {f"lanes.{name}": array.copy() for name, array in self._lanes._asdict().items()}
        for name, array in self._courses._asdict().items():
            state[f"courses.{name}"] = array.copy()
        for name in ("frames", "steps", "terminated", "truncated", "started"):
            state[name] = getattr(self, f"_{name}").copy()
        return state

    def set_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what `get_state` gave, of an environment with as many lanes.

        Raises:
            WorldModelsError: a state of another number of lanes or another kind.
        """
        try:
            lanes = Lanes._make(state[f"lanes.{name}"].copy() for name in Lanes._fields)
            courses = Courses._make(state[f"courses.{name}"].copy() for name in Courses._fields)
        except KeyError as missing:
            raise WorldModelsError(
                f"set_state: {missing} is missing: give what get_state gave"
            ) from None
        if len(lanes.body) != self.num_envs or state["frames"].shape != self._frames.shape:
            raise WorldModelsError(
                f"set_state: frames of shape {state['frames'].shape}, not {self._frames.shape}:"
                " use as many lanes of the same size"
            )
        self._lanes, self._courses = lanes, courses
        for name in ("frames", "steps", "terminated", "truncated", "started"):
            setattr(self, f"_{name}", state[name].copy())

    def render(self) -> tuple[Frames, ...] | None:
        """The frames of the lanes, or None without a render mode."""
        return None if self.render_mode is None else tuple(self._frames.copy())

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

    def _controls(self, actions: NDArray[Any]) -> NDArray[np.float64]:
        """Steering, gas and brake ``(N, 3)`` float64, as CarRacing-v3 takes them."""
        actions = np.asarray(actions)
        if actions.shape != self.action_space.shape:
            raise WorldModelsError(
                f"actions have shape {actions.shape}, not {self.action_space.shape}:"
                " give one action for each lane"
            )
        if isinstance(self.single_action_space, Discrete):
            wrong = ~np.isin(actions, np.arange(5))
            if wrong.any():
                lane = int(np.flatnonzero(wrong)[0])
                raise InvalidAction(f"lane {lane}: action {actions[lane]} is not one of 0 to 4")
            return _DISCRETE[actions.astype(np.int64)]
        controls = actions.astype(np.float64)
        if not np.isfinite(controls).all():
            lane = int(np.flatnonzero(~np.isfinite(controls).all(axis=1))[0])
            raise WorldModelsError(
                f"lane {lane}: action {controls[lane].tolist()} is not finite: "
                "the controller or the model before it has diverged"
            )
        return controls

    def _begin(self, mask: NDArray[np.bool_], seeds: Sequence[int | None], recolor: bool) -> None:
        """Put the lanes of `mask` at the start of new courses."""
        for lane in np.flatnonzero(mask).tolist():
            seed = seeds[lane]
            old = self._colors[lane] if self._randomize else DEFAULT_COLORS
            colors = None if self._randomize and (recolor or old is None) else old
            rng = self._rngs[lane]
            if rng is None or seed is not None:
                rng = np.random.Generator(np.random.PCG64())
                self._rngs[lane] = rng
            if seed is None:
                course = draw_course(rng, colors)
            elif self._randomize and colors is not None:
                rng, _ = seeding.np_random(seed)
                self._rngs[lane] = rng
                course = draw_course(rng, colors)
            else:
                course = seeded_course(seed, self._randomize)
                rng.bit_generator.state = course.generator
            self._colors[lane] = course.colors
            self._courses = put(self._courses, lane, course)
        tiles = self._courses.tiles.shape[1]
        if self._lanes.visited.shape[1] < tiles:
            self._lanes = with_room(self._lanes, tiles)
        numba.set_num_threads(self._threads)
        game.reset(self._lanes, self._courses, mask, self._percent)
        self._steps[mask] = 0
        self._terminated[mask] = False
        self._truncated[mask] = False
        self._started[mask] = True

    def _draw(self, mask: NDArray[np.bool_]) -> None:
        numba.set_num_threads(self._threads)
        draw = picture.draw_small if self._frames.shape[1] == picture.SMALL else picture.draw_full
        draw(self._lanes, self._courses, mask, self._frames)


_warm = False


def warm_up() -> None:
    """Load the compiled kernels, or compile them; says so where that takes a while."""
    global _warm
    if _warm:
        return
    notice = threading.Timer(
        2.0, log.warning, ["compiling the CarRacing simulator: half a minute, once on this machine"]
    )
    notice.daemon = True
    notice.start()
    try:
        lanes, courses = empty_lanes(1, 1), empty_courses(1)
        courses = put(courses, 0, seeded_course(0, False))
        lanes = empty_lanes(1, courses.tiles.shape[1])
        on = np.ones(1, np.bool_)
        game.reset(lanes, courses, on, 0.95)
        game.step(lanes, courses, np.zeros((1, 3)), on, 0.95, np.zeros(1), np.zeros(1, np.int8))
        picture.draw_small(lanes, courses, on, np.zeros((1, 64, 64, 3), np.uint8))
        picture.draw_full(lanes, courses, on, np.zeros((1, 96, 96, 3), np.uint8))
    finally:
        notice.cancel()
    _warm = True
