"""What the simulator keeps of each environment from step to step, the environment axis first."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

HULL, BODIES, WHEELS = 0, 5, 4
"""Body 0 is the hull; body 1 + i is wheel i."""

CX, CY, ANGLE, VX, VY, W, PX, PY, SIN, COS, SLEEP = range(11)
"""A body: centre of mass (m), angle (rad), velocities (m/s, rad/s), position (m) of its frame, sine
and cosine of the angle, seconds at rest."""

JX, JY, JLIMIT, JMOTOR, MOTOR_SPEED = range(5)
"""A joint: the impulses of the last step, with which the next begins; its motor's speed (rad/s)."""

GAS, BRAKE, STEER, PHASE, OMEGA = range(5)
"""A wheel, as in Gymnasium's ``Car``: gas and brake in [0, 1], angles (rad), speed (rad/s)."""

REWARD, PREVIOUS_REWARD, TIME, SHOWN = range(4)
"""`SHOWN` is the return that the frame shows: without the -0.1 of this step."""


class Envs(NamedTuple):
    """The state of N environments.

    Args:
        course: ``(N,)`` int32, the row of each environment in `courses.Courses`.
        body: ``(N, 5, 11)`` float32.
        joint: ``(N, 4, 5)`` float32.
        limit: ``(N, 4)`` int8, where each joint stood in the last step: -1 and +1 at its lower and
            upper limit, 0 between.
        wheel: ``(N, 4, 5)`` float64.
        on_road: ``(N, 4)`` bool, whether a wheel touched a tile when the last step began.
        score: ``(N, 4)`` float64: return so far, the same before the last step, seconds, and the
            return that the frame shows.
        visited: ``(N, T)`` bool, tiles that a wheel has touched; each gives a reward once.
        touched: ``(N, T)`` bool, tiles that any part has touched; they are drawn darker.
        visits: ``(N,)`` int32, number of visited tiles.
        lap: ``(N,)`` bool, whether the lap is complete.
        force: ``(N, 4, 2)`` float32, on the wheels in the last step.
    """

    course: NDArray[np.int32]
    body: NDArray[np.float32]
    joint: NDArray[np.float32]
    limit: NDArray[np.int8]
    wheel: NDArray[np.float64]
    on_road: NDArray[np.bool_]
    score: NDArray[np.float64]
    visited: NDArray[np.bool_]
    touched: NDArray[np.bool_]
    visits: NDArray[np.int32]
    lap: NDArray[np.bool_]
    force: NDArray[np.float32]


BY_TILE = ("visited", "touched")
"""Fields of `Envs` whose second axis is the tiles of a course."""


def empty_envs(num_envs: int, tiles: int) -> Envs:
    """Zeroed state of N environments on tracks of at most T tiles."""
    return Envs(
        np.zeros(num_envs, np.int32),
        np.zeros((num_envs, BODIES, SLEEP + 1), np.float32),
        np.zeros((num_envs, WHEELS, MOTOR_SPEED + 1), np.float32),
        np.zeros((num_envs, WHEELS), np.int8),
        np.zeros((num_envs, WHEELS, OMEGA + 1), np.float64),
        np.zeros((num_envs, WHEELS), np.bool_),
        np.zeros((num_envs, SHOWN + 1), np.float64),
        np.zeros((num_envs, tiles), np.bool_),
        np.zeros((num_envs, tiles), np.bool_),
        np.zeros(num_envs, np.int32),
        np.zeros(num_envs, np.bool_),
        np.zeros((num_envs, WHEELS, 2), np.float32),
    )


def with_room(envs: Envs, tiles: int) -> Envs:
    """The same state, with `visited` and `touched` widened to ``(N, tiles)``."""
    count, before = envs.visited.shape
    visited, touched = np.zeros((2, count, tiles), np.bool_)
    visited[:, :before], touched[:, :before] = envs.visited, envs.touched
    return envs._replace(visited=visited, touched=touched)
