"""A step of every environment: ``CarRacing.step`` and ``Car.step`` without the frame."""

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
def _advance(envs, courses, n, percent):
    """Physics, contacts and time of environment `n`; see `step_env` for the arguments."""
    k = envs.course[n]
    count = courses.counts[k]
    _drive(envs.body[n], envs.joint[n], envs.wheel[n], envs.on_road[n], envs.force[n])
    added, start = collide(
        envs.body[n],
        courses.tiles[k],
        courses.cells[k],
        courses.near[k],
        envs.on_road[n],
        envs.touched[n],
        envs.visited[n],
    )
    for _ in range(added):
        envs.score[n, REWARD] += 1000.0 / count
    envs.visits[n] += added
    if start and envs.visits[n] / count > percent:
        envs.lap[n] = True
    physics.step(envs.body[n], envs.joint[n], envs.limit[n], envs.force[n])
    envs.score[n, TIME] += DT
    envs.score[n, SHOWN] = envs.score[n, REWARD]


@njit(cache=True, error_model="numpy")
def reset_env(envs, courses, n, percent):
    """Put the car of one environment at its start, and make the step that Gymnasium's reset makes.

    Args:
        envs, courses: see `state.Envs` and `courses.Courses`; `envs` is updated in place.
        n: index of the environment.
        percent: share of the tiles after which a lap counts.
    """
    envs.joint[n, :] = np.float32(0)
    envs.limit[n, :] = 0
    envs.wheel[n, :] = 0.0
    envs.on_road[n, :] = False
    envs.score[n, :] = 0.0
    envs.visited[n, :] = False
    envs.touched[n, :] = False
    envs.visits[n] = 0
    envs.lap[n] = False
    k = envs.course[n]
    angle, x, y = courses.start[k, 0], courses.start[k, 1], courses.start[k, 2]
    turned = np.float32(angle)
    physics.place(envs.body[n], HULL, np.float32(x), np.float32(y), turned)
    for w in range(WHEELS):
        wx, wy = np.float32(x + OFFSET_X[w]), np.float32(y + OFFSET_Y[w])
        physics.place(envs.body[n], w + 1, wx, wy, turned)
    _advance(envs, courses, n, percent)


@njit(cache=True, error_model="numpy")
def step_env(envs, courses, n, steer, gas, brake, percent):
    """One step of one environment.

    Args:
        envs, courses: see `state.Envs` and `courses.Courses`; `envs` is updated in place.
        n: index of the environment.
        steer: in [-1, 1].
        gas, brake: in [0, 1].
        percent: share of the tiles after which a lap counts.

    Returns:
        the reward, and `RUNNING`, `LAP_FINISHED` or `LEFT_FIELD`.
    """
    _control(envs.wheel[n], steer, gas, brake)
    _advance(envs, courses, n, percent)
    total = envs.score[n, REWARD] - 0.1
    reward = total - envs.score[n, PREVIOUS_REWARD]
    envs.score[n, REWARD] = total
    envs.score[n, PREVIOUS_REWARD] = total
    end = RUNNING
    if envs.visits[n] == courses.counts[envs.course[n]] or envs.lap[n]:
        end = LAP_FINISHED
    if abs(envs.body[n, HULL, PX]) > PLAYFIELD or abs(envs.body[n, HULL, PY]) > PLAYFIELD:
        end = LEFT_FIELD
        reward = -100.0
    return reward, end


@njit(cache=True, error_model="numpy", parallel=True)
def reset(envs, courses, chosen, percent):
    """Put cars at the start of their courses.

    Args:
        envs: state of N environments, updated in place.
        courses: see `courses.Courses`.
        chosen: ``(N,)`` bool, the environments to reset.
        percent: share of the tiles after which a lap counts.
    """
    for n in prange(len(chosen)):
        if chosen[n]:
            reset_env(envs, courses, n, percent)


@njit(cache=True, error_model="numpy", parallel=True)
def step(envs, courses, actions, active, percent, rewards, ends):
    """One step of the `active` environments.

    Args:
        envs: state of N environments, updated in place.
        courses: see `courses.Courses`.
        actions: ``(N, 3)`` float64: steering in [-1, 1], gas and brake in [0, 1].
        active: ``(N,)`` bool; the others stay as they are.
        percent: share of the tiles after which a lap counts.
        rewards: ``(N,)`` float64, written for active environments.
        ends: ``(N,)`` int8, `RUNNING`, `LAP_FINISHED` or `LEFT_FIELD`, written for active ones.
    """
    for n in prange(len(active)):
        if active[n]:
            rewards[n], ends[n] = step_env(
                envs, courses, n, actions[n, 0], actions[n, 1], actions[n, 2], percent
            )
