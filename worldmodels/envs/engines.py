"""The factory of real environments: engine, time limit, observations, actions."""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium
from gymnasium.envs.registration import find_highest_version, get_env_id, parse_env_id
from gymnasium.vector import AutoresetMode, VectorEnv

from worldmodels.envs.action_spec import wrap_actions
from worldmodels.envs.carracing.vector import CarRacingVectorEnv, warm_up
from worldmodels.envs.envpool_engine import EnvPoolVectorEnv, envpool_has
from worldmodels.envs.gymnasium_engine import GymnasiumVectorEnv
from worldmodels.envs.mirror import Panel
from worldmodels.envs.observation import PixelObservation
from worldmodels.envs.repeat import RepeatedActions
from worldmodels.envs.rewards import FiniteRewards
from worldmodels.envs.television import NoisyTelevision
from worldmodels.errors import ConfigError, install

log = logging.getLogger(__name__)

ENGINES = ("auto", "native", "gymnasium", "envpool")
NATIVE = "CarRacing-v3"
"""What the native engine simulates."""
_NATIVE_FRAME = (84, 64)
"""The crop and size that it draws directly."""

_PICTURE_ROWS, _FIRST_ROW = 96, 84
"""Rows of CarRacing's picture, and the first one of its instruments."""
_BARS = ((3 / 8, 5 / 8), (5 / 8, 7 / 8))
"""Columns, in fractions of the width, of the instruments for steering and turning: bars that grow
from the middle to either side."""


@dataclass(frozen=True)
class EnvSpec:
    """A real environment as it is configured.

    Args:
        id: name of the environment in its engine's registry.
        engine: "native" (CarRacing only, Gymnasium's episodes, by far the fastest); "gymnasium";
            "envpool" (its own pictures and tracks); or "auto", see `resolve_engine`.
        max_steps: time limit of an episode in steps; reaching it is truncation.
        crop_rows: rows of the picture to keep from the top; None keeps all.
        size: side of the square frames in pixels.
        action_bins: the discrete actions of the thirds of one number.
        frame_skip: steps of the simulator for each step; `max_steps` counts the latter.
        sticky_actions: probability that a step of the simulator repeats the action before.
        television: number of the action that turns a noisy television on; None: there is none.
        kwargs: further arguments of the engine's own `make`.

    Raises:
        ConfigError: an engine that does not exist, or a number below 1.
    """

    id: str = "CarRacing-v3"
    engine: str = "auto"
    max_steps: int = 1000
    crop_rows: int | None = 84
    size: int = 64
    action_bins: tuple[int, ...] | None = None
    frame_skip: int = 1
    sticky_actions: float = 0.0
    television: int | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise ConfigError(f"env.engine={self.engine}: choose one of {', '.join(ENGINES)}")
        for key in ("max_steps", "crop_rows", "size"):
            value = getattr(self, key)
            if value is not None and value < 1:
                raise ConfigError(f"env.{key}={value}: choose 1 or more")


def resolve_engine(spec: EnvSpec) -> str:
    """Return the engine that `make_vector_env` will use: "native", "gymnasium" or "envpool".

    "auto" is the native one for what it simulates, then EnvPool where it is installed and has the
    environment, else Gymnasium; it is also Gymnasium where `spec.kwargs` are given for another
    environment than the native one, for these are names of `gymnasium.make`.

    Raises:
        ConfigError: the engine that `spec` names is not available.
    """
    if spec.engine in ("native", "auto") and spec.id == NATIVE:
        return "native"
    if spec.engine == "native":
        raise ConfigError(
            f"engine=native simulates {NATIVE}, not {spec.id}: choose auto for env.engine and"
            " watch.engine, gymnasium or auto for evaluate.engine"
        )
    if spec.engine == "gymnasium" or (spec.engine == "auto" and spec.kwargs):
        return "gymnasium"
    if envpool_has(spec.id):
        return "envpool"
    if spec.engine == "envpool":
        raise ConfigError(
            f"env.engine=envpool: EnvPool is not installed or has no {spec.id}: "
            f"{install('envpool')}, or use env.engine=gymnasium"
        )
    return "gymnasium"


