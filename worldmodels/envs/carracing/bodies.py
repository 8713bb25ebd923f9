"""The car's five bodies: shapes, masses, joints, as Box2D makes them of Gymnasium's fixtures.

Every number is computed in float32, in Box2D's order of operations, so that it has Box2D's bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

SIZE = 0.02
WHEEL_RADIUS, WHEEL_WIDTH = 27, 14
WHEEL_POSITIONS = ((-55, +80), (+55, +80), (-55, -82), (+55, -82))
HULL_SHAPES = (
    ((-60, +130), (+60, +130), (+60, +110), (-60, +110)),
    ((-15, +120), (+15, +120), (+20, +20), (-20, +20)),
    ((25, 20), (50, -10), (50, -40), (20, -90), (-20, -90), (-50, -40), (-50, -10), (-25, 20)),
    ((-50, -120), (+50, -120), (+50, -90), (-50, -90)),
)
WHEEL_SHAPE = (
    (-WHEEL_WIDTH, +WHEEL_RADIUS),
    (+WHEEL_WIDTH, +WHEEL_RADIUS),
    (+WHEEL_WIDTH, -WHEEL_RADIUS),
    (-WHEEL_WIDTH, -WHEEL_RADIUS),
)

_Float = np.float32
_ONE, _HALF, _QUARTER, _THIRD = _Float(1), _Float(0.5), _Float(0.25), _Float(1) / _Float(3)


class Mass(NamedTuple):
    """Inverse mass, inverse inertia about the centre, and the centre in the body's frame."""

    inverse_mass: np.float32
    inverse_inertia: np.float32
    center: tuple[np.float32, np.float32]


def polygon(vertices: Sequence[Sequence[float]]) -> NDArray[np.float32]:
    """Corners in the order of ``b2PolygonShape::Set``: counter-clockwise from the right-most.

    Args:
        vertices: corners of a convex polygon in either sense.

    Returns:
        (corners, 2) float32.
    """
    points = np.array(vertices, np.float32)
    first = 0
    for i in range(1, len(points)):
        x, y = points[i]
        if x > points[first, 0] or (x == points[first, 0] and y < points[first, 1]):
            first = i
    order: list[int] = []
    corner = first
    while not order or corner != first:
        order.append(corner)
        following = 0
        for j in range(1, len(points)):
            if following == corner:
                following = j
                continue
            r, v = points[following] - points[corner], points[j] - points[corner]
            turn = r[0] * v[1] - r[1] * v[0]
            if turn < 0 or (turn == 0 and v @ v > r @ r):
                following = j
        corner = following
    return points[order]


def mass(shapes: Sequence[NDArray[np.float32]], density: float) -> Mass:
    """Of a body with these fixtures: ``b2PolygonShape::ComputeMass``, ``b2Body::ResetMassData``."""
    total, inertia = _Float(0), _Float(0)
    center = np.zeros(2, np.float32)
    for shape in reversed(shapes):  # Box2D's list of fixtures begins with the newest
        part, part_center, part_inertia = _polygon_mass(shape, _Float(density))
        total = total + part
        center = center + part * part_center
        inertia = inertia + part_inertia
    inverse = _ONE / total
    center = center * inverse
    inertia = inertia - total * (center[0] * center[0] + center[1] * center[1])
    return Mass(inverse, _ONE / inertia, (center[0], center[1]))


def _polygon_mass(
    shape: NDArray[np.float32], density: np.float32
) -> tuple[np.float32, NDArray[np.float32], np.float32]:
    """Mass, centre and inertia about the body's origin: ``b2PolygonShape::ComputeMass``."""
    reference = np.zeros(2, np.float32)
    for vertex in shape:
        reference = reference + vertex
    reference = reference * (_ONE / _Float(len(shape)))
    center, area, inertia = np.zeros(2, np.float32), _Float(0), _Float(0)
    for i, vertex in enumerate(shape):
        e1, e2 = vertex - reference, shape[(i + 1) % len(shape)] - reference
        d = e1[0] * e2[1] - e1[1] * e2[0]
        triangle = _HALF * d
        area = area + triangle
        center = center + triangle * _THIRD * (e1 + e2)
        x2 = e1[0] * e1[0] + e2[0] * e1[0] + e2[0] * e2[0]
        y2 = e1[1] * e1[1] + e2[1] * e1[1] + e2[1] * e2[1]
        inertia = inertia + (_QUARTER * _THIRD * d) * (x2 + y2)
    total = density * area
    center = center * (_ONE / area)
    shifted = center + reference
    squares = shifted[0] * shifted[0] + shifted[1] * shifted[1]
    squares = squares - (center[0] * center[0] + center[1] * center[1])
    return total, shifted, density * inertia + total * squares


def _scaled(shape: Sequence[tuple[int, int]]) -> list[tuple[float, float]]:
    return [(x * SIZE, y * SIZE) for x, y in shape]


HULL_POLYGONS = tuple(polygon(_scaled(shape)) for shape in HULL_SHAPES)
WHEEL_POLYGON = polygon(_scaled(WHEEL_SHAPE))
HULL = mass(HULL_POLYGONS, 1.0)
WHEEL = mass((WHEEL_POLYGON,), 0.1)
ANCHORS = np.array(_scaled(WHEEL_POSITIONS), np.float32)
"""(4, 2): where each wheel's joint is on the hull; on the wheel it is the origin."""
