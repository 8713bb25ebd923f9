"""What other stages wrote down, checked field by field before a page is made of it.

A run's folder may come from a stranger: a field that is missing or of another type is an error that
names the file, and texts are texts, to be escaped like any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worldmodels.errors import ArtifactError
from worldmodels.reporting.scores import Score
from worldmodels.untrusted import MEGABYTE, printable, read_json

MANIFEST_BYTES = 4 * MEGABYTE
SCORES_BYTES = 64 * MEGABYTE
"""Of 100,000 episodes there are 4 MB."""


@dataclass(frozen=True)
class Record:
    """A JSON object of a file.

    Args:
        path: of the file, for errors.
        fields: the object.
        place: of the object in the file, for errors.
    """

    path: Path
    fields: dict[str, Any]
    place: str = ""

    def group(self, key: str) -> Record:
        """The object under `key`; this and the other methods raise `ArtifactError`."""
        value = self._field(key)
        if not isinstance(value, dict):
            raise self._wrong(key, "is no object")
        return Record(self.path, value, f"{self.place}{key}.")

    def text(self, key: str) -> str:
        """The text under `key`."""
        value = self._field(key)
        if not isinstance(value, str):
            raise self._wrong(key, "is no text")
        return value

    def texts(self, key: str) -> dict[str, str]:
        """The texts of the object under `key`, by their names."""
        group = self.group(key)
        return {name: group.text(name) for name in group.fields}

    def number(self, key: str) -> float:
        """The number under `key`."""
        value = self._field(key)
        try:
            if not isinstance(value, bool) and isinstance(value, int | float):
                return float(value)
        except OverflowError:
            pass
        raise self._wrong(key, "is no number")

    def numbers(self, key: str) -> dict[str, float]:
        """The numbers of the object under `key`, by their names."""
        group = self.group(key)
        return {name: group.number(name) for name in group.fields}

    def list_of_numbers(self, key: str) -> tuple[float, ...]:
        """The numbers of the list under `key`."""
        value = self._field(key)
        if not isinstance(value, list):
            raise self._wrong(key, "is no list")
        items = Record(self.path, {str(i): item for i, item in enumerate(value)}, f"{key}.")
        return tuple(items.number(name) for name in items.fields)

    def _field(self, key: str) -> Any:
        if key not in self.fields:
            raise self._wrong(key, "is missing")
        return self.fields[key]

    def _wrong(self, key: str, what: str) -> ArtifactError:
        name = printable(f"{self.place}{key}", 100)
        return ArtifactError(f"{self.path}: {name} {what}; run its stage again with fresh=true")


def read_record(path: Path, most: int = MANIFEST_BYTES) -> Record:
    """The object of a JSON file; raises `ArtifactError` naming it for anything else."""
    value = read_json(path, most)
    if not isinstance(value, dict):
        raise ArtifactError(f"{path}: is no object; run its stage again with fresh=true")
    return Record(path, value)


def read_scores(path: Path) -> dict[str, Score]:
    """The scores of a stage ``evaluate``, by policy; raises `ArtifactError` for anything else."""
    record = read_record(path, SCORES_BYTES)
    return {name: _score(name, record.group(name)) for name in record.fields}


def _score(name: str, record: Record) -> Score:
    returns, seeds = record.list_of_numbers("returns"), record.list_of_numbers("seeds")
    interval = record.list_of_numbers("interval")
    whole = all(seed.is_integer() for seed in seeds)
    if not len(returns) == len(seeds) > 0 or len(interval) != 2 or not whole:
        raise ArtifactError(
            f"{record.path}: {printable(name, 100)} does not have a seed, a whole number, for each"
            " return, and an interval of two numbers; run its stage again with fresh=true"
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
