"""Workers on a Ray cluster: several machines of it on this one, killed, joining, late and wrong."""

import json
import re
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from command import ALONE, error_line, run, start
from waiting import HANG_SECONDS, wait_for
from worker_jobs import Copy, Die, Fail, LateTool, Meet, SlowOnce, Square, StopOnce, Tool

ray = pytest.importorskip("ray")

import grpc  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402

from worldmodels.errors import ConfigError, WorkerError  # noqa: E402
from worldmodels.workers.ray_cluster import connect  # noqa: E402
from worldmodels.workers.ray_pool import RayPool  # noqa: E402

pytestmark = pytest.mark.system
TESTS = Path(__file__).resolve().parents[1]
MEMORY = 100 * 2**20
"""Of an object store: several nodes share the memory of one machine."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster whose head has one core."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_ADDRESS", "")
        patch.setenv("RAY_worker_niceness", "0")  # 15: on a busy machine workers hardly start
        head = {"num_cpus": 1, "object_store_memory": MEMORY, "include_dashboard": False}
        made = Cluster(initialize_head=True, head_node_args=head)
        yield made
        ray.shutdown()
        made.shutdown()


@pytest.fixture
def connected(cluster: Any) -> Iterator[Any]:
    """The cluster, with this process connected to it."""
    connect(cluster.address, 1)
    yield cluster
    ray.shutdown()


def join(cluster: Any) -> Any:
    """One machine more, with one core."""
    return cluster.add_node(num_cpus=1, object_store_memory=MEMORY, include_dashboard=False)


def leave(cluster: Any, node: Any) -> None:
    """One machine fewer: all its processes are killed at once."""
    (raylet,) = node.all_processes["raylet"]
    there = psutil.Process(raylet.process.pid)
    for process in (there, *there.children(recursive=True)):
        process.kill()
    cluster.remove_node(node, allow_graceful=False)


def test_jobs_are_done_and_errors_arrive_as_one_line(connected: Any, tmp_path: Path) -> None:
    (tmp_path / "source").write_text("text")
    copies = [Copy(tmp_path / "source", tmp_path / "made" / str(n)) for n in range(3)]
    with RayPool(Tool(), None, HANG_SECONDS) as pool:
        jobs: list[Any] = [Square(2), Square(3), *copies]
        results = pool.map(jobs)
        assert results[:2] == [4, 9]
        for copy, places in zip(copies, results[2:], strict=True):
            assert copy.target.read_text() == "TEXT"
            assert not {copy.source, copy.target} & set(places)
            assert not any(place.exists() for place in places)
        with pytest.raises(WorkerError, match=r"^environment 3: the action is not finite$"):
            pool.map([Fail()])
    with (
        RayPool(Tool(), 1, HANG_SECONDS) as pool,
        pytest.raises(WorkerError, match=r"died .* on each of 3 attempts at job 0"),
    ):
        pool.map([Die()])


def test_a_machine_that_joins_works_and_its_loss_costs_its_share(
    connected: Any, tmp_path: Path
) -> None:
    """The jobs end only if two workers do them at once, and one of the two is lost."""

    def machines() -> list[str]:
        return [path.name.split("-")[1] for path in tmp_path.glob("met-*")]

    # Ray requires that its machines are started by the main thread.
    with RayPool(Tool(), None, HANG_SECONDS) as pool, ThreadPoolExecutor(1) as background:
        results = background.submit(pool.map, [Meet(tmp_path, 2)] * 2)
        wait_for(lambda: len(machines()) == 1 or results.done())
        node = join(connected)
        wait_for(lambda: len(machines()) == 2 or results.done())
        assert node.node_id in machines()
        leave(connected, node)
        (tmp_path / "open").touch()
        assert results.result() == [2, 2]
        assert pool.replaced == 1


def test_a_late_job_gets_a_second_worker_and_a_silent_worker_is_replaced(
    connected: Any, tmp_path: Path
) -> None:
    node = join(connected)
    try:
        with RayPool(Tool(), 2, HANG_SECONDS) as pool:
            jobs: list[Any] = [SlowOnce(tmp_path / "marker"), Square(5)]
            assert pool.map(jobs) == ["done", 25]
            (tmp_path / "open").touch()
            # The late worker is free again: two workers meet.
            assert pool.map([Meet(tmp_path, 2)] * 2) == [2, 2]
            assert pool.replaced == 0
        # On the other machine: Ray takes its time to end a process that is stopped.
        with RayPool(Tool(), 1, timeout=4) as pool:
            assert pool.map([StopOnce(tmp_path / "stopped"), Square(5)]) == ["awake", 25]
            assert pool.replaced >= 1
    finally:
        leave(connected, node)


def test_a_worker_whose_answers_lie_unread_is_left_to_its_start(
    connected: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool's process is stopped, longer than its timeout, after it has looked for answers."""
    # A worker on the machine that the test before has ended would be lost with it.
    wait_for(lambda: sum(node["Alive"] for node in ray.nodes()) == 1)
    wait = ray.wait
    answered: list[Any] = []
    stopped: list[float] = []

    def stopped_once(waiting: list[Any], *, num_returns: int, timeout: float) -> Any:
        patience = HANG_SECONDS if stopped and num_returns == 1 else timeout
        ready, rest = wait(waiting, num_returns=num_returns, timeout=patience)
        if answered and not ready and not stopped:
            stopped.append(HANG_SECONDS + 100)
        elif stopped:
            (tmp_path / "open").touch()
        answered.extend(ready)
        return ready, rest

    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + sum(stopped), sleep=time.sleep)
    monkeypatch.setattr("worldmodels.workers.ray_pool.time", clock)
    monkeypatch.setattr(ray, "wait", stopped_once)
    with RayPool(LateTool(tmp_path), 1, HANG_SECONDS) as pool:
        assert pool.map([Square(3)]) == [9]
        assert pool.replaced == 0


