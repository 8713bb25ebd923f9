"""Folders and buckets as stores, and the copying process when a store or that process is lost."""

import hashlib
import io
import itertools
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psutil
import pytest
from copies import content, copier, equal, foreign, index, write
from waiting import wait_for

from worldmodels.config.execution import MirrorConfig
from worldmodels.config.schema import Config
from worldmodels.errors import ArtifactError, StoreError
from worldmodels.store import location as locations
from worldmodels.store import mirror as mirrors
from worldmodels.store.copier import Copier, read_record
from worldmodels.store.index import INDEX, read_index, record_path
from worldmodels.store.lease import LEASE, InUse
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


# Connections that are cut


def lose_answer(location: Location, number: int) -> None:
    """Let one operation of a store, its number so many, fail although it is carried out."""
    numbers = itertools.count(1)

    def unanswered(operation: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            this = next(numbers)
            operation(*arguments)
            if this == number:
                raise ConnectionError("cut")

        return call

    for name in ("write", "upload", "copy", "move", "remove"):
        setattr(location, name, unanswered(getattr(location, name)))


def objects(location: Location) -> dict[str, bytes | None]:
    """The contents of a store by name, without its lease."""
    return {name: location.read(name, 10_000) for name in location.names() if name != LEASE}


def cut_off(root: Path, location: Location, number: int) -> tuple[Copier, bool]:
    """A copier of a run that has changed, and whether its step was cut off at an operation."""
    write(root, vae__manifest="running", vae__best="1", old__x="x")
    copying = copier(root, root.with_name("store"), location)
    copying.step()
    write(root, vae__best="2", vae__weights="w", vae__twin="w", vae__manifest="complete")
    shutil.rmtree(root / "old")
    lose_answer(location, number)
    try:
        copying.step()
    except ConnectionError:
        return copying, True
    return copying, False


def places(location: Location, folder: Path) -> Iterator[tuple[Path, Location]]:
    """Runs with a store each, of the kind of `location`."""
    for number in itertools.count(1):
        if isinstance(location, Folder):
            yield folder / f"{number}/run", Folder(folder / f"{number}/store")
        else:
            yield folder / f"{number}/run", Bucket("memory", f"/bucket/{folder.name}-{number}")


def test_an_operation_whose_answer_is_lost_does_not_keep_the_store_from_the_newest_state(
    location: Location, tmp_path: Path
) -> None:
    lost = []
    for number, (root, place) in enumerate(places(location, tmp_path), start=1):
        copying, cut = cut_off(root, place, number)
        copying.step()
        assert copying.step()
        files = objects(place)
        del files[INDEX]
        assert files == content(root)
        lost.append(cut)
        if not cut:
            break
    assert len(lost) > 8


def copied(folder: Path) -> tuple[Path, Folder, Copier]:
    """A run that is in its store, the store, and its copier."""
    root, place = folder / "run", Folder(folder / "store")
    write(root, vae__best="1")
    copying = copier(root, place.root, place)
    copying.step()
    return root, place, copying


def step_without_index(copying: Copier, place: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that is cut off when it writes the index."""
    with monkeypatch.context() as patch, pytest.raises(ConnectionError):
        patch.setattr(place, "write", Mock(side_effect=ConnectionError))
        copying.step()


def test_an_index_whose_answer_is_lost_is_known_as_that_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, place, copying = copied(tmp_path)
    write(root, vae__new="n")
    lose_answer(place, 2)
    with pytest.raises(ConnectionError):
        copying.step()
    assert "vae/new" in index(place.root)
    step_without_index(copying, place, monkeypatch)
    found = read_index(place, "store")
    assert found is not None
    assert found.version in read_record(record_path(root, str(place.root)))[0]
    (root / "vae/new").unlink()  # as it was before
    copying.step()
    assert equal(root, place.root)


def test_a_store_that_another_machine_has_taken_since_keeps_its_objects(
    location: Location, tmp_path: Path
) -> None:
    for number, (root, place) in enumerate(places(location, tmp_path), start=1):
        copying, cut = cut_off(root, place, number)
        if not cut:
            break
        foreign(place)
        for name in ("old/x", "vae/best"):
            place.write(name, b"theirs")
        before = objects(place)
        with pytest.raises(InUse):
            copying.step()
        assert before.items() <= objects(place).items()
    assert number > 8


def test_what_another_machine_sends_is_not_removed_as_left_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, place, copying = copied(tmp_path)
    write(root, vae__best="2")
    step_without_index(copying, place, monkeypatch)
    write(root, vae__best="1")
    foreign(place)
    before = objects(place)
    with pytest.raises(InUse):
        copying.step()
    assert len(before) == 3
    assert objects(place) == before


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
        foreign(Folder(store))
        write(root, vae__x="2")
        wait_for(lambda: any("the run goes on without copies" in line for line in said))
    assert (store / "vae/x").read_text() == "1"


def test_what_is_wrong_with_a_store_is_one_line() -> None:
    assert reason(FileNotFoundError(2, "x", "/store/a")) == "/store/a: No such file or directory"
    assert reason(PermissionError("Access\nDenied.")) == "permission denied (Access Denied)"
    assert reason(TimeoutError()) == "TimeoutError"
