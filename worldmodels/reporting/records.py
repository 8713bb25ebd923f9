"""Typed access to the JSON files of stages, for the report.

A run folder may come from an untrusted source: a field that is missing or of another type is an
error that names the file and the field. Texts are escaped by the templates of the report.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from worldmodels.errors import ArtifactError
from worldmodels.files.untrusted import LARGEST_NUMBER, MEGABYTE, printable, read_json
from worldmodels.reporting.scores import Score
from worldmodels.runs.integrity import IMPORTED

MANIFEST_BYTES = 4 * MEGABYTE
SCORES_BYTES = 64 * MEGABYTE
"""Largest ``scores.json`` that is read; 100,000 episodes take 4 MB."""


@dataclass(frozen=True)
class Record:
    """A JSON object in a file. All methods raise `ArtifactError` for a field of another type.

    Args:
        path: of the file, for error messages.
        fields: the object.
        prefix: path of the object in the file, such as ``summary.``, for error messages.
    """

    path: Path
    fields: dict[str, Any]
    prefix: str = ""

    def group(self, key: str) -> Record:
        """The object under `key`."""
        value = self._field(key)
        if not isinstance(value, dict):
            raise self._wrong(key, "is not an object")
        return Record(self.path, value, f"{self.prefix}{key}.")

    def text(self, key: str) -> str:
        """The string under `key`."""
        value = self._field(key)
        if not isinstance(value, str):
            raise self._wrong(key, "is not a string")
        return value

    def texts(self, key: str) -> dict[str, str]:
        """The object under `key`, whose values are all strings."""
        group = self.group(key)
        return {name: group.text(name) for name in group.fields}

    def number(self, key: str) -> float:
        """The number under `key`."""
        value = self._field(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(key, "is not a number")
        if LARGEST_NUMBER < abs(value) < math.inf:
            raise self._wrong(key, f"is not a number of at most {LARGEST_NUMBER:.0e}")
        return float(value)

    def count(self, key: str) -> int:
        """The number under `key`, which is an integer of 0 or more."""
        value = self.number(key)
        if value < 0 or not value.is_integer():
            raise self._wrong(key, "is not a count")
        return int(value)

    def numbers(self, key: str) -> dict[str, float]:
        """The object under `key`, whose values are all numbers."""
        group = self.group(key)
        return {name: group.number(name) for name in group.fields}

    def list_of_numbers(self, key: str) -> tuple[float, ...]:
        """The list under `key`, whose items are all numbers."""
        items = self._items(key)
        return tuple(items.number(name) for name in items.fields)

    def groups(self, key: str) -> list[Record]:
        """The list under `key`, whose items are all objects."""
        items = self._items(key)
        return [items.group(name) for name in items.fields]

    def optional(self, key: str) -> float | None:
        """The number under `key`, or None where it is null or missing."""
        return None if self.fields.get(key) is None else self.number(key)

    def _items(self, key: str) -> Record:
        """The list under `key`, as an object whose fields are the positions."""
        value = self._field(key)
        if not isinstance(value, list):
            raise self._wrong(key, "is not a list")
        items = {str(number): item for number, item in enumerate(value)}
        return Record(self.path, items, f"{self.prefix}{key}.")

    def _field(self, key: str) -> Any:
        if key not in self.fields:
            raise self._wrong(key, "is missing")
        return self.fields[key]

    def _wrong(self, key: str, what: str) -> ArtifactError:
        name = printable(f"{self.prefix}{key}", 100)
        return ArtifactError(f"{self.path}: {name} {what}; run its stage again with overwrite=true")


def read_record(path: Path, max_bytes: int = MANIFEST_BYTES) -> Record:
    """The object in a JSON file.

    Args:
        path: of the file.
        max_bytes: size of the file at most.

    Raises:
        ArtifactError: the file is missing, larger, or does not hold a JSON object.
    """
    value = read_json(path, max_bytes)
    if not isinstance(value, dict):
        raise ArtifactError(
            f"{path}: is not a JSON object; run its stage again with overwrite=true"
        )
    return Record(path, value)


def machine(manifest: Record) -> str:
    """The machine of a stage, with the device of its networks and their arithmetic: manifests of
    older versions, and of stages that compute nothing, do not have the latter.

    Args:
        manifest: of the stage.
    """
    found = manifest.text("machine")
    if "device" not in manifest.fields:
        return found
    return f"{found}, networks on {manifest.text('device')}"


def configuration(manifest: Record) -> Record:
    """The keys of a stage with their values as a command gives them: ``env.max_steps`` in steps of
    the simulator, where a manifest has those of an episode.

    Args:
        manifest: of the stage.
    """
    found = manifest.group("config")
    steps, skip = found.optional("env.max_steps"), found.optional("env.frame_skip")
    if steps is None:
        return found
    return replace(found, fields=found.fields | {"env.max_steps": round(steps * (skip or 1))})


def frame_skip(manifest: Record) -> int:
    """Steps of the simulator for a step of an episode, in the environment of a stage.

    Args:
        manifest: of the stage; 1 where it has none, as in the learned model or of older versions.
    """
    return round(manifest.group("config").optional("env.frame_skip") or 1)


def is_imported(manifest: Record) -> bool:
    """Whether episodes were imported; they keep the seeds that they were recorded with.

    Args:
        manifest: of the stage ``rollouts``.
    """
    return manifest.group("config").fields.get("rollouts.policy") == IMPORTED


def read_scores(path: Path) -> dict[str, Score]:
    """The scores that the stage evaluate wrote, by the name of the policy.

    Args:
        path: of ``scores.json``.

    Raises:
        ArtifactError: the file is missing or damaged, or a score lacks a field.
    """
    record = read_record(path, SCORES_BYTES)
    return {name: _score(name, record.group(name)) for name in record.fields}


def _score(name: str, record: Record) -> Score:
    returns, seeds = record.list_of_numbers("returns"), record.list_of_numbers("seeds")
    interval = record.list_of_numbers("interval")
    whole = all(seed.is_integer() for seed in seeds)
    if not len(returns) == len(seeds) > 0 or len(interval) != 2 or not whole:
        raise ArtifactError(
            f"{record.path}: {printable(name, 100)} lacks an integer seed for each return, or an"
            " interval of two numbers; run its stage again with overwrite=true"
        )
    return Score(
        name=name,
        returns=returns,
        seeds=tuple(int(seed) for seed in seeds),
        mean=record.number("mean"),
        std=record.number("std"),
        interval=(interval[0], interval[1]),
        interquartile_mean=record.number("interquartile_mean"),
    )