def test_a_cluster_of_another_version_is_refused(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "__version__", "2.0.0")
    try:
        with pytest.raises(ConfigError) as refused:
            connect(cluster.address, 1)
    finally:
        ray.shutdown()
    assert re.fullmatch(
        rf"workers.address={cluster.address}: the cluster has Ray \S+ and Python \S+, this machine"
        r" Ray 2\.0\.0 and Python \S+; install the same on all",
        str(refused.value),
    )


def test_an_address_where_nothing_answers_is_refused_before_anything_is_made(
    tmp_path: Path,
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        line = error_line(run(tmp_path, "workers=ray", f"workers.address={address}"))
        assert line.startswith(f"error: workers.address={address}: nothing answers there")
        assert not list(tmp_path.iterdir())
        with pytest.raises(ConfigError, match=r"^workers.address=ray://.*: nothing answers there"):
            connect(f"ray://{address}", 1)
        unused.listen()  # and never answers
        with pytest.raises(ConfigError, match="what answers there is no Ray cluster"):
            connect(address, 1)
    for wrong in ("machine", "http://machine:6379", "machine:port"):
        with pytest.raises(ConfigError, match=f"^workers.address={wrong}: is not an address"):
            connect(wrong, 1)


def test_an_ipv6_host_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is no Ray: it is found to answer, and Ray is asked to connect."""
    asked: list[str] = []
    monkeypatch.setattr(ray, "init", lambda where, **_: asked.append(where))
    server = grpc.server(ThreadPoolExecutor(1))
    try:
        port = server.add_insecure_port("[::1]:0")
    except RuntimeError:
        pytest.skip("this machine has no IPv6")
    server.start()
    try:
        for address in (f"[::1]:{port}", f"ray://[::1]:{port}"):
            connect(address, 1)
            assert asked[-1] == address
    finally:
        server.stop(None).wait()
    with pytest.raises(ConfigError, match=r"is not an address; .* an IPv6 host in brackets"):
        connect("::1:6379", 1)


def test_an_empty_variable_is_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(ray, "init", lambda where, **_: asked.append(where))
    monkeypatch.setenv("RAY_ADDRESS", "")
    connect("auto", 1)
    assert asked == ["auto"]


class Gate:
    """The gate of `gate_env`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir()
        self.overrides = (
            *("run=gate", "preset=smoke"),
            *("rnn.baselines=false", "evaluate.video=false"),
            *("env.id=gate_env:Gate-v0", "env.engine=gymnasium", "env.crop_rows=null"),
            *("env.num_envs=2", "rollouts.episodes=6", "env.max_steps=12"),
            f"+env.kwargs.folder={folder}",
        )

    def open(self) -> None:
        (self.folder / "open").touch()

    def close(self) -> None:
        for path in self.folder.iterdir():
            path.unlink()

    def waiting(self) -> list[int]:
        """The processes that wait at it."""
        return [int(path.name.removeprefix("waits-")) for path in self.folder.glob("waits-*")]


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gate:
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    return Gate(tmp_path / "gate")


def complete(stage: Path) -> bool:
    manifest = stage / "manifest.json"
    return manifest.exists() and json.loads(manifest.read_text())["state"] == "complete"


def artifacts(run_folder: Path) -> dict[str, Any]:
    """What a run made, without times and places; a report is full of times."""
    found: dict[str, Any] = {
        path.parent.name: json.loads(path.read_text())["fingerprint"]
        for path in run_folder.glob("*/manifest.json")
        if path.parent.name != "report"
    }
    found |= {path.name: path.read_bytes() for path in run_folder.glob("rollouts/shard-*.h5")}
    for path in run_folder.glob("controller/*.jsonl"):
        records = [json.loads(line) for line in path.read_text().splitlines()]
        for record in records:
            record.pop("seconds", None)
            record.pop("crc32", None)
        found[path.name] = records
    return found


def test_a_chain_is_the_same_with_a_machine_lost_in_collection_and_in_a_generation(
    cluster: Any, gate: Gate, tmp_path: Path
) -> None:
    gate.open()
    done = run(tmp_path / "local", *gate.overrides, "stage=all", ALONE)
    assert done.returncode == 0, done.stderr
    wanted = artifacts(tmp_path / "local" / "gate")
    assert len(wanted) > 8

    made = tmp_path / "ray" / "gate"
    elsewhere = ("workers=ray", f"workers.address={cluster.address}")
    for stage in ("rollouts", "all"):
        gate.close()
        node = join(cluster)
        with start(tmp_path / "ray", *gate.overrides, f"stage={stage}", *elsewhere) as process:
            try:
                wait_for(lambda: len(gate.waiting()) == 2 or process.poll() is not None)
                assert process.poll() is None, (stage, process.communicate())
                assert complete(made / "rollouts") == (stage == "all")
                assert not (made / "controller" / "generations.jsonl").exists()
                leave(cluster, node)
                gate.open()
                output, errors = process.communicate()
            finally:
                process.kill()
        assert process.returncode == 0, output + errors
    assert artifacts(made) == wanted


def test_a_stopped_command_leaves_no_process_of_its_own_cluster(
    gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # where Ray makes the token of such a cluster
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    words = (*gate.overrides, "stage=rollouts", "workers=ray", "workers.address=local")
    with start(tmp_path / "data", *words, "workers.processes=1") as process:
        try:
            wait_for(gate.waiting)
            family = psutil.Process(process.pid).children(recursive=True)
            assert set(gate.waiting()) <= {member.pid for member in family}
            process.send_signal(signal.SIGTERM)
            output, errors = process.communicate()
        finally:
            process.kill()
    assert process.returncode == 75, output + errors
    assert errors.startswith("stopped by SIGTERM: progress is saved")
    wait_for(lambda: not any(member.is_running() for member in family))
