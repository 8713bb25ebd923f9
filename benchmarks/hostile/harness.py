"""Processes of the program, what is done to them, and what they must not leave behind."""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import psutil

TIMEOUT_SECONDS = 300.0
"""After so long a command is taken to hang."""

_CAPABILITY_VERSION = 0x20080522
"""Of linux/capability.h: two sets of 32 bits each."""

HUNG = -1000
"""Stands for the exit code of a command that was killed because it hung."""

REFUSAL_BYTES = 3 * 2**30
"""Memory that a refused file may take beside the program itself."""

REFUSAL_SECONDS = 30.0
"""Time that a refused file may take, on a busy machine as well."""

ALONE = "workers.processes=0"
SMALL = ("preset=smoke", "rnn.baselines=false", "evaluate.video=false", "evaluate.engine=native")
STAGES = ("rollouts", "vae", "rnn", "controller", "evaluate")

# Forked from a process that has imported the stages: the imports take longer than a small stage.
_WARM = multiprocessing.get_context("forkserver")
_WARM.set_forkserver_preload(
    ["worldmodels.__main__", *(f"worldmodels.stages.{name}" for name in ("chain", "iterate"))]
)
_EXIT_CODES = threading.Lock()
"""Held while exit codes are read: each can be read once, and starting a process reads those of all
that have ended. A thread that comes second would take 255 for it."""


@dataclass(frozen=True)
class Surroundings:
    """Limits that a process runs under.

    Args:
        memory: bytes of its address space beyond what it begins with; None: no limit.
        file_bytes: the size that no file may pass (``ulimit -f``).
        descriptors: files open at once (``ulimit -n``).
        no_output: its standard output is closed.
        bound_by_modes: it loses the right of root to pass over the modes of files.
    """

    memory: int | None = None
    file_bytes: int | None = None
    descriptors: int | None = None
    no_output: bool = False
    bound_by_modes: bool = False


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    output: str
    errors: str
    seconds: float
    orphans: int


@dataclass(frozen=True)
class Case:
    """One attempt: `check` is given an empty folder, and returns None where the program held, or a
    line that says what it did instead."""

    topic: str
    name: str
    check: Callable[[Path], str | None]


@dataclass(frozen=True)
class Bench:
    """What the cases are made from.

    Args:
        smoke: data folder with the run ``smoke``, finished; nothing may write to it.
        rng: the moments and places of this topic.
        cases: about how many cases a topic draws at random.
        kills: SIGKILLs over all stages.
    """

    smoke: Path
    rng: random.Random = field(repr=False)
    cases: int
    kills: int

    def copy(self, folder: Path, *stages: str) -> Path:
        """A data folder in `folder` that has these stages of the run ``smoke``."""
        for stage in stages:
            shutil.copytree(self.smoke / "smoke" / stage, folder / "data/smoke" / stage)
        (folder / "data").mkdir(parents=True, exist_ok=True)
        return folder / "data"


class Program:
    """``python -m worldmodels`` as a process in a session of its own."""

    def __init__(self, place: Path, words: Sequence[str], around: Surroundings) -> None:
        place.mkdir(parents=True, exist_ok=True)
        self._files = [place / f".{stream}.{time.monotonic_ns()}" for stream in ("out", "err")]
        self._process = _WARM.Process(
            target=_program, args=(list(words), os.getcwd(), self._files, around)
        )
        self._began = time.monotonic()
        with _EXIT_CODES:
            self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def alive(self) -> bool:
        """Whether it still runs."""
        return not wait([self._process.sentinel], 0)

    def workers(self) -> list[psutil.Process]:
        """Its worker processes."""
        try:
            return psutil.Process(self.pid).children()
        except psutil.NoSuchProcess:
            return []

    def end(self, timeout: float = TIMEOUT_SECONDS) -> Done:
        """Wait for its end; a command that hangs is killed, and its code is `HUNG` then."""
        hung = not wait([self._process.sentinel], timeout)
        seconds = time.monotonic() - self._began
        if hung:
            self._process.kill()
            wait([self._process.sentinel])
        with _EXIT_CODES:
            self._process.join()
        orphans = self._orphans()
        code = HUNG if hung else self._process.exitcode
        assert code is not None
        texts = [path.read_text(errors="replace") if path.exists() else "" for path in self._files]
        for path in self._files:
            path.unlink(missing_ok=True)
        return Done(code, texts[0], texts[1], seconds, orphans)

    def kill(self) -> Done:
        """SIGKILL."""
        self._process.kill()
        return self.end()

    def _orphans(self) -> int:
        """How many processes of its session outlive it; they are killed."""
        until = time.monotonic() + 10.0  # workers notice their parent's death by themselves
        while (left := list(_of_session(self.pid))) and time.monotonic() < until:
            time.sleep(0.05)
        for process in left:
            os.kill(process, signal.SIGKILL)
        return len(left)


def _of_session(leader: int) -> Iterator[int]:
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE:
                yield process.pid
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue


def smoke_command(*words: str) -> tuple[str, ...]:
    """The words of a command on the run ``smoke``, in one process."""
    return (*SMALL, ALONE, "run=smoke", *words)


