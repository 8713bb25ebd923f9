"""``store=`` and ``resume=`` with a real S3 server, through a network that fails."""

import json
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command import ALONE, FEW_FRAMES, error_line, paused, run
from copies import listed
from proxy import Proxy
from waiting import wait_for

from worldmodels.errors import EXIT_STOPPED, EXIT_UNCOPIED

boto3 = pytest.importorskip("boto3", reason="moto is not installed: pip install 'moto[s3]'")
pytest.importorskip("s3fs", reason="s3fs is not installed")
server = pytest.importorskip("moto.server", reason="moto is not installed")

pytestmark = pytest.mark.system

STORE = "s3://runs/smoke"
COLLECT = ("stage=rollouts", "preset=smoke", "rollouts.episodes=4", ALONE, *FEW_FRAMES)
COPY = (f"store={STORE}", "mirror.interval=0.1", "mirror.cpu_share=1", "env.num_envs=2")


class Bucket:
    """The bucket of one test: as programs reach it through the proxy, and as the test sees it."""

    def __init__(self, port: int) -> None:
        self.proxy = Proxy(port)
        self._keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
        self.direct = f"http://127.0.0.1:{port}"
        self._client = boto3.client(
            "s3",
            endpoint_url=self.direct,
            region_name="us-east-1",
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )
        self._client.create_bucket(Bucket="runs")

    @property
    def variables(self) -> dict[str, str]:
        endpoint = f"http://127.0.0.1:{self.proxy.port}"
        return {**self._keys, "AWS_DEFAULT_REGION": "us-east-1", "AWS_ENDPOINT_URL": endpoint}

    def objects(self) -> dict[str, bytes]:
        """Name below the store -> content."""
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket="runs")
        keys = [entry["Key"] for page in pages for entry in page.get("Contents", [])]
        return {
            key.removeprefix("smoke/"): self._client.get_object(Bucket="runs", Key=key)[
                "Body"
            ].read()
            for key in keys
        }

    def index(self) -> dict[str, Any]:
        try:
            found = self._client.get_object(Bucket="runs", Key="smoke/.store/index.json")
        except self._client.exceptions.NoSuchKey:
            return {}
        files: dict[str, Any] = json.loads(found["Body"].read())["files"]
        return files

    def equal(self, root: Path) -> bool:
        """Whether index and objects are the files of a folder."""
        files = {n: c for n, c in self.objects().items() if not n.startswith(".store/")}
        wanted = listed(root)
        return self.index() == wanted and files == {n: (root / n).read_bytes() for n in wanted}


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """One server for all tests of this file."""
    serving = server.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    serving.start()
    yield serving.get_host_and_port()[1]
    serving.stop()


@pytest.fixture
def bucket(port: int) -> Iterator[Bucket]:
    """An empty bucket."""
    for words in ("reset", "reset-auth"):
        post(port, words, b"inf" if words == "reset-auth" else b"")
    found = Bucket(port)
    yield found
    found.proxy.close()


def post(port: int, words: str, content: bytes) -> None:
    url = f"http://127.0.0.1:{port}/moto-api/{words}"
    request = urllib.request.Request(url, content, {"Content-Type": "text/plain"}, method="POST")
    urllib.request.urlopen(request).close()


def test_connections_that_are_cut_and_slow_delay_the_copy_and_not_the_run(
    bucket: Bucket, tmp_path: Path
) -> None:
    bucket.proxy.cuts, bucket.proxy.cut_after = 6, 3000
    bucket.proxy.rate = 200_000
    done = run(tmp_path, *COLLECT, *COPY, variables=bucket.variables)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "has all" in done.stdout
    assert bucket.proxy.cuts == 0
    assert bucket.proxy.slowed > 10_000
    assert bucket.equal(tmp_path / "smoke")
    there = tmp_path / "there"
    bucket.proxy.cuts, bucket.proxy.rate = 2, None
    done = run(there, *COLLECT, *COPY, f"resume={STORE}", variables=bucket.variables)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "done before" in done.stdout
    assert listed(there / "smoke") == listed(tmp_path / "smoke")


