"""One step of the game for every lane: ``CarRacing.step`` and ``Car.step`` without the picture."""

from __future__ import annotations

import math

import numpy as np
from numba import njit, prange

from worldmodels.envs.carracing import bodies, physics
from worldmodels.envs.carracing.contacts import collide
from worldmodels.envs.carracing.state import (
    ANGLE,
    BRAKE,
    COS,
    GAS,
    HULL,
    MOTOR_SPEED,
    OMEGA,
    PHASE,
    PREVIOUS_REWARD,
    PX,
    PY,
    REWARD,
    SHOWN,
    SIN,
    STEER,
    TIME,
    VX,
    VY,
    WHEELS,
)
from worldmodels.envs.carracing.track import PLAYFIELD

FPS = 50
DT = 1.0 / FPS
SIZE = bodies.SIZE
ENGINE_POWER = 100000000 * SIZE * SIZE
MOMENT_OF_INERTIA = 4000 * SIZE * SIZE
FRICTION_LIMIT = 1000000 * SIZE * SIZE
GRASS_LIMIT = FRICTION_LIMIT * 0.6
STIFFNESS = 205000 * SIZE * SIZE
WHEEL_RADIUS = 1.0 * bodies.WHEEL_RADIUS * SIZE
BRAKE_FORCE = 15
RUNNING, LAP_FINISHED, LEFT_FIELD = 0, 1, 2
OFFSET_X = tuple(x * SIZE for x, _ in bodies.WHEEL_POSITIONS)
OFFSET_Y = tuple(y * SIZE for _, y in bodies.WHEEL_POSITIONS)


@njit(cache=True, error_model="numpy")
def _drive(body, joint, wheel, on_road, force):
    """``Car.step``: steering, engine, brakes and tyres of one car; forces (4, 2) on its wheels."""
    for i in range(WHEELS):
        b = i + 1
        angle = np.float64(body[b, ANGLE] - body[HULL, ANGLE])
        turn = wheel[i, STEER] - angle
        joint[i, MOTOR_SPEED] = np.float32(min(max(50.0 * turn, -3.0), 3.0))
        limit = max(GRASS_LIMIT, FRICTION_LIMIT) if on_road[i] else GRASS_LIMIT
        s, c = np.float64(body[b, SIN]), np.float64(body[b, COS])
        vx, vy = np.float64(body[b, VX]), np.float64(body[b, VY])
        forward_speed = -s * vx + c * vy
        side_speed = c * vx + s * vy
        omega = wheel[i, OMEGA]
        omega += DT * ENGINE_POWER * wheel[i, GAS] / MOMENT_OF_INERTIA / (abs(omega) + 5.0)
        brake = wheel[i, BRAKE]
        if brake >= 0.9:
            omega = 0.0
        elif brake > 0:
            omega -= min(max(omega, -BRAKE_FORCE * brake), BRAKE_FORCE * brake)
        wheel[i, PHASE] += omega * DT
        forward = -forward_speed + omega * WHEEL_RADIUS
        sideways = -side_speed
        forward *= STIFFNESS
        sideways *= STIFFNESS
        size = math.sqrt(forward * forward + sideways * sideways)
        if size > limit:
            forward /= size
            sideways /= size
            forward *= limit
            sideways *= limit
        wheel[i, OMEGA] = omega - DT * forward * WHEEL_RADIUS / MOMENT_OF_INERTIA
        force[i, 0] = np.float32(sideways * c + forward * -s)
        force[i, 1] = np.float32(sideways * s + forward * c)


@njit(cache=True, error_model="numpy")
def _control(wheel, steer, gas, brake):
    """``Car.steer``, ``Car.gas`` and ``Car.brake``."""
    wheel[0, STEER] = -steer
    wheel[1, STEER] = -steer
    gas = min(max(gas, 0.0), 1.0)
    for i in range(2, 4):
        wheel[i, GAS] += min(gas - wheel[i, GAS], 0.1)
    for i in range(WHEELS):
        wheel[i, BRAKE] = brake


