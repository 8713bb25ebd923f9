"""Folders and buckets as stores, and the copying process when a store or that process is lost."""

import hashlib
import io
import signal
import time
from pathlib import Path

import psutil
import pytest
from copies import equal, write
from waiting import wait_for

from worldmodels.config.execution import MirrorConfig
from worldmodels.config.schema import Config
from worldmodels.errors import ArtifactError, StoreError
from worldmodels.store import location as locations
from worldmodels.store import mirror as mirrors
from worldmodels.store.lease import LEASE
from worldmodels.store.location import Bucket, Folder, Location
from worldmodels.store.mirror import Mirror
from worldmodels.store.process import reason
from worldmodels.system import streams


@pytest.fixture(params=["folder", "bucket"])
def location(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Location:
    """An empty store; the bucket is in memory, by fsspec as those of S3 and Google Cloud are."""
    monkeypatch.setattr(locations, "_PIECE", 4)
    if request.param == "folder":
        return Folder(tmp_path / "store")
    return Bucket("memory", f"/bucket/{tmp_path.name}")


def test_an_object_is_whole_under_its_name_or_there_is_none(
    location: Location, tmp_path: Path
) -> None:
    location.prepare()
    assert location.names() == set()
    assert location.read("a/b", 10) is None
    assert location.written("a/b") is None
    assert location.download("a/b", 5, io.BytesIO()) is None

    before = time.time()
    location.write("a/b", b"small")
    assert location.read("a/b", 5) == b"small"
    with pytest.raises(ArtifactError):
        location.read("a/b", 4)
    assert location.written("a/b") == pytest.approx(before, abs=60)

    content = b"larger than a piece"
    (tmp_path / "file").write_bytes(content)
    with (tmp_path / "file").open("rb") as file:
        file.read(3)
        location.upload("c", file)
    received = io.BytesIO()
    digest = location.download("c", len(content), received)
    assert (digest, received.getvalue()) == (hashlib.sha256(content).hexdigest(), content)
    assert location.download("c", len(content) - 1, io.BytesIO()) is None

    location.copy("c", "d/e")
    location.move("a/b", "d/f")
    location.remove("c")
    location.remove("c")
    assert location.names() == {"d/e", "d/f"}
    assert location.read("d/e", 100) == content


# The copying process


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines that are printed."""
    lines: list[str] = []
    monkeypatch.setattr(mirrors, "say", lines.append)
    monkeypatch.setattr(streams, "print_error", lines.append)
    return lines


def mirror(folder: Path, **keys: float) -> Mirror:
    """Copies ``run`` to ``store``, both below a folder."""
    config = Config(run="run", store=str(folder / "store"))
    config.mirror = MirrorConfig(interval=0.05, cpu_share=1.0, **keys)
    return Mirror(config, folder / "run")


def test_a_store_that_is_away_for_a_while_gets_what_it_lacks(
    tmp_path: Path, said: list[str]
) -> None:
    root, store = tmp_path / "run", tmp_path / "store"
    with mirror(tmp_path):
        write(root, vae__x="1")
        wait_for(lambda: equal(root, store))
        store.rename(tmp_path / "away")
        write(root, vae__x="2")
        wait_for(lambda: any("the run goes on, and copying is tried again" in one for one in said))
        (tmp_path / "away").rename(store)
        wait_for(lambda: any("is reached again" in line for line in said))
    assert equal(root, store)
    assert said[-1] == f"store={store}: has all 1 file (0.0 MB)"


def test_a_copying_process_that_is_killed_is_replaced(tmp_path: Path, said: list[str]) -> None:
    root, store = tmp_path / "run", tmp_path / "store"
    before = set(psutil.Process().children())
    with mirror(tmp_path):
        write(root, vae__x="1")
        wait_for(lambda: equal(root, store))
        for process in set(psutil.Process().children()) - before:
            if "resource_tracker" not in " ".join(process.cmdline()):
                process.send_signal(signal.SIGKILL)
        wait_for(lambda: any("(exit code -9), a new one begins" in line for line in said))
        write(root, vae__x="2")
    assert equal(root, store)


def test_what_the_store_lacks_in_the_end_is_an_error_of_a_finished_run(
    tmp_path: Path, said: list[str]
) -> None:
    root, store = tmp_path / "run", tmp_path / "store"
    write(root, vae__x="1")
    lacks = r"lacks 1 file \(0.0 MB\) \(.*is finished: repeat"
    with pytest.raises(StoreError, match=lacks), mirror(tmp_path, timeout=1.0):
        wait_for(lambda: equal(root, store))
        store.rename(tmp_path / "away")
        write(root, vae__x="2")
    (tmp_path / "away").rename(store)
    with pytest.raises(KeyError), mirror(tmp_path, stop_timeout=1.0):
        store.rename(tmp_path / "away")
        raise KeyError("the error of a stage, which is not hidden by that of the store")
    assert "repeat the command to copy the rest" in said[-1]


def test_a_store_that_another_machine_has_taken_is_left_to_it(
    tmp_path: Path, said: list[str]
) -> None:
    root, store = tmp_path / "run", tmp_path / "store"
    with pytest.raises(StoreError, match="is in use by process 1 on host far"), mirror(tmp_path):
        write(root, vae__x="1")
        wait_for(lambda: equal(root, store))
        (store / LEASE).write_text('{"token": "x", "machine": "far", "host": "far", "process": 1}')
        write(root, vae__x="2")
        wait_for(lambda: any("the run goes on without copies" in line for line in said))
    assert (store / "vae/x").read_text() == "1"


def test_what_is_wrong_with_a_store_is_one_line() -> None:
    assert reason(FileNotFoundError(2, "x", "/store/a")) == "/store/a: No such file or directory"
    assert reason(PermissionError("Access\nDenied.")) == "permission denied (Access Denied)"
    assert reason(TimeoutError()) == "TimeoutError"
