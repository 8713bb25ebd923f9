"""One step of the car as Box2D 2.3 integrates it: five bodies, four revolute joints, no contacts.

Follows ``b2Island::Solve`` and ``b2RevoluteJoint`` operation by operation in float32, so that a
step ends in Box2D's bits. The car's contacts are all with sensors, which push nothing, and every
step begins with the wheels pushed and the joints' motors set, which wakes all bodies: the whole
car is one island, with its joints in the order in which Box2D's search finds them, last wheel
first.

A joint is a tuple of scalars here, so that a compiler keeps it in registers.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from worldmodels.envs.carracing import bodies
from worldmodels.envs.carracing.state import (
    ANGLE,
    COS,
    CX,
    CY,
    JLIMIT,
    JMOTOR,
    JX,
    JY,
    MOTOR_SPEED,
    PX,
    PY,
    SIN,
    SLEEP,
    VX,
    VY,
    WHEELS,
    W,
)

_F = np.float32
ZERO, ONE = _F(0), _F(1)
DT = _F(1 / 50)
VELOCITY_ITERATIONS, POSITION_ITERATIONS = 180, 60
LOWER, UPPER = _F(-0.4), _F(0.4)
MAX_MOTOR_IMPULSE = DT * _F(180 * 900 * bodies.SIZE * bodies.SIZE)
MASS_A, INERTIA_A = bodies.HULL.inverse_mass, bodies.HULL.inverse_inertia
MASS_B, INERTIA_B = bodies.WHEEL.inverse_mass, bodies.WHEEL.inverse_inertia
HULL_X, HULL_Y = bodies.HULL.center
WHEEL_X, WHEEL_Y = bodies.WHEEL.center
# Where the joints are, seen from the hull's centre; and from the wheels'.
ANCHOR_X = tuple(_F(x - HULL_X) for x in bodies.ANCHORS[:, 0])
ANCHOR_Y = tuple(_F(y - HULL_Y) for y in bodies.ANCHORS[:, 1])
WHEEL_ANCHOR_X, WHEEL_ANCHOR_Y = _F(ZERO - WHEEL_X), _F(ZERO - WHEEL_Y)
MASS_SUM, INERTIA_SUM = _F(MASS_A + MASS_B), _F(INERTIA_A + INERTIA_B)
MOTOR_MASS = _F(ONE / INERTIA_SUM)

_PI = _F(3.14159265359)
LINEAR_SLOP, ANGULAR_SLOP = _F(0.005), _F(_F(2) / _F(180) * _PI)
MAX_ANGULAR_CORRECTION = _F(_F(8) / _F(180) * _PI)
MAX_TRANSLATION, MAX_ROTATION = _F(2), _F(_F(0.5) * _PI)
MAX_TRANSLATION_2, MAX_ROTATION_2 = _F(4), _F(MAX_ROTATION * MAX_ROTATION)
SLEEP_SPEED_2, SLEEP_SPIN_2 = _F(_F(0.01) * _F(0.01)), _F(ANGULAR_SLOP * ANGULAR_SLOP)
TIME_TO_SLEEP = _F(0.5)


@njit(cache=True, error_model="numpy")
def _begin(hull, body, joint, limit, j):
    """``b2RevoluteJoint::InitVelocityConstraints`` with warm starting.

    Returns the hull's and the wheel's velocity, the impulses, and what the iterations need.
    """
    vax, vay, wa = hull
    wheel = j + 1
    vbx, vby, wb = body[wheel, VX], body[wheel, VY], body[wheel, W]
    aa, ab = body[0, ANGLE], body[wheel, ANGLE]
    sa, ca, sb, cb = math.sin(aa), math.cos(aa), math.sin(ab), math.cos(ab)
    ax, ay = ANCHOR_X[j], ANCHOR_Y[j]
    rax, ray = ca * ax - sa * ay, sa * ax + ca * ay
    rbx = cb * WHEEL_ANCHOR_X - sb * WHEEL_ANCHOR_Y
    rby = sb * WHEEL_ANCHOR_X + cb * WHEEL_ANCHOR_Y
    m11 = MASS_SUM + ray * ray * INERTIA_A + rby * rby * INERTIA_B
    m12 = -ray * rax * INERTIA_A - rby * rbx * INERTIA_B
    m13 = -ray * INERTIA_A - rby * INERTIA_B
    m22 = MASS_SUM + rax * rax * INERTIA_A + rbx * rbx * INERTIA_B
    m23 = rax * INERTIA_A + rbx * INERTIA_B
    angle = ab - aa
    state = 0
    if angle <= LOWER:
        state = -1
    elif angle >= UPPER:
        state = 1
    ix, iy, iz, im = joint[j, JX], joint[j, JY], joint[j, JLIMIT], joint[j, JMOTOR]
    if state == 0 or state != limit[j]:
        iz = ZERO
    limit[j] = state
    vax -= MASS_A * ix
    vay -= MASS_A * iy
    wa -= INERTIA_A * ((rax * iy - ray * ix) + im + iz)
    vbx += MASS_B * ix
    vby += MASS_B * iy
    wb += INERTIA_B * ((rbx * iy - rby * ix) + im + iz)
    det = m11 * m22 - m12 * m12
    if det != ZERO:
        det = ONE / det
    # The third row and column, and the determinant, of the matrix with the limit.
    c1 = m22 * INERTIA_SUM - m23 * m23
    c2 = m23 * m13 - m12 * INERTIA_SUM
    c3 = m12 * m23 - m22 * m13
    det3 = m11 * c1 + m12 * c2 + m13 * c3
    if det3 != ZERO:
        det3 = ONE / det3
    known = (rax, ray, rbx, rby, m11, m12, m22, det, joint[j, MOTOR_SPEED], m13, m23, det3)
    return (vax, vay, wa), (vbx, vby, wb), (ix, iy, iz, im), known


@njit(cache=True, error_model="numpy")
def _iterate(hull, wheel, impulse, known, state):
    """``b2RevoluteJoint::SolveVelocityConstraints``: the motor, then the pin or the limit."""
    vax, vay, wa = hull
    vbx, vby, wb = wheel
    ix, iy, iz, im = impulse
    rax, ray, rbx, rby, m11, m12, m22, det, speed, m13, m23, det3 = known
    wanted = im + -MOTOR_MASS * (wb - wa - speed)
    new = max(-MAX_MOTOR_IMPULSE, min(wanted, MAX_MOTOR_IMPULSE))
    change = new - im
    im = new
    wa -= INERTIA_A * change
    wb += INERTIA_B * change
    # b2Cross(w, r) = (-w * r.y, w * r.x)
    cx = vbx + -wb * rby - vax - -wa * ray
    cy = vby + wb * rbx - vay - wa * rax
    if state == 0:
        cx, cy = -cx, -cy
        px = det * (m22 * cx - m12 * cy)
        py = det * (m11 * cy - m12 * cx)
        ix += px
        iy += py
        vax -= MASS_A * px
        vay -= MASS_A * py
        wa -= INERTIA_A * (rax * py - ray * px)
        vbx += MASS_B * px
        vby += MASS_B * py
        wb += INERTIA_B * (rbx * py - rby * px)
    else:
        cz = wb - wa
        # b2Mat33::Solve33 by Cramer's rule, with m13 = m31 and so on.
        e1, e2, e3 = (
            m22 * INERTIA_SUM - m23 * m23,
            m23 * m13 - m12 * INERTIA_SUM,
            m12 * m23 - m22 * m13,
        )
        px = -(det3 * (cx * e1 + cy * e2 + cz * e3))
        f1, f2, f3 = cy * INERTIA_SUM - cz * m23, cz * m13 - cx * INERTIA_SUM, cx * m23 - cy * m13
        py = -(det3 * (m11 * f1 + m12 * f2 + m13 * f3))
        g1, g2, g3 = m22 * cz - m23 * cy, m23 * cx - m12 * cz, m12 * cy - m22 * cx
        pz = -(det3 * (m11 * g1 + m12 * g2 + m13 * g3))
        total = iz + pz
        if (state < 0 and total < ZERO) or (state > 0 and total > ZERO):
            bx, by = -cx + iz * m13, -cy + iz * m23
            px = det * (m22 * bx - m12 * by)
            py = det * (m11 * by - m12 * bx)
            pz = -iz
            ix += px
            iy += py
            iz = ZERO
        else:
            ix += px
            iy += py
            iz = total
        vax -= MASS_A * px
        vay -= MASS_A * py
        wa -= INERTIA_A * ((rax * py - ray * px) + pz)
        vbx += MASS_B * px
        vby += MASS_B * py
        wb += INERTIA_B * ((rbx * py - rby * px) + pz)
    return (vax, vay, wa), (vbx, vby, wb), (ix, iy, iz, im)


@njit(cache=True, error_model="numpy")
def _integrate(body, b, velocity):
    """The end of ``b2Island::Solve``'s velocities: bounded, and added to the position."""
    vx, vy, w = velocity
    tx, ty = DT * vx, DT * vy
    moved = tx * tx + ty * ty
    if moved > MAX_TRANSLATION_2:
        ratio = MAX_TRANSLATION / math.sqrt(moved)
        vx *= ratio
        vy *= ratio
    turned = DT * w
    if turned * turned > MAX_ROTATION_2:
        w *= MAX_ROTATION / abs(turned)
    body[b, CX] += DT * vx
    body[b, CY] += DT * vy
    body[b, ANGLE] += DT * w
    body[b, VX] = vx
    body[b, VY] = vy
    body[b, W] = w


