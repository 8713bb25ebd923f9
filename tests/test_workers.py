"""Workers that die, hang, fail and are asked to stop: real processes, really killed."""

import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from command import run
from waiting import HANG_SECONDS, wait_for
from worker_jobs import Arithmetic, Die, Fail, Square, Tool

from worldmodels.errors import WorkerError
from worldmodels.files.atomic import read_json
from worldmodels.workers.channel import PollingEnd, pack
from worldmodels.workers.jobs import Heartbeat, line_of
from worldmodels.workers.local import LocalPool

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class DieOnce:
    """Kills its own process the first time it is tried."""

    marker: Path

    def __call__(self, tool: str, heartbeat: Heartbeat) -> str:
        if not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return "alive"


@dataclass(frozen=True)
class HangOnce:
    """Falls silent the first time it is tried."""

    marker: Path

    def __call__(self, tool: str, heartbeat: Heartbeat) -> str:
        if not self.marker.exists():
            self.marker.touch()
            time.sleep(1000)
        return "woke"


@dataclass(frozen=True)
class SayAndWait:
    """Reports steps and makes the file ``said``, then waits for the file ``heard``."""

    folder: Path

    def __call__(self, tool: str, heartbeat: Heartbeat) -> str:
        time.sleep(0.6)  # a worker reports at most every half second
        heartbeat(1)
        (self.folder / "said").touch()
        wait_for(lambda: (self.folder / "heard").exists())
        return "heard"


@dataclass(frozen=True)
class Pid:
    def __call__(self, tool: str, heartbeat: Heartbeat) -> int:
        return os.getpid()


@dataclass(frozen=True)
class Large:
    """More than fits into the buffer of a socket, in both directions."""

    content: bytes

    def __call__(self, tool: str, heartbeat: Heartbeat) -> bytes:
        return self.content


@dataclass(frozen=True)
class StopsOnce:
    """Is stopped while it is made, the first time."""

    marker: Path

    def build(self) -> str:
        if not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGSTOP)
        return "tool"


@dataclass(frozen=True)
class Play:
    """Starts a game, a process of its own, and dies beside it if told so."""

    games: Path
    dies: bool = False

    def __call__(self, tool: str, heartbeat: Heartbeat) -> None:
        again = self.games.exists()
        game = subprocess.Popen(["sleep", "1000"])
        with self.games.open("a") as file:
            file.write(f"{game.pid}\n")
        if self.dies and not again:
            os._exit(3)


def test_results_do_not_depend_on_the_number_of_workers() -> None:
    jobs = [Square(n) for n in range(7)]
    results = []
    for processes in (0, 1, 3):
        with LocalPool(Tool(), processes, timeout=HANG_SECONDS) as pool:
            results.append(pool.map(jobs))
    assert results == [[n**2 for n in range(7)]] * 3


def test_jobs_round_alike_in_this_process_and_in_a_worker() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.set_flush_denormal(True)  # as training does
    try:
        for processes in (0, 1):
            with LocalPool(Tool(), processes, timeout=HANG_SECONDS) as pool:
                assert pool.map([Arithmetic()]) == [(1, True)]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
        torch.set_flush_denormal(False)


@pytest.mark.system
def test_episodes_of_an_agent_are_equal_in_this_process_and_in_workers(tmp_path: Path) -> None:
    # Batches of other sizes than 4 and 16 showed the number of threads in the rounding.
    words = ("stage=rollouts", "preset=smoke", "rollouts.policy=controller", "env.num_envs=6")
    found = []
    for processes in (0, 1, 2):
        data = tmp_path / str(processes)
        agent = ("model=pretrained/carracing", "rollouts.noise=0.3", "rollouts.episodes=12")
        done = run(data, *words, *agent, f"workers.processes={processes}")
        assert done.returncode == 0, done.stderr
        found.append(read_json(data / "smoke/rollouts/manifest.json")["fingerprint"])
    assert found == [found[0]] * 3


def test_a_dead_worker_is_replaced_and_its_job_done_again(tmp_path: Path) -> None:
    with LocalPool(Tool(), 2, timeout=HANG_SECONDS) as pool:
        jobs: list[Any] = [Square(2), DieOnce(tmp_path / "died"), Square(3)]
        assert pool.map(jobs) == [4, "alive", 9]
        assert pool.replaced == 1


@pytest.mark.system
def test_a_hung_worker_is_noticed_and_replaced(tmp_path: Path) -> None:
    with LocalPool(Tool(), 1, timeout=5) as pool:
        assert pool.map([HangOnce(tmp_path / "hung"), Square(5)]) == ["woke", 25]
        assert pool.replaced >= 1


def test_a_worker_whose_messages_lie_unread_is_left_at_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool's process is stopped, longer than its timeout, while it deals with a message."""
    stopped: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + sum(stopped))
    monkeypatch.setattr("worldmodels.workers.local.time", clock)

    def steps(done: int) -> None:
        if not stopped:
            wait_for(lambda: (tmp_path / "said").exists())
            stopped.append(2 * HANG_SECONDS)
        else:
            (tmp_path / "heard").touch()

    with LocalPool(Tool(), 1, HANG_SECONDS, steps) as pool:
        assert pool.map([SayAndWait(tmp_path)]) == ["heard"]
        assert pool.replaced == 0


