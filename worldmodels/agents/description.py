"""The content of ``agent.json``: what an agent's controller takes and gives, and where.

It may come from an untrusted source: each field is checked before anything is made of it.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from worldmodels.agents.stored_modules import shown
from worldmodels.config.keys import Limit
from worldmodels.config.limits import ACTIONS, LIMITS
from worldmodels.envs.action_spec import ActionSpec, BoxActions, DiscreteActions
from worldmodels.envs.observation import ObservationSpec
from worldmodels.errors import ArtifactError
from worldmodels.files.untrusted import printable
from worldmodels.models.controller import CHOICE, SQUASHINGS, ControllerSpec, squashing
from worldmodels.models.features import FeatureSpec

FORMAT = 2
"""Of ``agent.json``."""
_DESCRIBED = {"env_id", "features", "controller", "observation", "actions"}
_FIELDS = {"format", *_DESCRIBED, "frame_skip", "converted_from", "files"}
_HIDDEN_UNITS = LIMITS["controller.hidden_units"]
_BOUNDS = Limit(-float(np.finfo(np.float32).max), float(np.finfo(np.float32).max))
_ACTION_NUMBERS = Limit(-(2**31), 2**31 - 1)


@dataclass(frozen=True)
class AgentConfig:
    """The configuration of an agent.

    Args:
        features: input of the controller.
        controller: its layers and squashings.
        env_id: the environment it was trained for.
        observation: how that environment's pictures become the encoder's frames.
        actions: that environment's own actions.
        frame_skip: steps of its simulator for each of the agent's.
    """

    features: FeatureSpec
    controller: ControllerSpec
    env_id: str
    observation: ObservationSpec
    actions: ActionSpec
    frame_skip: int = 1


def checked(path: Path, record: dict[str, Any]) -> AgentConfig:
    """The configuration of an agent, each field of its type and within its limits.

    Args:
        path: of ``agent.json``, for errors.
        record: its content.

    Raises:
        ArtifactError: it is of another format, or a field is missing, of another type or beyond its
            limits.
    """
    if record.get("format") != FORMAT:
        raise ArtifactError(
            f"{path}: of format {shown(record.get('format', 1))}, this version reads {FORMAT}:"
            " another version wrote it; make its stage again, or convert the agent"
            " (tools/convert_agent.py)"
        )
    if record.keys() <= _FIELDS - {"observation", "actions"}:
        raise ArtifactError(
            f"{path}: does not describe the observations and actions (an older version wrote it);"
            " make its stage again, or convert the agent (tools/convert_agent.py)"
        )
    if not _DESCRIBED <= record.keys() <= _FIELDS:
        names = printable(", ".join(record), 200)
        raise ArtifactError(f"{path} does not describe an agent: it has {names}")
    features, controller = record["features"], record["controller"]
    _check_fields(path, "features", features, FeatureSpec)
    _check_fields(path, "controller", controller, ControllerSpec)
    _check_squash(path, controller["squash"])
    state = features["state"]
    if not isinstance(state, list) or not all(isinstance(name, str) for name in state):
        raise ArtifactError(f"{path}: features.state has to be a list of names")
    _check_integer(path, "controller.hidden_units", controller["hidden_units"], _HIDDEN_UNITS)
    for group, name in (("features", "sampled"), ("features", "updated"), ("controller", "bias")):
        value = record[group][name]
        if not isinstance(value, bool):
            raise ArtifactError(
                f"{path}: {group}.{name} is {shown(value)}: it has to be true or false"
            )
    skip = record.get("frame_skip", 1)  # older versions wrote none
    _check_integer(path, "frame_skip", skip, LIMITS["env.frame_skip"])
    if not isinstance(record["env_id"], str):
        raise ArtifactError(f"{path}: env_id is {shown(record['env_id'])}: it has to be a text")
    return AgentConfig(
        FeatureSpec(**(features | {"state": tuple(state)})),
        ControllerSpec(**(controller | {"squash": tuple(controller["squash"])})),
        printable(record["env_id"], 200),
        _observation(path, record["observation"]),
        _actions(path, record["actions"]),
        skip,
    )


def _observation(path: Path, found: Any) -> ObservationSpec:
    """The checked description of the frames."""
    _check_fields(path, "observation", found, ObservationSpec)
    for name, limit in (("crop_rows", LIMITS["env.crop_rows"]), ("size", LIMITS["env.size"])):
        if not (name == "crop_rows" and found[name] is None):
            _check_integer(path, f"observation.{name}", found[name], limit)
    return ObservationSpec(**found)


def _actions(path: Path, found: Any) -> ActionSpec:
    """The checked description of the environment's own actions."""
    kind = found.get("kind") if isinstance(found, dict) else None
    if kind == "box":
        _check_fields(path, "actions", found, BoxActions)
        low, high = (_bounds(path, name, found[name]) for name in ("low", "high"))
        if len(low) != len(high) or not all(map(operator.lt, low, high)):
            raise ArtifactError(f"{path}: actions.low has to be below actions.high: copy it again")
        return BoxActions(low, high)
    if kind != "discrete":
        raise ArtifactError(f"{path}: actions.kind is {shown(kind)}: it has to be box or discrete")
    _check_fields(path, "actions", found, DiscreteActions)
    _check_integer(path, "actions.n", found["n"], ACTIONS)
    _check_integer(path, "actions.start", found["start"], _ACTION_NUMBERS)
    bins, start = found["action_bins"], found["start"]
    if bins is not None:
        if not isinstance(bins, list) or len(bins) != 3:
            raise ArtifactError(f"{path}: actions.action_bins has to be null or three actions")
        for action in bins:
            limit = Limit(start, start + found["n"] - 1)
            _check_integer(path, "actions.action_bins", action, limit)
        bins = tuple(bins)
    return DiscreteActions(found["n"], start, bins)


def _bounds(path: Path, name: str, found: Any) -> tuple[float, ...]:
    """Checked bounds of actions."""
    if not isinstance(found, list) or len(found) not in ACTIONS:
        raise ArtifactError(f"{path}: actions.{name} has to be a list of {ACTIONS} numbers")
    for bound in found:
        number = isinstance(bound, int | float) and not isinstance(bound, bool)
        if not number or bound not in _BOUNDS:
            raise ArtifactError(
                f"{path}: actions.{name} has {shown(bound)}: it has to be a finite number"
            )
    return tuple(map(float, found))


def _check_integer(path: Path, name: str, value: Any, limit: Limit) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value not in limit:
        raise ArtifactError(f"{path}: {name} is {shown(value)}: it has to be {limit}")


def _check_fields(path: Path, group: str, found: Any, kind: type) -> None:
    """Raise `ArtifactError` unless `found` has the fields of the dataclass `kind`."""
    expected = {field.name for field in fields(kind)}
    if not isinstance(found, dict) or found.keys() != expected:
        known = ", ".join(sorted(expected))
        raise ArtifactError(f"{path}: {group} has to have the fields {known}: copy it again")


def _check_squash(path: Path, names: Any) -> None:
    if not isinstance(names, list) or len(names) not in ACTIONS:
        raise ArtifactError(f"{path}: squash has to be a list of {ACTIONS} names")
    try:
        squashing(names)
    except (KeyError, ValueError, TypeError) as error:
        raise ArtifactError(
            f"{path}: unknown squashing {printable(str(error), 60)}, known are"
            f" {', '.join(SQUASHINGS)} and {CHOICE}"
        ) from None