def start(data: Path, *words: str, around: Surroundings | None = None) -> Program:
    """Start a command whose runs are in `data`."""
    folder = data.parent / ".streams"
    return Program(folder, (*words, f"data={data}"), around or Surroundings())


def run(
    data: Path,
    *words: str,
    around: Surroundings | None = None,
    timeout: float = TIMEOUT_SECONDS,
) -> Done:
    """Run a command to its end, or kill it after `timeout` seconds."""
    return start(data, *words, around=around).end(timeout)


def _program(words: list[str], folder: str, files: list[Path], around: Surroundings) -> None:
    from worldmodels.__main__ import main

    os.setsid()
    os.chdir(folder)
    atexit._clear()  # of the process that this one was forked from
    # A resource tracker of its own, as a command has: it ends with the command, after cleaning up.
    tracker = resource_tracker._resource_tracker
    tracker.__dict__.update(_fd=None, _pid=None)  # private, so no type knows them
    os.environ |= {"WANDB_MODE": "offline", "OMP_NUM_THREADS": "1"}
    os.environ.pop("DISPLAY", None)
    for number, path in enumerate(files, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    surround(around)
    sys.argv = ["worldmodels", *words]
    code = main()
    atexit._run_exitfuncs()  # multiprocessing ends its children without
    sys.exit(code)


def surround(around: Surroundings) -> None:
    """Apply limits to this process."""
    if around.memory is not None:
        used = psutil.Process().memory_info().vms
        resource.setrlimit(resource.RLIMIT_AS, (used + around.memory,) * 2)
    if around.file_bytes is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # as Python's own start has it
        resource.setrlimit(resource.RLIMIT_FSIZE, (around.file_bytes,) * 2)
    if around.descriptors is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (around.descriptors,) * 2)
    if around.no_output:
        os.close(1)
    if around.bound_by_modes:
        # Another user could not read an interpreter in root's home, which imports as it goes.
        libc = ctypes.CDLL(None, use_errno=True)
        head = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
        if libc.capset(head, (ctypes.c_uint32 * 6)()) != 0:
            raise OSError(ctypes.get_errno(), "capset")


def fault(done: Done, data: Path, *names: str) -> str | None:
    """What is wrong with a refusal, if anything: it ends with code 1, one line, no control
    character, no process and no temporary file, and the line has one of `names`."""
    lines = [line for line in done.errors.splitlines() if line.strip()]
    if done.code == 0:
        return "it ended well"
    if done.code == HUNG:
        return f"hung for {done.seconds:.0f} s"
    if done.code != 1:
        return f"exit code {done.code} after {done.seconds:.0f} s: {' '.join(lines)[-200:]}"
    if len(lines) != 1:
        return f"{len(lines)} lines: {' | '.join(lines)[:300]}"
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in lines[0]):
        return f"control characters: {lines[0]!r}"
    if "debug=true shows the traceback" in lines[0]:
        return f"a raw error: {lines[0]}"
    if names and not any(name in lines[0] for name in names):
        return f"names none of {', '.join(names)}: {lines[0]}"
    return remains(done, data)


def unprintable(done: Done) -> str | None:
    """The control characters that reached the terminal, if any."""
    for stream in (done.output, done.errors):
        if any(ord(letter) < 32 and letter not in "\n\t\r" for letter in stream):
            return f"a control character reached the terminal: {stream!r}"[:300]
    return None


def remains(done: Done, data: Path) -> str | None:
    """What an ended command left behind that it must not, if anything."""
    if done.orphans:
        return f"{done.orphans} processes outlived it"
    left = [path.name for path in data.rglob("*.tmp") if path.name.startswith(".")]
    return f"left {', '.join(left)}" if left else None


def content(folder: Path) -> dict[str, str]:
    """SHA-256 by name of every file of an artifact; of manifests and logs, what is not of time."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.name.startswith(".") or path.suffix == ".lock":
            continue
        data = path.read_bytes()
        if path.name == "manifest.json":
            record = json.loads(data)
            kept = {key: record.get(key) for key in ("state", "fingerprint", "config", "inputs")}
            data = json.dumps(kept, sort_keys=True).encode()
        elif path.suffix == ".jsonl":
            lines = [json.loads(line) for line in data.splitlines()]
            for line in lines:
                line.pop("seconds", None)
                line.pop("crc32", None)  # of the seconds as well
            # Logs of evaluations have the order in which workers finished.
            lines.sort(key=lambda line: line.get("batch", 0) if "returns" in line else 0)
            data = json.dumps(lines, sort_keys=True).encode()
        found[str(path.relative_to(folder))] = hashlib.sha256(data).hexdigest()
    return found


def difference(one: dict[str, str], other: dict[str, str], stable: set[str]) -> str | None:
    """Which of the files that are `stable` between undisturbed runs differ, if any."""
    names = [name for name in sorted(stable) if one.get(name) != other.get(name)]
    missing = sorted(set(one) ^ set(other))
    if names or missing:
        return f"differs in {', '.join(dict.fromkeys([*names, *missing]))}"
    return None


def record(path: Path) -> Any:
    """A JSON file."""
    return json.loads(path.read_text())
