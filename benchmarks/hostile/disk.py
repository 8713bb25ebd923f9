"""Disks that are full or closed, few descriptors, an output without a reader."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from harness import ALONE, SMALL, STAGES, Bench, Case, Surroundings, content, fault, remains, run


def disk(bench: Bench, folder: Path) -> Iterator[Case]:
    """Every stage in each of these surroundings."""
    workers = ("workers.processes=1",)
    for stage in STAGES:
        few = (1024, 64 * 1024) if stage != "controller" else (512, 8 * 1024)
        for size in few:
            around = Surroundings(file_bytes=size)
            check = functools.partial(_refused, bench, stage, around, (ALONE,))
            yield Case("disk", f"{stage}, files of {size} bytes at most", check)
        check = functools.partial(_worked, bench, stage, Surroundings(descriptors=64), (ALONE,))
        yield Case("disk", f"{stage}, 64 descriptors", check)
        check = functools.partial(_worked, bench, stage, Surroundings(no_output=True), (ALONE,))
        yield Case("disk", f"{stage}, standard output closed", check)
        if os.geteuid() == 0:
            yield Case("disk", f"{stage}, full tmpfs", functools.partial(_full, bench, stage))
            for mode, what in ((0o555, "read-only"), (0o000, "unreadable")):
                check = functools.partial(_closed, bench, stage, mode)
                yield Case("disk", f"{stage}, {what} folder", check)
    around = Surroundings(file_bytes=1024)
    check = functools.partial(_refused, bench, "rollouts", around, workers)
    yield Case("disk", "rollouts, files of 1024 bytes at most, in a worker", check)


def _words(stage: str, *more: str) -> tuple[str, ...]:
    return (*SMALL, "run=smoke", f"stage={stage}", *more)


def _prepared(bench: Bench, folder: Path, stage: str) -> Path:
    return bench.copy(folder, *STAGES[: STAGES.index(stage)])


def _refused(
    bench: Bench, stage: str, around: Surroundings, more: tuple[str, ...], folder: Path
) -> str | None:
    data = _prepared(bench, folder, stage)
    done = run(data, *_words(stage, *more), around=around)
    if done.code == 0:
        return _same(bench, data, stage)
    wrong = fault(done, data, str(data))
    if wrong is not None:
        return wrong
    again = run(data, *_words(stage, *more))
    if again.code != 0:
        return f"with room again: {again.errors.strip()[:300]}"
    return _same(bench, data, stage)


def _worked(
    bench: Bench, stage: str, around: Surroundings, more: tuple[str, ...], folder: Path
) -> str | None:
    data = _prepared(bench, folder, stage)
    done = run(data, *_words(stage, *more), around=around)
    if done.code != 0:
        return f"exit code {done.code}: {done.errors.strip()[:300]}"
    return _same(bench, data, stage) or remains(done, data)


def _same(bench: Bench, data: Path, stage: str) -> str | None:
    one, other = (content(place / "smoke" / stage) for place in (data, bench.smoke))
    same = one.get("manifest.json") == other.get("manifest.json")
    return None if same else "the artifact is another one than in peace"


def _full(bench: Bench, stage: str, folder: Path) -> str | None:
    # What the command prints is kept beside the data, where there is room for it.
    place = folder / "small" / "data"
    place.mkdir(parents=True)
    source = _prepared(bench, folder / "source", stage)
    used = sum(path.stat().st_size for path in source.rglob("*") if path.is_file())
    size = used + 64 * 1024
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        return None  # no right to mount here: ulimit -f stands for it
    try:
        with contextlib.suppress(OSError):
            shutil.copytree(source, place, dirs_exist_ok=True)
        done = run(place, *_words(stage, ALONE))
        return None if done.code == 0 else fault(done, place, str(place))
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def _closed(bench: Bench, stage: str, mode: int, folder: Path) -> str | None:
    """A folder that may be read but not written, or not even read."""
    data = _prepared(bench, folder, stage)
    target = data if stage == "rollouts" else data / "smoke"
    (data.parent / ".streams").mkdir()
    target.chmod(mode)
    try:
        done = run(data, *_words(stage, ALONE), around=Surroundings(bound_by_modes=True))
    finally:
        target.chmod(0o755)
    return fault(done, data, str(data))