def mirrored_panel(spec: EnvSpec) -> Panel | None:
    """CarRacing's instruments, if the frames show them; see `worldmodels.envs.mirror`.

    Speed, wheels and score stay as they are: where a left wheel turns faster than the right one by
    10 rad/s, its bar is higher by a sixth of a pixel of a frame of 64.
    """
    rows = spec.crop_rows or _PICTURE_ROWS
    shown = spec.id == NATIVE and rows > _FIRST_ROW
    return Panel(_FIRST_ROW / rows, _BARS) if shown else None


def check_registered(spec: EnvSpec) -> None:
    """Raise `ConfigError` for an environment that is not registered, without making it."""
    if resolve_engine(spec) != "gymnasium":
        return  # the other engines are only chosen for environments that they have
    module, _, name = spec.id.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
        namespace, base, version = parse_env_id(name)
        if version is None:  # make takes the newest
            version = find_highest_version(namespace, base)
        gymnasium.spec(get_env_id(namespace, base, version))
    except Exception as error:  # a module of another package may raise any
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(
            f"env.id={spec.id}: is not registered ({reason}); choose an environment of Gymnasium,"
            " or module:Name-v0 with the module that registers it"
        ) from None


def check_restorable(key: str, spec: EnvSpec) -> None:
    """Raise `ConfigError`, naming `key`, for environments that cannot be set back to a state, or
    whose actions are not steering, gas and brake."""
    if spec.sticky_actions:
        raise ConfigError(
            f"{key}: environments with sticky actions cannot be set back to an earlier state;"
            " choose env.sticky_actions=0, or null"
        )
    if resolve_engine(spec) != "native" or not spec.kwargs.get("continuous", True):
        raise ConfigError(
            f"{key}: {spec.id} cannot be set back to an earlier state on this engine; choose"
            f" {NATIVE} with env.engine=native and continuous actions, or null"
        )


def prepare(spec: EnvSpec, device: str = "cpu") -> None:
    """Compile the engine, if it needs that, before worker processes load it.

    Args:
        spec: the environment.
        device: of the models, as for `make_vector_env`.
    """
    if resolve_engine(spec) == "native":
        warm_up(simulation_device(spec, device))


def make_vector_env(
    spec: EnvSpec,
    num_envs: int,
    processes: int = 1,
    device: str = "cpu",
    finite_rewards: bool = True,
) -> VectorEnv[Any, Any, Any]:
    """Open N copies of an environment that run in lockstep, without autoreset.

    Whatever the engine:

    - `reset(seed=[s_0, ..., s_N-1])` starts in environment i the episode of seed s_i, the same
      whichever environment it is, how many there are and what ran before. Seeds are in
      0..2**31 - 1; None draws one.
    - `step(actions)` takes finite ``(N, A)``, whatever kind of actions the environment has (see
      `worldmodels.envs.action_spec`), and returns frames ``(N, size, size, 3)`` uint8,
      rewards ``(N,)`` float64, terminated and truncated ``(N,)`` bool, and infos. Only the time
      limit of `spec.max_steps` truncates.
    - An environment that has ended is frozen until the next reset: it costs no simulation and
      returns its last frame, reward 0 and the flags it ended with.
    - `close()` may be called again, and leaves no process.

    CarRacing (Gymnasium 1.4) terminates when a lap is complete and, with reward -100, when the
    car leaves the playfield.

    Args:
        spec: the environment.
        num_envs: number of environments N.
        processes: how many of this machine's cores to simulate on. 1 keeps everything in this
            process; more are threads, or Gymnasium's processes (one for each environment).
        device: where the frames are wanted. On a GPU the native engine simulates there (see
            `simulation_device`) and returns torch tensors; else the frames are on the host.
        finite_rewards: whether a reward that is not finite is an error; else it is returned.

    Raises:
        ConfigError: the environment cannot be made, has no image observations, or has actions of a
            kind that is not supported; in `step`, a reward is not finite.
    """
    for name, number in (("num_envs", num_envs), ("processes", processes)):
        if number < 1:
            raise ConfigError(f"{name}={number}: choose 1 or more")
    chosen = resolve_engine(spec)
    env: VectorEnv[Any, Any, Any]
    if chosen == "native":
        size = spec.size if _draws_frames(spec) else 96
        env = _native_vector_env(spec, num_envs, processes, size, simulation_device(spec, device))
        if _draws_frames(spec):
            return _watched(spec, wrap_actions(spec.id, _repeating(spec, env), spec.action_bins))
    else:
        env = _foreign_vector_env(spec, chosen, num_envs, processes)
        if finite_rewards:
            env = FiniteRewards(env, spec.id)
    env = _repeating(spec, env)
    try:
        framed = PixelObservation(env, size=spec.size, crop_rows=spec.crop_rows)
        return _watched(spec, wrap_actions(spec.id, framed, spec.action_bins))
    except ConfigError:
        env.close()
        raise


