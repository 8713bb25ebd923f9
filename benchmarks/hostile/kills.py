"""Processes that are killed, stopped, or started twice: the artifact is that of a quiet run."""

from __future__ import annotations

import functools
import random
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
from harness import ALONE, SMALL, STAGES, Bench, Case, content, difference, remains, run, start

BASE = (*SMALL, "trainer.checkpoint_seconds=0.1", "env.num_envs=2", "run=smoke")
LONG: dict[str, tuple[str, ...]] = {
    "rollouts": ("rollouts.episodes=24", "rollouts.max_steps=150", "env.max_steps=150"),
    "vae": ("vae.epochs=2",),
    "rnn": ("rnn.epochs=20",),
    "rnn of a GRU": ("rnn.model=gru", "rnn.epochs=20"),
    "rnn of a transformer": ("rnn.model=transformer", "rnn.epochs=6"),
    "controller": ("controller.generations=12", "controller.eval_interval=4"),
    "evaluate": ("evaluate.episodes=24",),
    "report": (),
    "export": ("format=onnx",),
    "bootstrap": ("++bootstrap.rollouts.episodes=4",),
    "iterate": ("iterate.rounds=2",),
}
"""Work of some seconds for each stage, so that there is a middle to be killed in. The first word of
a name is the stage's."""

FOLDERS = {"bootstrap": "bootstrap", "iterate": "."}
"""What a stage makes, below the run, where that is not a folder of its name."""

WORKERS = ("workers.processes=2", "workers.timeout=20")
PACKETS = ("controller.hidden_units=400", "controller.diagonal=true")
"""Makes a candidate larger than a socket's buffer."""


@dataclass(frozen=True)
class Undisturbed:
    """A stage that nothing happened to.

    Args:
        content: SHA-256 by file.
        stable: the files that a second such run made equal.
        seconds: how long it took.
    """

    content: dict[str, str]
    stable: set[str]
    seconds: float


def _stage(work: str) -> str:
    return work.split()[0]


def _prepare(bench: Bench, folder: Path, work: str) -> Path:
    """A data folder with all that the stage of `work` reads."""
    stage = _stage(work)
    if stage in ("bootstrap", "iterate"):
        return bench.copy(folder)
    wanted = STAGES[: STAGES.index(stage)] if stage in STAGES else STAGES
    return bench.copy(folder, *wanted)


def _words(work: str, more: tuple[str, ...] = (ALONE,)) -> tuple[str, ...]:
    return (*BASE, f"stage={_stage(work)}", *LONG[work], *more)


def _artifact(data: Path, work: str) -> Path:
    return data / "smoke" / FOLDERS.get(work, _stage(work))


class References:
    """Undisturbed runs, each made when it is first asked for."""

    def __init__(self, bench: Bench, folder: Path) -> None:
        self._bench, self._folder = bench, folder
        self._found: dict[tuple[str, tuple[str, ...]], Undisturbed] = {}
        self._lock = threading.Lock()

    def of(self, work: str, more: tuple[str, ...] = (ALONE,)) -> Undisturbed:
        """The stage run twice."""
        with self._lock:
            if (work, more) not in self._found:
                self._found[work, more] = self._run(work, more)
            return self._found[work, more]

    def _run(self, work: str, more: tuple[str, ...]) -> Undisturbed:
        contents = []
        seconds = 0.0
        for _ in range(2):
            place = self._folder / "reference"
            shutil.rmtree(place, ignore_errors=True)
            data = _prepare(self._bench, place, work)
            done = run(data, *_words(work, more))
            if done.code != 0:
                raise RuntimeError(f"{work} fails undisturbed: {done.errors}")
            contents.append(content(_artifact(data, work)))
            seconds = done.seconds
        stable = {name for name in contents[0] if contents[0][name] == contents[1].get(name)}
        return Undisturbed(contents[0], stable, seconds)


