"""The program as a user runs it, and the configuration that its words make."""

import atexit
import contextlib
import functools
import itertools
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
from coverage import Coverage
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf
from waiting import wait_for

from worldmodels.config import schema

CONF = Path(__file__).resolve().parent.parent / "conf"

ALONE = "workers.processes=0"
"""Where workers are not the question: each takes seconds to start."""

BRIEFLY = ("rnn.baselines=false", "evaluate.video=false", "evaluate.engine=native")
"""A chain without what takes longest and another test looks at."""

FEW_FRAMES = ("rollouts.max_steps=12", "vae.batch_size=256")
"""A chain in which the VAE learns next to nothing, where it is not what the test looks at."""

WARM = multiprocessing.get_context("forkserver")
"""Processes that are forked from one that has imported the stages."""
WARM.set_forkserver_preload(
    [
        f"worldmodels.stages.{stage}"
        for stage in ("baseline", "chain", "iterate", "inspect", "importing", "watch")
    ]
)


def composed(*overrides: str) -> schema.Config:
    """The configuration of a command line."""
    config = OmegaConf.to_object(_composed(*overrides))
    assert isinstance(config, schema.Config)
    return config


@functools.cache
def _composed(*overrides: str) -> DictConfig:
    schema.register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("config", overrides=list(overrides))


def environment() -> dict[str, str]:
    """Without a display, and without settings of the machine that runs the tests."""
    dropped = {"DISPLAY", "PYTEST_CURRENT_TEST"}
    kept = {key: value for key, value in os.environ.items() if key not in dropped}
    return kept | {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}


def unmeasured() -> dict[str, str]:
    """The environment of a process that coverage does not follow."""
    return {key: value for key, value in os.environ.items() if not key.startswith("COVERAGE_")}


def start(folder: Path, *overrides: str) -> subprocess.Popen[str]:
    """Start ``python -m worldmodels`` with its data below `folder`."""
    line = [sys.executable, "-m", "worldmodels", *overrides, f"data={folder}"]
    return subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    )


def started_anew(folder: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    """``python -m worldmodels`` to its end, from a new interpreter."""
    with start(folder, *overrides) as process:
        try:
            output, errors = process.communicate()
        finally:  # a test that is given up must not leave it to those that follow
            process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def run(
    folder: Path,
    *overrides: str,
    kill_at_write: int | None = None,
    variables: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run the program to its end, in a process of its own.

    The process is forked from one that has imported the stages already: the imports take several
    seconds, most of what a small stage takes. `started_anew` begins with the interpreter.

    Args:
        folder: of the data.
        overrides: the words of the command line.
        kill_at_write: the process kills itself (SIGKILL) where it would force its file number so
            many to the disk: written, but not yet renamed to its place.
        variables: more of the process's environment.
    """
    words, env = [*overrides, f"data={folder}"], environment() | dict(variables or {})
    at_write = None if kill_at_write is None else (kill_at_write, signal.SIGKILL)
    with _running(words, env, at_write) as running:
        running.wait()
        assert running.process.exitcode is not None
        return subprocess.CompletedProcess(
            words, running.process.exitcode, running.output, running.errors
        )


class Running:
    """A program that runs.

    Args:
        process: it.
        files: its standard output and errors.
    """

    def __init__(self, process: BaseProcess, files: list[Path]) -> None:
        self.process, self._files = process, files

    @property
    def output(self) -> str:
        return self._files[0].read_text()

    @property
    def errors(self) -> str:
        return self._files[1].read_text()

    def wait(self) -> int | None:
        """Its exit code, once it has ended."""
        self.process.join()
        return self.process.exitcode

    def send(self, number: signal.Signals) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)


@contextlib.contextmanager
def paused(
    folder: Path, *overrides: str, at_write: int, variables: Mapping[str, str] | None = None
) -> Iterator[Running]:
    """The program as `run` runs it, which stops itself (SIGSTOP) where it would force its file
    number so many to the disk; killed in the end."""
    words, env = [*overrides, f"data={folder}"], environment() | dict(variables or {})
    with _running(words, env, (at_write, signal.SIGSTOP)) as running:
        assert running.process.pid is not None
        program = psutil.Process(running.process.pid)
        wait_for(lambda: program.status() in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE))
        assert program.status() == psutil.STATUS_STOPPED, running.output + running.errors
        yield running


@contextlib.contextmanager
def running(folder: Path, *overrides: str) -> Iterator[Running]:
    """The program as `run` runs it, while it runs; killed in the end."""
    with _running([*overrides, f"data={folder}"], environment(), None) as program:
        yield program


@contextlib.contextmanager
def _running(
    words: list[str], env: dict[str, str], at_write: tuple[int, signal.Signals] | None
) -> Iterator[Running]:
    with tempfile.TemporaryDirectory() as name:
        files = [Path(name, stream) for stream in ("stdout", "stderr")]
        for file in files:
            file.touch()
        process = WARM.Process(target=_program, args=(words, env, files, at_write))
        process.start()
        try:
            yield Running(process, files)
        finally:
            process.kill()
            process.join()


def _program(
    words: list[str],
    environment: dict[str, str],
    files: list[Path],
    at_write: tuple[int, signal.Signals] | None,
) -> None:
    """What ``python -m worldmodels`` does once Python has started."""
    from worldmodels.__main__ import main

    if at_write is not None:
        coverage = Coverage.current()
        if coverage is not None:  # what it sees of a process that is killed is lost
            coverage.stop()
        _signal_at_write(*at_write)

    atexit._clear()  # of the process that this one was forked from
    os.environ.clear()
    os.environ.update(environment)
    for number, path in enumerate(files, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    sys.argv = ["worldmodels", *words]
    code = main()
    atexit._run_exitfuncs()  # multiprocessing ends its children without
    sys.exit(code)


def _signal_at_write(number: int, sent: signal.Signals) -> None:
    writes, fsync = itertools.count(1), os.fsync

    def fsync_or_stop(descriptor: Any) -> None:
        if next(writes) == number:
            os.kill(os.getpid(), sent)
        fsync(descriptor)

    mock.patch.object(os, "fsync", fsync_or_stop).start()


@contextlib.contextmanager
def main_port() -> Iterator[str]:
    """A port for the first process of a training, which no other program is given meanwhile."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # PyTorch may bind beside it
        held.bind(("127.0.0.1", 0))
        yield str(held.getsockname()[1])


def error_line(done: subprocess.CompletedProcess[str]) -> str:
    """The one line of a failure; fails itself if there are more, or a traceback."""
    assert done.returncode == 1, (done.returncode, done.stdout, done.stderr)
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("error: ")
    return lines[0]