@njit(cache=True, error_model="numpy")
def _advance(lanes, courses, n, percent):
    """Physics, contacts and time of lane `n`."""
    k = lanes.course[n]
    count = courses.counts[k]
    _drive(lanes.body[n], lanes.joint[n], lanes.wheel[n], lanes.on_road[n], lanes.force[n])
    added, start = collide(
        lanes.body[n],
        courses.tiles[k],
        courses.cells[k],
        courses.near[k],
        lanes.on_road[n],
        lanes.touched[n],
        lanes.visited[n],
    )
    for _ in range(added):
        lanes.score[n, REWARD] += 1000.0 / count
    lanes.visits[n] += added
    if start and lanes.visits[n] / count > percent:
        lanes.lap[n] = True
    physics.step(lanes.body[n], lanes.joint[n], lanes.limit[n], lanes.force[n])
    lanes.score[n, TIME] += DT
    lanes.score[n, SHOWN] = lanes.score[n, REWARD]


@njit(cache=True, error_model="numpy")
def reset_lane(lanes, courses, n, percent):
    """Put the car of lane `n` at its start, and make the step that Gymnasium's reset makes."""
    lanes.joint[n, :] = np.float32(0)
    lanes.limit[n, :] = 0
    lanes.wheel[n, :] = 0.0
    lanes.on_road[n, :] = False
    lanes.score[n, :] = 0.0
    lanes.visited[n, :] = False
    lanes.touched[n, :] = False
    lanes.visits[n] = 0
    lanes.lap[n] = False
    k = lanes.course[n]
    angle, x, y = courses.start[k, 0], courses.start[k, 1], courses.start[k, 2]
    turned = np.float32(angle)
    physics.place(lanes.body[n], HULL, np.float32(x), np.float32(y), turned)
    for w in range(WHEELS):
        wx, wy = np.float32(x + OFFSET_X[w]), np.float32(y + OFFSET_Y[w])
        physics.place(lanes.body[n], w + 1, wx, wy, turned)
    _advance(lanes, courses, n, percent)


@njit(cache=True, error_model="numpy")
def step_lane(lanes, courses, n, steer, gas, brake, percent):
    """One step of lane `n`: its reward, and how it ended (see `step`)."""
    _control(lanes.wheel[n], steer, gas, brake)
    _advance(lanes, courses, n, percent)
    total = lanes.score[n, REWARD] - 0.1
    reward = total - lanes.score[n, PREVIOUS_REWARD]
    lanes.score[n, REWARD] = total
    lanes.score[n, PREVIOUS_REWARD] = total
    end = RUNNING
    if lanes.visits[n] == courses.counts[lanes.course[n]] or lanes.lap[n]:
        end = LAP_FINISHED
    if abs(lanes.body[n, HULL, PX]) > PLAYFIELD or abs(lanes.body[n, HULL, PY]) > PLAYFIELD:
        end = LEFT_FIELD
        reward = -100.0
    return reward, end


@njit(cache=True, error_model="numpy", parallel=True)
def reset(lanes, courses, chosen, percent):
    """Put the cars of the `chosen` lanes (N,) bool at the start of their courses."""
    for n in prange(len(chosen)):
        if chosen[n]:
            reset_lane(lanes, courses, n, percent)


@njit(cache=True, error_model="numpy", parallel=True)
def step(lanes, courses, actions, active, percent, rewards, ends):
    """One step of the `active` lanes.

    Args:
        lanes: state of N lanes, updated in place.
        courses: what they drive on.
        actions: ``(N, 3)`` float64: steering in [-1, 1], gas and brake in [0, 1].
        active: ``(N,)`` bool; the others stay as they are.
        percent: share of the tiles after which a lap counts.
        rewards: ``(N,)`` float64, written for active lanes.
        ends: ``(N,)`` int8, `RUNNING`, `LAP_FINISHED` or `LEFT_FIELD`, written for active lanes.
    """
    for n in prange(len(active)):
        if active[n]:
            rewards[n], ends[n] = step_lane(
                lanes, courses, n, actions[n, 0], actions[n, 1], actions[n, 2], percent
            )