@njit(cache=True, error_model="numpy")
def _correct(body, state, j):
    """``b2RevoluteJoint::SolvePositionConstraints``; whether the errors are small."""
    wheel = j + 1
    aa, ab = body[0, ANGLE], body[wheel, ANGLE]
    angular_error = ZERO
    if state != 0:
        angle = ab - aa
        if state < 0:
            c = angle - LOWER
            angular_error = -c
            c = max(-MAX_ANGULAR_CORRECTION, min(c + ANGULAR_SLOP, ZERO))
        else:
            c = angle - UPPER
            angular_error = c
            c = max(ZERO, min(c - ANGULAR_SLOP, MAX_ANGULAR_CORRECTION))
        impulse = -MOTOR_MASS * c
        aa -= INERTIA_A * impulse
        ab += INERTIA_B * impulse
    sa, ca, sb, cb = math.sin(aa), math.cos(aa), math.sin(ab), math.cos(ab)
    ax, ay = ANCHOR_X[j], ANCHOR_Y[j]
    rax, ray = ca * ax - sa * ay, sa * ax + ca * ay
    rbx = cb * WHEEL_ANCHOR_X - sb * WHEEL_ANCHOR_Y
    rby = sb * WHEEL_ANCHOR_X + cb * WHEEL_ANCHOR_Y
    cx = body[wheel, CX] + rbx - body[0, CX] - rax
    cy = body[wheel, CY] + rby - body[0, CY] - ray
    error = math.sqrt(cx * cx + cy * cy)
    k11 = MASS_SUM + INERTIA_A * ray * ray + INERTIA_B * rby * rby
    k12 = -INERTIA_A * rax * ray - INERTIA_B * rbx * rby
    k22 = MASS_SUM + INERTIA_A * rax * rax + INERTIA_B * rbx * rbx
    det = k11 * k22 - k12 * k12
    if det != ZERO:
        det = ONE / det
    px = -(det * (k22 * cx - k12 * cy))
    py = -(det * (k11 * cy - k12 * cx))
    body[0, CX] -= MASS_A * px
    body[0, CY] -= MASS_A * py
    body[0, ANGLE] = aa - INERTIA_A * (rax * py - ray * px)
    body[wheel, CX] += MASS_B * px
    body[wheel, CY] += MASS_B * py
    body[wheel, ANGLE] = ab + INERTIA_B * (rbx * py - rby * px)
    return error <= LINEAR_SLOP and angular_error <= ANGULAR_SLOP


