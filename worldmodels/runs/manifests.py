"""The manifest of a stage folder: its required parts, and how two of them differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Literal, NamedTuple

from worldmodels.config.renames import renamed, renamed_value
from worldmodels.config.usage import written
from worldmodels.errors import ArtifactError
from worldmodels.files.atomic import checksum, read_json, write_json

MANIFEST = "manifest.json"
_PARTS: dict[str, tuple[type | UnionType, bool]] = {
    "state": (str, True),
    "config": (dict, True),
    "inputs": (dict, True),
    "base": (str, False),
    "fingerprint": (str, False),
    "summary": (dict, False),
    "throughput": (dict, False),
    "resources": (dict, False),
    "wall_s": (int | float, False),
}
"""Parts of a manifest: the type, and whether an unfinished one has it as well."""


_READINGS = 10**12
"""More than any stage makes, one a second."""
_CHECKSUM = "crc32"
"""Of all other parts: a flipped bit in a number is still JSON. Older versions wrote none."""


def write_manifest(folder: Path, record: Mapping[str, Any]) -> None:
    """Write the manifest of `folder`, atomically, with a checksum of itself."""
    write_json(folder / MANIFEST, {**record, _CHECKSUM: _checksum(record)})


def _checksum(record: Mapping[str, Any]) -> int:
    return checksum({key: value for key, value in record.items() if key != _CHECKSUM})


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest in `folder`, with its parts of the required types.

    Raises:
        ArtifactError: it is missing or damaged, or not what a stage writes.
    """
    path = folder / MANIFEST
    fault = _fault(record := read_json(path))
    if fault is None and record.get(_CHECKSUM) not in (None, _checksum(record)):
        fault = "is damaged (its checksum is another)"
    if fault is not None:
        raise ArtifactError(
            f"{path}: {fault}; move the folder away, or make it again with overwrite=true"
        )
    found: dict[str, Any] = record
    return found


def _fault(record: Any) -> str | None:
    """Why `record` is not a manifest, or None."""
    if not isinstance(record, dict):
        return "is no JSON object"
    complete = record.get("state") == "complete"
    for key, (kind, always) in _PARTS.items():
        needed = always or (complete and key in ("fingerprint", "summary"))
        if key not in record and needed:
            return f"{key} is missing"
        if key in record and not isinstance(record[key], kind):
            return f"{key} is of a wrong type"
    if record["state"] not in ("running", "complete"):
        return "state is neither running nor complete"
    if not all(isinstance(value, str) for value in record["inputs"].values()):
        return "inputs are not all fingerprints"
    used = record.get("resources", {"cpu_s": 0.0, "peak_bytes": {}})
    numbers = [used.get("cpu_s"), used.get("cost", 0), *record.get("throughput", {}).values()]
    for group in (used.get("peak_bytes"), used.get("spent_s", {})):
        numbers += group.values() if isinstance(group, dict) else [None]
    if not all(isinstance(number, int | float) for number in numbers):
        return "resources or throughput are not all numbers"
    if not _is_sampled(used.get("gpu_samples", [0, 1])):
        return "resources.gpu_samples is not a sum and number of readings"
    return None


def _is_sampled(value: Any) -> bool:
    """Whether a value is a sum and a number of readings, of which a mean can be taken."""
    if not isinstance(value, list) or len(value) != 2:
        return False
    total, count = value
    numbers = isinstance(total, int | float) and type(count) is int
    return numbers and 0 < count <= _READINGS and 0 <= total <= _READINGS


class Difference(NamedTuple):
    """How an artifact's manifest differs from what is wanted now."""

    part: Literal["inputs", "config"]
    key: str
    before: Any
    now: Any

    @property
    def grown(self) -> bool:
        """Whether the value has become larger; None is larger than any number."""
        if self.before is None or self.now is None:
            return self.before is not None
        numbers = isinstance(self.before, int | float) and isinstance(self.now, int | float)
        return numbers and bool(self.now > self.before)

    def __str__(self) -> str:
        if self.part == "inputs":
            return f"was made from another {self.key} ({self.before}, now {self.now})"
        if renamed(self.key) is not None:
            return f"was made by an older version, whose {self.key} is now {renamed(self.key)}"
        if renamed_value(self.key, self.before) is not None:
            present = renamed_value(self.key, self.before)
            return (
                f"was made by an older version, whose {self.key}={self.before} is now"
                f" {self.key}={present}"
            )
        return f"was made with {self.key}={written(self.before)}, now {written(self.now)}"


def differences(old: dict[str, Any], new: dict[str, Any]) -> Iterator[Difference]:
    """How two manifests differ in what determines the artifact: inputs first, then keys of an older
    version, whose present names differ only because of it."""
    for part in ("inputs", "config"):
        keys = sorted(set(old[part]) | set(new[part]))
        for key in sorted(keys, key=lambda key: renamed(key) is None):
            before, now = old[part].get(key), new[part].get(key)
            if before != now:
                yield Difference(part, key, before, now)
