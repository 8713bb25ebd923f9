"""The processes that play environments: how they end, and what is said when one dies."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from waiting import HANG_SECONDS

from worldmodels.envs.gymnasium_engine import GymnasiumVectorEnv
from worldmodels.errors import WorkerError

COUNTDOWN = "picture_env:Countdown-v0"
TESTS = Path(__file__).parent


def countdown(num_envs: int, **kwargs: int) -> GymnasiumVectorEnv:
    """As many processes as environments."""
    return GymnasiumVectorEnv(COUNTDOWN, num_envs, num_envs, max_steps=100, kwargs=kwargs)


def test_a_env_process_that_dies_is_named() -> None:
    zeros = np.zeros((3, 2), np.float32)
    before = set(psutil.Process().children())
    env = countdown(3, dies_at=2)
    env.reset(seed=[9, 2, 9])
    workers = [p for p in set(psutil.Process().children()) - before if env_process(p)]
    assert len(workers) == 3
    env.step(zeros)
    with pytest.raises(WorkerError, match=r"environments \[1\]"):
        env.step(zeros)
    env.close()
    assert not any(env_process(worker) for worker in workers)


def test_a_env_process_that_cannot_start_is_an_error() -> None:
    with pytest.raises(WorkerError, match="died as it started"):
        countdown(2, dies_at=0)


def env_process(process: psutil.Process) -> bool:
    """Whether this is a living process of an environment, and not one that Python or `command`
    keeps."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE and not any(
            "resource_tracker" in word or "forkserver" in word for word in process.cmdline()
        )
    except psutil.NoSuchProcess:
        return False


def test_env_processes_ignore_stop_signals_and_end_with_close() -> None:
    before = set(psutil.Process().children())
    env = countdown(2)
    env.reset(seed=[50, 50])
    workers = [p for p in set(psutil.Process().children()) - before if env_process(p)]
    assert len(workers) == 2
    for worker in workers:
        worker.send_signal(signal.SIGINT)
        worker.send_signal(signal.SIGTERM)
    time.sleep(0.1)
    frames, *_ = env.step(np.zeros((2, 2), np.float32))
    assert (frames == 1).all()
    env.close()
    env.close()
    assert not any(env_process(worker) for worker in workers)


@pytest.mark.parametrize("end", ["killed", "exit"])
def test_env_processes_end_with_their_parent(end: str) -> None:
    script = f"""
import psutil, sys, time
from worldmodels.envs.gymnasium_engine import GymnasiumVectorEnv
if __name__ == "__main__":
    env = GymnasiumVectorEnv("{COUNTDOWN}", 2, 2, 100, {{}})
    env.reset(seed=[9, 9])
    print(*(p.pid for p in psutil.Process().children()), flush=True)
    sys.stdin.readline()
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)])},
    )
    assert parent.stdout is not None
    children = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
    assert len(children) >= 2
    if end == "killed":
        parent.kill()
    parent.communicate(b"\n", timeout=HANG_SECONDS)
    _, alive = psutil.wait_procs(children, timeout=HANG_SECONDS)
    assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]
