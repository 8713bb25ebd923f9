"""How keys and buttons become actions, for a person who drives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from worldmodels.envs.action_spec import ActionBounds

_NAMES = {
    "CarRacing-v3": ("steering", "gas", "brake"),
    "VizdoomTakeCover-v1": ("movement",),
}
"""Names of the numbers that an agent acts with, by the id of the environment without its module."""
_ARROWS = (("ArrowLeft", "ArrowRight"), ("ArrowDown", "ArrowUp"))
"""The keys of the least and the greatest value of the first two numbers."""


@dataclass(frozen=True)
class Controls:
    """Keys of a keyboard and the actions that they choose.

    Args:
        names: of the numbers of an action, (A,).
        rest: the action without a key, (A,).
        keys: name of a key, as browsers report it -> the action when it alone is pressed, (A,).
    """

    names: tuple[str, ...]
    rest: tuple[float, ...]
    keys: dict[str, tuple[float, ...]]

    def action(self, pressed: Sequence[str], bounds: ActionBounds) -> np.ndarray:
        """The action of the keys that are pressed: of a choice the latest, else their sum.

        The page of ``stage=play`` computes the same (``page/controls.js``).

        Args:
            pressed: their names, the latest last; others are left out.
            bounds: of the actions.

        Returns:
            (A,) float32, within the bounds.
        """
        known = [self.keys[key] for key in pressed if key in self.keys]
        rest = np.array(self.rest)
        changes = [np.array(keyed) - rest for keyed in (known[-1:] if bounds.choice else known)]
        action: np.ndarray = np.clip(sum(changes, start=rest), bounds.low, bounds.high)
        return action.astype(np.float32)


def controls_of(env_id: str, bounds: ActionBounds) -> Controls:
    """The controls of an environment.

    Left and right set the first number to its bounds, down and up the second, and down the third
    where the second has no negative values: CarRacing's steering, gas and brake. Digits choose one
    of several discrete actions.

    Args:
        env_id: id of the environment, which may have names for its actions.
        bounds: of the vectors that a controller acts with there.
    """
    size = len(bounds.low)
    numbered = tuple(f"action {number}" for number in range(1, size + 1))
    names = _NAMES.get(env_id.rpartition(":")[2], numbered)
    if bounds.choice:
        chosen = [tuple(float(i == n) for i in range(size)) for n in range(min(size, 9))]
        return Controls(numbered, chosen[0], {str(n + 1): one for n, one in enumerate(chosen)})
    rest = tuple(max(low, 0.0) for low in bounds.low)
    return Controls(names, rest, _arrow_keys(bounds, rest))


def _arrow_keys(bounds: ActionBounds, rest: tuple[float, ...]) -> dict[str, tuple[float, ...]]:
    """The actions of the arrow keys."""
    keys = {}
    for index, (least, greatest) in enumerate(_ARROWS[: len(rest)]):
        if bounds.low[index] < rest[index]:
            keys[least] = _with(rest, index, bounds.low[index])
        elif len(rest) > index + 1:
            keys[least] = _with(rest, index + 1, bounds.high[index + 1])
        keys[greatest] = _with(rest, index, bounds.high[index])
    return keys


def _with(action: tuple[float, ...], index: int, value: float) -> tuple[float, ...]:
    return (*action[:index], value, *action[index + 1 :])
