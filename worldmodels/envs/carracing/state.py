"""Everything that a lane carries from step to step, in arrays with the lane axis first."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

HULL, BODIES, WHEELS = 0, 5, 4
"""Body 0 is the hull; body 1 + i is wheel i."""

CX, CY, ANGLE, VX, VY, W, PX, PY, SIN, COS, SLEEP = range(11)
"""A body: centre of mass, angle, velocities, the transform of its frame, seconds at rest."""

JX, JY, JLIMIT, JMOTOR, MOTOR_SPEED = range(5)
"""A joint: the impulses of the last step, which the next begins with, and its motor's speed."""

GAS, BRAKE, STEER, PHASE, OMEGA = range(5)
"""A wheel, as Gymnasium's ``Car`` keeps it."""

REWARD, PREVIOUS_REWARD, TIME, SHOWN = range(4)
"""`SHOWN` is the return as the picture has it: before this step's price."""


class Lanes(NamedTuple):
    """The state of N lanes.

    Args:
        course: ``(N,)`` int32, which of the courses each lane drives on; see `courses.Courses`.
        body: ``(N, 5, 11)`` float32.
        joint: ``(N, 4, 5)`` float32.
        limit: ``(N, 4)`` int8, where each joint stood in the last step: -1 and +1 at its lower and
            upper limit, 0 between.
        wheel: ``(N, 4, 5)`` float64.
        on_road: ``(N, 4)`` bool, whether a wheel touched a tile when the last step began.
        score: ``(N, 4)`` float64: return so far, the same before the last step, seconds, and the
            return that the picture shows.
        visited: ``(N, T)`` bool, tiles that a wheel has touched; they are paid once.
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


def empty_lanes(lanes: int, tiles: int) -> Lanes:
    """Zeroed state of N lanes on tracks of at most T tiles."""
    return Lanes(
        np.zeros(lanes, np.int32),
        np.zeros((lanes, BODIES, SLEEP + 1), np.float32),
        np.zeros((lanes, WHEELS, MOTOR_SPEED + 1), np.float32),
        np.zeros((lanes, WHEELS), np.int8),
        np.zeros((lanes, WHEELS, OMEGA + 1), np.float64),
        np.zeros((lanes, WHEELS), np.bool_),
        np.zeros((lanes, SHOWN + 1), np.float64),
        np.zeros((lanes, tiles), np.bool_),
        np.zeros((lanes, tiles), np.bool_),
        np.zeros(lanes, np.int32),
        np.zeros(lanes, np.bool_),
        np.zeros((lanes, WHEELS, 2), np.float32),
    )


def with_room(lanes: Lanes, tiles: int) -> Lanes:
    """The same state, with room for tracks of so many tiles."""
    count, before = lanes.visited.shape
    visited, touched = np.zeros((2, count, tiles), np.bool_)
    visited[:, :before], touched[:, :before] = lanes.visited, lanes.touched
    return lanes._replace(visited=visited, touched=touched)
