"""How keys and buttons become actions, for a person who drives in an exported page."""

from __future__ import annotations

from dataclasses import dataclass

from worldmodels.agents.folder import AgentConfig
from worldmodels.envs.action_spec import ActionBounds

_NAMES = {
    "CarRacing-v3": ("steering", "gas", "brake"),
    "VizdoomTakeCover-v1": ("movement",),
}
"""Names of the numbers that an agent acts with, by the id of its environment without its module."""
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


def controls_of(config: AgentConfig) -> Controls:
    """The controls of an agent's environment.

    Left and right set the first number to its bounds, down and up the second, and down the third
    where the second has no negative values: CarRacing's steering, gas and brake. Digits choose one
    of several discrete actions.
    """
    bounds = config.actions.bounds
    size = len(bounds.low)
    numbered = tuple(f"action {number}" for number in range(1, size + 1))
    names = _NAMES.get(config.env_id.rpartition(":")[2], numbered)
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