@njit(cache=True, error_model="numpy")
def _correct_positions(body, limit):
    """Iterate `_correct` over the joints; whether all errors have become small."""
    solved = False
    for _ in range(POSITION_ITERATIONS):
        solved = True
        for j in range(WHEELS - 1, -1, -1):
            solved &= _correct(body, limit[j], j)
        if solved:
            break
    return solved


@njit(cache=True, error_model="numpy")
def place(body, b, px, py, angle):
    """Place a body at rest: ``b2Body``'s constructor.

    Args:
        body: ``(5, 11)`` float32, written in row `b`.
        b: index of the body.
        px, py: float32, position of its frame in metres.
        angle: float32, radians.
    """
    body[b, :] = ZERO
    body[b, ANGLE] = angle
    body[b, PX] = px
    body[b, PY] = py
    s, c = math.sin(angle), math.cos(angle)
    body[b, SIN] = s
    body[b, COS] = c
    x, y = (HULL_X, HULL_Y) if b == 0 else (WHEEL_X, WHEEL_Y)
    body[b, CX] = (c * x - s * y) + px
    body[b, CY] = (s * x + c * y) + py


@njit(cache=True, error_model="numpy")
def _settle_body(body, b):
    """``b2Body::SynchronizeTransform``, and how long the body is at rest, in seconds."""
    angle = body[b, ANGLE]
    s, c = math.sin(angle), math.cos(angle)
    body[b, SIN] = s
    body[b, COS] = c
    x, y = (HULL_X, HULL_Y) if b == 0 else (WHEEL_X, WHEEL_Y)
    body[b, PX] = body[b, CX] - (c * x - s * y)
    body[b, PY] = body[b, CY] - (s * x + c * y)
    vx, vy, w = body[b, VX], body[b, VY], body[b, W]
    if w * w > SLEEP_SPIN_2 or vx * vx + vy * vy > SLEEP_SPEED_2:
        body[b, SLEEP] = ZERO
    else:
        body[b, SLEEP] += DT
    return body[b, SLEEP]