def kills(bench: Bench, folder: Path) -> Iterator[Case]:
    """SIGKILL at random moments of every stage, half of them while it replaces an artifact."""
    references = References(bench, folder)
    works = [work for work in LONG if work != "iterate"]
    plan = [(work, overwrite) for work in works for overwrite in (False, True)]
    each = max(1, bench.kills // len(plan))
    for work, overwrite in [*plan, *([("iterate", False)] if bench.kills >= 100 else [])]:
        rng = random.Random(bench.rng.random())
        for number in range(each):
            check = functools.partial(_killed, bench, references, work, overwrite, rng.random())
            name = f"{work}{' overwrite=true' if overwrite else ''}, kill {number + 1}"
            yield Case("kills", name, check)


def _killed(
    bench: Bench, references: References, work: str, overwrite: bool, moment: float, folder: Path
) -> str | None:
    quiet = references.of(work)
    data = _prepare(bench, folder, work)
    words = _words(work)
    if overwrite:
        done = run(data, *words)
        if done.code != 0:
            return f"could not begin: {done.errors.strip()}"
        words = (*words, "overwrite=true")
    process = start(data, *words)
    time.sleep(moment * quiet.seconds)
    killed = process.kill()
    if killed.orphans:
        return f"killed at {moment:.3f}: {killed.orphans} processes outlived it"
    done = run(data, *_words(work))
    if done.code != 0:
        return f"killed at {moment:.3f}: then {done.errors.strip()[:300]}"
    wrong = difference(quiet.content, content(_artifact(data, work)), quiet.stable)
    wrong = wrong or remains(done, data)
    return f"killed at {moment:.3f}: {wrong}" if wrong else None


def workers(bench: Bench, folder: Path) -> Iterator[Case]:
    """Worker processes that die, or stop, with large evaluation batches on their way."""
    references = References(bench, folder)
    turns = max(1, bench.cases // 10)
    for stage in ("rollouts", "controller", "evaluate"):
        more = (*WORKERS, *(PACKETS if stage == "controller" else ()))
        for sent in (signal.SIGKILL, signal.SIGSTOP):
            for number in range(turns):
                moment = bench.rng.random()
                check = functools.partial(_hurt, bench, references, stage, more, sent, moment)
                yield Case("workers", f"{stage}, {sent.name}, {number + 1}", check)


def _hurt(
    bench: Bench,
    references: References,
    stage: str,
    more: tuple[str, ...],
    sent: signal.Signals,
    moment: float,
    folder: Path,
) -> str | None:
    quiet = references.of(stage, more)
    data = _prepare(bench, folder, stage)
    process = start(data, *_words(stage, more))
    while process.alive() and not process.workers():
        time.sleep(0.01)
    time.sleep(moment * quiet.seconds)
    # The resource tracker of multiprocessing is a child too, and no worker.
    workers = [one for one in process.workers() if "spawn_main" in " ".join(_line(one))]
    if workers:
        workers[int(moment * 1e6) % len(workers)].send_signal(sent)
    done = process.end()
    if done.code != 0:
        return f"at {moment:.3f}: exit code {done.code}: {done.errors.strip()[-300:]}"
    wrong = difference(quiet.content, content(_artifact(data, stage)), quiet.stable)
    return wrong or remains(done, data)


def _line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def two(bench: Bench, folder: Path) -> Iterator[Case]:
    """Two commands on one stage at the same time: one works, the other names it."""
    references = References(bench, folder)
    for stage in (*STAGES, "report"):
        yield Case("two", stage, functools.partial(_two, bench, references, stage))


def _two(bench: Bench, references: References, stage: str, folder: Path) -> str | None:
    quiet = references.of(stage)
    data = _prepare(bench, folder, stage)
    processes = [start(data, *_words(stage)) for _ in range(2)]
    ended = [process.end() for process in processes]
    for done, process in zip(ended, reversed(processes), strict=True):
        if done.code == 0:
            continue
        if str(process.pid) not in done.errors:
            return f"refused without naming process {process.pid}: {done.errors.strip()[:300]}"
    # Both are right only if the second began when the first was done: it prints that then.
    after = any("done before" in done.output + done.errors for done in ended)
    if all(done.code == 0 for done in ended) and stage != "report" and not after:
        return "both worked at the same time"
    if all(done.code != 0 for done in ended):
        return f"neither worked: {ended[0].errors.strip()[:300]}"
    wrong = difference(quiet.content, content(_artifact(data, stage)), quiet.stable)
    return wrong or remains(ended[0], data)