def _repeating(spec: EnvSpec, env: VectorEnv[Any, Any, Any]) -> VectorEnv[Any, Any, Any]:
    """Environments that repeat actions as `spec` says."""
    if spec.frame_skip == 1 and not spec.sticky_actions:
        return env
    return RepeatedActions(env, spec.sticky_actions, spec.frame_skip, _skips_by_itself(spec))


def _skips_by_itself(spec: EnvSpec) -> bool:
    """Whether the environment takes all steps of an action in one: ViZDoom, which then draws only
    the last of them."""
    given = spec.sticky_actions or "frame_skip" in spec.kwargs
    return spec.id.startswith("vizdoom.") and spec.frame_skip > 1 and not given


def _watched(spec: EnvSpec, env: VectorEnv[Any, Any, Any]) -> VectorEnv[Any, Any, Any]:
    """Environments with the noisy television of `spec`, if it has one."""
    return env if spec.television is None else NoisyTelevision(env, spec.television)


def _simulated_steps(spec: EnvSpec) -> int:
    """The time limit in steps of the simulator."""
    return spec.max_steps * spec.frame_skip


def _draws_frames(spec: EnvSpec) -> bool:
    """Whether the native engine draws the frames of `spec` itself; else they are made from whole
    pictures."""
    return (spec.crop_rows, spec.size) == _NATIVE_FRAME


def simulation_device(spec: EnvSpec, device: str) -> str:
    """Where the native engine simulates for models on `device`: there, if numba can.

    Numba supports CUDA and no other GPU. Frames that are made from whole pictures are made on the
    host, so that the CPU simulates them.
    """
    if not device.startswith("cuda") or not _draws_frames(spec):
        return "cpu"
    # Loading numba's CUDA takes a while, and most have no use for it.
    from worldmodels.envs.carracing.cuda import usable

    if usable():
        return device
    _warn_once(f"the native engine simulates on the CPU: for the GPU, {install('cuda')}")
    return "cpu"


@functools.cache
def _warn_once(line: str) -> None:
    log.warning(line)


def _foreign_vector_env(
    spec: EnvSpec, engine: str, num_envs: int, processes: int
) -> VectorEnv[Any, Any, Any]:
    kind = EnvPoolVectorEnv if engine == "envpool" else GymnasiumVectorEnv
    steps, kwargs = _simulated_steps(spec), spec.kwargs
    if _skips_by_itself(spec):
        steps, kwargs = spec.max_steps, {**kwargs, "frame_skip": spec.frame_skip}
    return kind(spec.id, num_envs, processes, steps, kwargs)


def _native_vector_env(
    spec: EnvSpec, num_envs: int, threads: int, size: int, device: str
) -> CarRacingVectorEnv:
    try:
        return CarRacingVectorEnv(
            num_envs,
            max_episode_steps=_simulated_steps(spec),
            size=size,
            autoreset_mode=AutoresetMode.DISABLED,
            threads=threads,
            device=device,
            **spec.kwargs,
        )
    except TypeError as error:
        raise ConfigError(f"env.kwargs: {error}: the native engine has no such argument") from error