@njit(cache=True, error_model="numpy")
def _settle(body, solved):
    """Update the transforms, and stop a car that is at rest and whose joints are `solved`."""
    rest = TIME_TO_SLEEP
    for b in range(WHEELS + 1):
        rest = min(rest, _settle_body(body, b))
    if rest >= TIME_TO_SLEEP and solved:
        for b in range(WHEELS + 1):
            body[b, VX] = ZERO
            body[b, VY] = ZERO
            body[b, W] = ZERO
            body[b, SLEEP] = ZERO


@njit(cache=True, error_model="numpy")
def step(body, joint, limit, force):
    """Advance one car by 1/50 s, in place: ``b2Island::Solve``.

    Args:
        body: (5, 11) float32; see `state.Envs`.
        joint: (4, 5) float32; see `state.Envs`.
        limit: (4,) int8; see `state.Envs`.
        force: (4, 2) float32, newtons on the wheels' centres.

    Returns:
        the number of velocity iterations that were computed; the rest would have changed nothing.
    """
    for j in range(WHEELS):
        body[j + 1, VX] += DT * (MASS_B * force[j, 0])
        body[j + 1, VY] += DT * (MASS_B * force[j, 1])
    hull = (body[0, VX], body[0, VY], body[0, W])
    hull, wheel3, impulse3, known3 = _begin(hull, body, joint, limit, 3)
    hull, wheel2, impulse2, known2 = _begin(hull, body, joint, limit, 2)
    hull, wheel1, impulse1, known1 = _begin(hull, body, joint, limit, 1)
    hull, wheel0, impulse0, known0 = _begin(hull, body, joint, limit, 0)
    limit0, limit1, limit2, limit3 = limit[0], limit[1], limit[2], limit[3]
    done = 0
    while done < VELOCITY_ITERATIONS:
        hull_was = hull
        was0, was1, was2, was3 = (
            (wheel0, impulse0),
            (wheel1, impulse1),
            (wheel2, impulse2),
            (wheel3, impulse3),
        )
        hull, wheel3, impulse3 = _iterate(hull, wheel3, impulse3, known3, limit3)
        hull, wheel2, impulse2 = _iterate(hull, wheel2, impulse2, known2, limit2)
        hull, wheel1, impulse1 = _iterate(hull, wheel1, impulse1, known1, limit1)
        hull, wheel0, impulse0 = _iterate(hull, wheel0, impulse0, known0, limit0)
        done += 1
        if (
            hull == hull_was
            and (wheel3, impulse3) == was3
            and (wheel2, impulse2) == was2
            and (wheel1, impulse1) == was1
            and (wheel0, impulse0) == was0
        ):
            break
    _store(joint, 0, impulse0)
    _store(joint, 1, impulse1)
    _store(joint, 2, impulse2)
    _store(joint, 3, impulse3)
    _integrate(body, 0, hull)
    _integrate(body, 1, wheel0)
    _integrate(body, 2, wheel1)
    _integrate(body, 3, wheel2)
    _integrate(body, 4, wheel3)
    _settle(body, _correct_positions(body, limit))
    return done


@njit(cache=True, error_model="numpy")
def _store(joint, j, impulse):
    joint[j, JX] = impulse[0]
    joint[j, JY] = impulse[1]
    joint[j, JLIMIT] = impulse[2]
    joint[j, JMOTOR] = impulse[3]