def test_large_jobs_and_results_arrive_whole() -> None:
    jobs = [Large(bytes([n]) * 3_000_000) for n in range(5)]
    with LocalPool(Tool(), 2, timeout=HANG_SECONDS) as pool:
        assert pool.map(jobs) == [job.content for job in jobs]
        assert pool.replaced == 0


@pytest.mark.system
def test_a_worker_that_takes_no_more_of_a_large_job_is_replaced() -> None:
    large = Large(b"x" * 10_000_000)
    with LocalPool(Tool(), 1, timeout=3) as pool:
        (worker,) = pool.map([Pid()])
        os.kill(worker, signal.SIGSTOP)
        assert pool.map([large]) == [large.content]
        assert pool.replaced >= 1
        assert not running(worker)


@pytest.mark.system
def test_a_worker_that_is_stopped_at_its_start_is_replaced(tmp_path: Path) -> None:
    with LocalPool(StopsOnce(tmp_path / "stopped"), 1, timeout=3) as pool:
        assert pool.map([Square(3)]) == [9]
        assert pool.replaced >= 1


@dataclass(frozen=True)
class Busy:
    def build(self) -> str:
        while time.process_time() < 8:
            pass
        return "tool"


@pytest.mark.slow
def test_a_worker_that_takes_longer_to_start_than_the_timeout_is_left_to_it() -> None:
    with LocalPool(Busy(), 1, timeout=4) as pool:
        assert pool.map([Square(3)]) == [9]
        assert pool.replaced == 0


def test_half_a_message_is_no_reason_to_wait() -> None:
    ours, theirs = socket.socketpair()
    end = PollingEnd(ours)
    whole = b"".join(pack(("done", "result")))
    for byte in whole[:-1]:
        theirs.send(bytes([byte]))
        assert end.take() == []
    theirs.send(whole[-1:] + whole)
    theirs.close()
    assert end.take() == [("done", "result")] * 2  # what was said last, and then the end
    with pytest.raises(EOFError):
        end.take()
    end.close()


def test_a_job_that_kills_every_worker_ends_the_run_with_its_exit_code() -> None:
    with (
        LocalPool(Tool(), 1, timeout=HANG_SECONDS) as pool,
        pytest.raises(WorkerError, match="exit code 3"),
    ):
        pool.map([Die()])


def test_a_workers_error_arrives_as_one_line() -> None:
    with (
        LocalPool(Tool(), 1, timeout=HANG_SECONDS) as pool,
        pytest.raises(WorkerError, match="environment 3"),
    ):
        pool.map([Fail()])


def test_what_fails_in_a_worker_is_named_with_its_file_or_place(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as missing:
        (tmp_path / "missing").read_text()
    assert line_of(missing.value).startswith(f"{tmp_path}/missing: No such file or directory; ")
    with pytest.raises(ValueError, match="one") as unexpected:
        raise ValueError("one\ntwo")
    place = f"test_workers.py:{unexpected.traceback[-1].lineno + 1}"
    assert line_of(unexpected.value) == f"ValueError in a worker ({place}): one two"


@pytest.mark.system
@pytest.mark.parametrize("dies", [False, True])
def test_games_that_workers_started_end_with_them(tmp_path: Path, dies: bool) -> None:
    with LocalPool(Tool(), 1, timeout=HANG_SECONDS) as pool:
        pool.map([Play(tmp_path / "games", dies)])
        games = [int(pid) for pid in (tmp_path / "games").read_text().split()]
        assert len(games) == 1 + dies
        wait_for(lambda: [running(pid) for pid in games] == [False] * dies + [True])
    wait_for(lambda: not any(running(pid) for pid in games))


@pytest.mark.system
@pytest.mark.usefixtures("bare")
def test_games_end_with_their_workers_without_process_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worldmodels.workers.local._GROUPS", False)
    with LocalPool(Tool(), 1, timeout=HANG_SECONDS) as pool:
        pool.map([Play(tmp_path / "games")])
        (game,) = [int(pid) for pid in (tmp_path / "games").read_text().split()]
        assert running(game)
    wait_for(lambda: not running(game))


@pytest.mark.system
@pytest.mark.parametrize("lacking", [False, True])
def test_workers_and_their_games_die_with_a_killed_parent(
    tmp_path: Path, request: pytest.FixtureRequest, lacking: bool
) -> None:
    if lacking:
        request.getfixturevalue("bare")
    pids = tmp_path / "pids"
    script = f"""
import os, subprocess, sys, time
sys.path.append({str(ROOT)!r})
from dataclasses import dataclass
from worldmodels.workers.local import LocalPool

@dataclass
class Note:
    def __call__(self, tool, heartbeat):
        with open({str(pids)!r}, "a") as file:
            game = subprocess.Popen(["sleep", "1000"])
            file.write(f"{{os.getpid()}}\\n{{game.pid}}\\n")
        time.sleep(1000)

@dataclass
class Tool:
    def build(self):
        return None

if __name__ == "__main__":
    LocalPool(Tool(), 2, 600).map([Note(), Note()])
"""
    path = tmp_path / "parent.py"
    path.write_text(script)
    parent = subprocess.Popen([sys.executable, str(path)])
    wait_for(lambda: pids.exists() and len(pids.read_text().splitlines()) == 4)
    parent.kill()
    parent.wait()
    workers = [int(pid) for pid in pids.read_text().split()]
    wait_for(lambda: not any(running(pid) for pid in workers))


def running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
