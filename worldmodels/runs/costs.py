"""What a stage took: its time, processors, memory, disk and money, in its manifest and in words."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from worldmodels.system.cores import available_cores
from worldmodels.system.spent import ACTIVITIES, WAITING, WORKING


def added(
    record: Mapping[str, Any],
    used: Mapping[str, Any],
    wall: float,
    folder: Path,
    price_per_hour: float | None,
) -> dict[str, Any]:
    """The parts ``wall_s`` and ``resources`` of a manifest, with what one more process used.

    Args:
        record: the manifest, perhaps with what earlier processes used.
        used: of this process, from `Meter.read`.
        wall: seconds of this process.
        folder: of the stage, whose files are counted.
        price_per_hour: of the machine; None leaves the costs as they are.
    """
    before = record.get("resources", {})
    wall_s = record.get("wall_s", 0.0) + wall
    cpu_s, cores = before.get("cpu_s", 0.0) + used["cpu_s"], available_cores()
    resources: dict[str, Any] = {
        "cpu_s": round(cpu_s, 3),
        "cores": cores,
        "cpu_share": round(cpu_s / max(wall_s * cores, 1e-9), 3),
        "peak_bytes": _merged(before.get("peak_bytes", {}), used["peak_bytes"], max),
        "disk_bytes": disk_bytes(folder),
        "spent_s": _merged(before.get("spent_s", {}), used["spent_s"], _sum),
    }
    samples = [one["gpu_samples"] for one in (before, used) if "gpu_samples" in one]
    if samples:
        total, count = map(sum, zip(*samples, strict=True))
        resources |= {"gpu_samples": [total, count], "gpu_share": round(total / count, 3)}
    if price_per_hour is not None:
        resources["cost"] = before.get("cost", 0.0) + wall / 3600 * price_per_hour
    elif "cost" in before:
        resources["cost"] = before["cost"]
    return {"wall_s": round(wall_s, 3), "resources": resources}


def disk_bytes(folder: Path) -> int:
    """The size of all files below `folder`; those that go meanwhile are left out."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.stat().st_size if path.is_file() else 0
    return total


def _sum(first: float, second: float) -> float:
    return round(first + second, 3)


def _merged(before: Mapping[str, Any], now: Mapping[str, Any], join: Any) -> dict[str, Any]:
    """Both, with the values of keys that are in both joined."""
    common = {key: join(before[key], now[key]) for key in before.keys() & now.keys()}
    return {**before, **now, **common}


def in_words(record: Mapping[str, Any]) -> str:
    """What a finished stage took, on one line."""
    used = record["resources"]
    parts = [f"took {duration(record['wall_s'])}"]
    parts += [f"{rate:,.0f} {unit}" for unit, rate in record["throughput"].items()]
    cores = used["cores"]
    parts.append(f"CPU {used['cpu_share']:.0%} of {cores} core{'s' * (cores > 1)}")
    if "gpu_share" in used:
        parts.append(f"GPU {used['gpu_share']:.0%}")
    peaks = [f"{size(peak)} {where}" for where, peak in used["peak_bytes"].items()]
    parts.append(f"peak memory {' and '.join(peaks)}")
    parts.append(f"disk {size(used['disk_bytes'])}")
    parts += _waits(used["spent_s"], record["wall_s"])
    if "cost" in used:
        parts.append(f"cost {used['cost']:,.4g}")
    return ", ".join(parts)


def _waits(spent: Mapping[str, float], wall_s: float) -> list[str]:
    """What more than a hundredth of the time of workers, or of this process, went to."""
    working = spent.get(WORKING, 0.0)
    total = working + spent.get(WAITING, 0.0) if working else wall_s
    named = [*ACTIVITIES, WAITING] if working else ["encoding", "reading"]
    words = {"reading": "waiting for data", WAITING: "waiting for jobs"}
    shares = [
        f"{spent[name] / total:.0%} {words.get(name, name)}"
        for name in named
        if spent.get(name, 0.0) > 0.01 * total
    ]
    return [("workers " if working else "") + ", ".join(shares)] if shares else []


def size(count: float) -> str:
    """A number of bytes in words: ``"12 MB"``, ``"1.4 GB"``."""
    if count >= 1e9:
        return f"{count / 1e9:,.1f} GB"
    return f"{count / 1e6:,.0f} MB" if count >= 1e6 else f"{count / 1e3:,.0f} kB"


def duration(seconds: float) -> str:
    """Seconds in words: ``"4.2 s"``, ``"12 min"``, ``"3.4 h"``, ``"2.1 days"``."""
    if seconds < 100:
        return f"{seconds:,.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:,.1f} min"
    return f"{seconds / 3600:,.1f} h" if seconds < 172_800 else f"{seconds / 86_400:,.1f} days"
