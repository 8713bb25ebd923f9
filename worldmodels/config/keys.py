"""What is known of each key of the schema: meaning, unit, default, accepted values.

All of it stands where the key is defined (``sections.py``, ``policies.py``, ``execution.py``): the
meaning in the docstring below the field, range and unit in `number`. ``--help``,
docs/configuration.md and the checks of numbers (`worldmodels/config/limits.py`) read it from there.
"""

from __future__ import annotations

import ast
import sys
import types
import typing
from collections.abc import Iterator
from dataclasses import Field, dataclass, field, fields, is_dataclass
from enum import Enum
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar, cast

T = TypeVar("T")
MANY = 100_000
HUGE = 1_000_000
"""Bounds far beyond any preset: they stop a mistyped number from running or allocating endlessly,
and are the bounds of the sizes in agents from elsewhere (`worldmodels/agents/folder.py`)."""
EPISODE_STEPS: Any = "${episode_steps:${env.max_steps},${env.frame_skip}}"
"""The default of a time limit in steps of an episode: as many as one of the environment has."""


def episode_steps(max_steps: int, frame_skip: int | None) -> int:
    """The time limit of an episode in its own steps.

    Args:
        max_steps: the limit in steps of the simulator.
        frame_skip: steps of the simulator for each of an episode; None is 1.
    """
    return -(-max_steps // (frame_skip or 1))


@dataclass(frozen=True)
class Limit:
    """An interval with finite ends.

    Args:
        least: its lower end.
        most: its upper end.
        above: whether the lower end is excluded.
    """

    least: float
    most: float
    above: bool = False

    def __contains__(self, number: float) -> bool:
        # NaN is in no interval.
        enough = number > self.least if self.above else number >= self.least
        return enough and number <= self.most

    def __str__(self) -> str:
        if self.least == self.most:
            return str(self.most)
        if self.above:
            return f"more than {self.least}, at most {self.most}"
        return f"{self.least} to {self.most}"


@dataclass(frozen=True)
class Key:
    """A key of the schema.

    Args:
        section: the dataclass that has it.
        name: for example ``vae.latent_size``.
        meaning: sentences.
        unit: of its number; empty where it has none or the meaning names it.
        default: its value where no file and no override gives another.
        accepts: type, choices and range, in words.
        limit: of its number, or of each number of its list; None for other types.
    """

    section: type
    name: str
    meaning: str
    unit: str
    default: Any
    accepts: str
    limit: Limit | None


def number(default: T, least: float, most: float, *, above: bool = False, unit: str = "") -> T:
    """A field of a configuration dataclass that takes a number, or a list of numbers.

    Args:
        default: its default; null, where the type allows it, is in no interval and accepted.
        least: lower end of its interval.
        most: upper end.
        above: whether the lower end is excluded.
        unit: of the number.
    """
    known = {"limit": Limit(least, most, above), "unit": unit}
    return field(default=default, metadata=known)


def keys_of(schema: type) -> Iterator[Key]:
    """The keys of a configuration dataclass, then those of the dataclasses in it."""
    for section, prefix, part, hint in _fields(schema):
        limit = part.metadata.get("limit")
        yield Key(
            section=section,
            name=f"{prefix}{part.name}",
            meaning=_docstrings(section)[part.name],
            unit=part.metadata.get("unit", ""),
            default=getattr(section(), part.name),
            accepts=_accepts(hint, limit),
            limit=limit,
        )


def limits_of(schema: type) -> dict[str, Limit]:
    """The interval of every key that takes a number."""
    return {
        f"{prefix}{part.name}": part.metadata["limit"]
        for _, prefix, part, _ in _fields(schema)
        if "limit" in part.metadata
    }


def _fields(schema: type, prefix: str = "") -> Iterator[tuple[type, str, Field[Any], Any]]:
    """Each field that is a key, with its dataclass, the prefix of its name, and its type."""
    hints, below = typing.get_type_hints(schema), []
    for part in fields(schema):
        hint = hints[part.name]
        if is_dataclass(hint):
            below.append((cast(type, hint), f"{prefix}{part.name}."))
        else:
            yield schema, prefix, part, hint
    for section, inner in below:
        yield from _fields(section, inner)


@cache
def _docstrings(section: type) -> dict[str, str]:
    """The docstrings below the fields of a class, which Python itself does not keep."""
    path = Path(str(sys.modules[section.__module__].__file__))
    (node,) = (
        node
        for node in _syntax(path).body
        if isinstance(node, ast.ClassDef) and node.name == section.__name__
    )
    return {
        first.target.id: " ".join(second.value.value.split())
        for first, second in pairwise(node.body)
        if isinstance(first, ast.AnnAssign)
        and isinstance(first.target, ast.Name)
        and isinstance(second, ast.Expr)
        and isinstance(second.value, ast.Constant)
        and isinstance(second.value.value, str)
    }


@cache
def _syntax(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _accepts(hint: Any, limit: Limit | None) -> str:
    """The values that a field of type `hint` takes, in words."""
    if isinstance(hint, types.UnionType):
        kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
        return " or ".join([*(_accepts(kind, limit) for kind in kinds), "null"])
    if typing.get_origin(hint) is list:
        return f"list of {_accepts(typing.get_args(hint)[0], limit)}"
    if typing.get_origin(hint) is dict:
        return "mapping"
    if issubclass(hint, Enum):
        return ", ".join(choice.name for choice in hint)
    if limit is not None:
        return str(limit)
    return {bool: "true, false", str: "text"}[hint]