def test_a_run_goes_on_while_connections_are_refused_and_the_copy_follows(
    bucket: Bucket, tmp_path: Path
) -> None:
    words = (*COLLECT, *COPY)
    with paused(tmp_path, *words, at_write=2, variables=bucket.variables) as running:
        wait_for(lambda: "rollouts/manifest.json" in bucket.index())
        bucket.proxy.refusing = True
        running.send(signal.SIGCONT)
        manifest = tmp_path / "smoke/rollouts/manifest.json"
        wait_for(lambda: json.loads(manifest.read_text())["state"] == "complete")
        wait_for(lambda: "the run goes on, and copying is tried again" in running.output)
        assert bucket.proxy.refused > 0
        assert "rollouts/shard-00001.h5" not in bucket.index()
        wait_for(lambda: "before the end" in running.output)
        bucket.proxy.refusing = False
        assert running.wait() == 0, running.errors
        assert "has all" in running.output
    assert bucket.equal(tmp_path / "smoke")


@pytest.mark.parametrize("stalled", [False, True])
def test_the_exit_code_and_a_line_say_that_the_copy_is_not_complete(
    bucket: Bucket, tmp_path: Path, stalled: bool
) -> None:
    words = (*COLLECT, *COPY)
    with paused(
        tmp_path, *words, "mirror.timeout=3", at_write=2, variables=bucket.variables
    ) as running:
        wait_for(lambda: "rollouts/manifest.json" in bucket.index())
        bucket.proxy.refusing, bucket.proxy.stalled = not stalled, stalled
        running.send(signal.SIGCONT)
        assert running.wait() == EXIT_UNCOPIED, running.output + running.errors
        (line,) = running.errors.splitlines()
        assert line.startswith(f"error: store={STORE}: lacks ")
        assert "the run is finished" in line
    bucket.proxy.refusing = bucket.proxy.stalled = False
    done = run(tmp_path, *words, variables=bucket.variables)
    assert done.returncode == 0, done.stdout + done.stderr
    assert bucket.equal(tmp_path / "smoke")


@pytest.mark.parametrize("refusing", [False, True])
def test_a_run_that_is_stopped_is_copied_first(
    bucket: Bucket, tmp_path: Path, refusing: bool
) -> None:
    words = (*COLLECT, *COPY, "mirror.stop_timeout=" + ("3" if refusing else "300"))
    with paused(tmp_path, *words, at_write=2, variables=bucket.variables) as running:
        wait_for(lambda: "rollouts/manifest.json" in bucket.index())
        bucket.proxy.refusing = refusing
        running.send(signal.SIGTERM)
        running.send(signal.SIGCONT)
        assert running.wait() == EXIT_STOPPED, running.output + running.errors
        lines = running.errors.splitlines()
        assert lines[-1].startswith("stopped by SIGTERM: progress is saved")
        assert [f"store={STORE}: lacks " in line for line in lines[:-1]] == [True] * refusing
    assert bucket.equal(tmp_path / "smoke") is not refusing


def test_a_bucket_without_permission_or_that_does_not_exist_is_named(
    bucket: Bucket, tmp_path: Path, port: int
) -> None:
    line = error_line(run(tmp_path, *COLLECT, "store=s3://other/run", variables=bucket.variables))
    assert "store=s3://other/run: The specified bucket does not exist" in line
    post(port, "reset-auth", b"0")
    line = error_line(run(tmp_path, *COLLECT, *COPY, variables=bucket.variables))
    assert f"store={STORE}: permission denied" in line
    bucket.proxy.refusing = True
    line = error_line(run(tmp_path, *COLLECT, *COPY, variables=bucket.variables))
    assert f"store={STORE}: " in line
    assert "check address and permissions" in line
    assert not (tmp_path / "smoke").exists()
