"""``store=`` and ``resume=`` with a folder: what is copied, when, and what is never overwritten."""

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command import ALONE, FEW_FRAMES, composed, error_line, run
from copies import content, copier, equal, foreign, index, plain, quiet, write
from waiting import wait_for

from worldmodels import extras
from worldmodels.config import limits
from worldmodels.errors import ConfigError
from worldmodels.store import copier as copiers
from worldmodels.store import lease as leases
from worldmodels.store import process
from worldmodels.store.budget import Budget
from worldmodels.store.lease import LEASE, InUse, Lease
from worldmodels.store.location import Folder
from worldmodels.store.restore import restore
from worldmodels.store.snapshot import Changing, snapshot

COLLECT = ("stage=rollouts", "preset=smoke", "rollouts.episodes=2", ALONE, *FEW_FRAMES)


# The whole program


def test_a_run_is_copied_continued_elsewhere_and_not_overwritten(tmp_path: Path) -> None:
    here, there, store = tmp_path / "here", tmp_path / "there", tmp_path / "store"
    done = run(here, *COLLECT, f"store={store}")
    assert done.returncode == 0, done.stderr
    assert "has all" in done.stdout
    assert equal(here / "smoke", store)
    before = plain(store)
    line = error_line(run(there, *COLLECT, "seed=5", f"store={store}"))
    assert f"store={store}: is in use by another run (smoke)" in line
    assert not (there / "smoke").exists()
    assert plain(store) == before
    more = ("rollouts.episodes=3", f"store={store}", f"resume={store}/")
    done = run(there, *COLLECT, *more)
    assert done.returncode == 0, done.stderr
    assert "fetching" in done.stdout
    assert equal(there / "smoke", store)
    # The first folder is the older one by now.
    assert "another folder has continued" in error_line(run(here, *COLLECT, f"store={store}"))
    assert "move it away" in error_line(run(here, *COLLECT, f"resume={store}"))
    assert equal(there / "smoke", store)


def test_a_store_that_cannot_be_used_is_named_before_the_first_stage(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    line = error_line(run(tmp_path / "data", *COLLECT, f"store={tmp_path}/file/store"))
    assert line.startswith(f"error: store={tmp_path}/file/store: ")
    assert "check address and permissions" in line
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/cat.jpg").touch()
    line = error_line(run(tmp_path / "data", *COLLECT, f"store={tmp_path}/photos"))
    assert "contains cat.jpg and is not a copy of a run" in line
    assert [path.name for path in (tmp_path / "photos").iterdir()] == ["cat.jpg"]
    for inside in ("", "/copy"):
        store = f"store={tmp_path}/data/smoke{inside}"
        line = error_line(run(tmp_path / "data", *COLLECT, store))
        assert f"{store}: is in the folder of the run" in line
    line = error_line(run(tmp_path / "data", *COLLECT, f"resume={tmp_path}/nothing"))
    assert f"resume={tmp_path}/nothing: there is no copy of a run" in line
    assert not (tmp_path / "data/smoke").exists()


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("store=ftp://host/run", "store=ftp://host/run: no protocol ftp here"),
        ("resume=simplecache::s3://b/run", "no protocol simplecache::s3 here"),
        ("store=s3://", "store=s3://: names no bucket"),
        ("store='file:///'", "store=file:///: names no folder"),
    ],
)
def test_an_address_that_none_can_use_is_refused(word: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        limits.check(composed(word))
    assert said in str(caught.value)


@pytest.mark.parametrize(("url", "extra"), [("s3://b/run", "s3"), ("gs://b/run", "gcs")])
def test_a_missing_package_is_named(url: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda module: None)
    with pytest.raises(ConfigError) as caught:
        extras.check(composed("stage=report", f"store={url}"))
    assert f"store={url}" in str(caught.value)
    assert f"[{extra}]" in str(caught.value)


# Copying


def test_what_changes_is_copied_and_nothing_twice(tmp_path: Path) -> None:
    root, store = tmp_path / "run", tmp_path / "store"
    write(root, vae__manifest_json="1", vae__weights="W" * 1000, rnn__log_jsonl="a\nb\n")
    (root / ".vae.lock").touch()
    (root / "link").symlink_to(tmp_path)
    location = Counting(store)
    copying = copier(root, store, location)
    assert not copying.step()
    assert copying.step()
    assert equal(root, store)
    assert set(plain(store)) == {"vae/manifest_json", "vae/weights", "rnn/log_jsonl"}
    location.sent.clear()
    (root / "vae").rename(root / ".vae.replaced")  # overwrite=true
    write(root, vae__manifest_json="2")
    assert not copying.step()
    assert equal(root, store)
    assert len(location.sent) == 2  # manifest and index
    shutil.rmtree(root / ".vae.replaced")
    copying.step()
    assert equal(root, store)
    location.sent.clear()
    assert copier(root, store, location).step()  # the program begins again
    assert location.sent == []


def test_a_name_that_a_reader_would_refuse_is_not_written(tmp_path: Path) -> None:
    root, store = tmp_path / "run", tmp_path / "store"
    write(root, vae__weights="W")
    for name in (b"b\\c.txt", b"\xff", b"bell\x07", b"." * 5 + b"x"):
        Path(os.fsdecode(os.fsencode(root) + b"/" + name)).touch()
    deep = root.joinpath(*"abcdefghijklmnopqrs")
    deep.mkdir(parents=True)
    (deep / "x").touch()
    copying = copier(root, store, Counting(store))
    while not copying.step():
        pass
    assert set(index(store)) == {"vae/weights"}


@pytest.mark.parametrize(
    ("size", "copied"),
    [(10, (2, 4, 6, 7)), (30, (1, 2, 3, 4, 5, 6, 7))],
    ids=["two in a step", "larger than a step"],
)
def test_on_a_slow_line_shards_are_copied_some_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, copied: tuple[int, ...]
) -> None:
    monkeypatch.setattr(copiers, "_STEP_BYTES", 25)
    root, store = tmp_path / "run", tmp_path / "store"
    copying = copier(root, store)
    write(root, **{"rollouts__manifest.json": "running"})
    copying.step()
    write(root, **{f"rollouts__shard-{n}.h5": "x" * size for n in range(7)})
    for number in copied:
        assert not copying.step()
        assert len(plain(store)) == 1 + number
        assert index(store).keys() == plain(store).keys()
    assert copying.step()
    write(root, **{f"rollouts__shard-{n}.h5": "y" * size for n in range(10, 17)})
    write(root, **{"rollouts__manifest.json": "complete"})  # it names them all
    assert not copying.step()
    assert equal(root, store)


def test_a_log_is_copied_to_its_last_whole_line(tmp_path: Path) -> None:
    root, store = tmp_path / "run", tmp_path / "store"
    (root / "vae").mkdir(parents=True)
    (root / "vae/generations.jsonl").write_text('{"a": 1}\n{"a": 2}\n{"a"')
    copier(root, store).step()
    assert plain(store) == {"vae/generations.jsonl": b'{"a": 1}\n{"a": 2}\n'}


class Counting(Folder):
    """A store that notes what is sent to it."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.sent: list[str] = []

    def write(self, name: str, content: bytes) -> None:
        super().write(name, content)
        if name != LEASE:
            self.sent.append(name)

    def upload(self, name: str, file: Any) -> None:
        super().upload(name, file)
        self.sent.append(name)

    def copy(self, name: str, target: str) -> None:
        shutil.copyfile(self.root / name, self.root / target)


def cut(location: Folder, operations: int) -> Folder:
    """Let a store fail from its operation number so many on."""
    left = itertools.count(operations, -1)

    def until_cut(operation: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            if next(left) <= 0:
                raise ConnectionError("cut")
            operation(*arguments)

        return call

    for name in ("write", "upload", "copy", "move", "remove"):
        setattr(location, name, until_cut(getattr(location, name)))
    return location


def test_cut_off_at_any_operation_a_restore_finds_one_state_of_the_run(tmp_path: Path) -> None:
    """And the next copier, of this process or another, completes it."""
    outcomes = set()
    for operations in itertools.count(1):
        folder = tmp_path / str(operations)
        root, store = folder / "run", folder / "store"
        write(root, vae__manifest="running", vae__best="1", vae__checkpoint="1", old__x="x")
        copying = copier(root, store)
        copying.step()
        first = content(root)
        write(root, vae__best="2", vae__checkpoint="2", vae__weights="w", vae__twin="w")
        write(root, vae__manifest="complete")
        shutil.rmtree(root / "old")
        second = content(root)
        interrupted = copier(root, store, cut(Folder(store), operations))
        try:
            whole = not interrupted.step()
        except ConnectionError:
            whole = False
        restore(folder / "there", str(store), Folder(store), False, quiet)
        found = content(folder / "there")
        assert found in (first, second)
        outcomes.add(found == second)
        copier(root, store).step()
        assert equal(root, store)
        if whole:
            break
    assert outcomes == {False, True}


def test_a_snapshot_is_a_state_that_the_folder_had(tmp_path: Path) -> None:
    """Files are replaced all the time, `first` before `second`: it is never behind it."""
    write(tmp_path, first="0", second="0")
    seen, ended = 0, threading.Event()

    def replace() -> None:
        for number in itertools.count(1):
            write(tmp_path, first=str(number))
            write(tmp_path, second=str(number))
            ended.wait(0.001 * (number % 20))
            if ended.is_set():
                return

    thread = threading.Thread(target=replace)
    thread.start()
    try:
        while seen < 30:
            with contextlib.suppress(Changing), snapshot(tmp_path, {}) as taken:
                first, second = (int(taken.opened[n].read()) for n in ("first", "second"))
                assert first - second in (0, 1)
                seen += 1
    finally:
        ended.set()
        thread.join()


def test_a_folder_that_is_gone_removes_nothing(tmp_path: Path) -> None:
    root, store = tmp_path / "run", tmp_path / "store"
    write(root, vae__x="x")
    copying = copier(root, store)
    copying.step()
    shutil.rmtree(root)
    with pytest.raises(FileNotFoundError):
        copying.step()
    assert plain(store) == {"vae/x": b"x"}


def test_a_file_that_is_written_to_in_place_is_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, location = tmp_path / "run", Folder(tmp_path / "store")
    copying = copier(root, location.root, location)
    assert copying.step()  # there is no folder yet
    write(root, vae__x="x")
    upload = location.upload

    def writing(name: str, file: Any) -> None:
        upload(name, file)
        with (root / "vae/x").open("a") as same:
            same.write("x")

    with monkeypatch.context() as patch, pytest.raises(Changing):
        patch.setattr(location, "upload", writing)
        copying.step()
    assert plain(location.root) == {}
    copying.step()
    assert equal(root, location.root)


def test_a_store_that_is_gone_is_not_made_anew(tmp_path: Path) -> None:
    """It may be a file system that is not mounted any more."""
    root, store = tmp_path / "run", tmp_path / "store"
    write(root, vae__x="x")
    copying = copier(root, store)
    copying.step()
    store.rename(tmp_path / "elsewhere")
    write(root, vae__x="y")
    with pytest.raises(FileNotFoundError):
        copying.step()
    assert not store.exists()
    (tmp_path / "elsewhere").rename(store)
    copying.step()
    assert equal(root, store)


# The lease


def test_a_machine_that_is_alive_keeps_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = Folder(tmp_path)
    location.prepare()
    foreign(location)
    monkeypatch.setattr(leases, "_LOOK_SECONDS", 0.01)
    mine = Lease(location, "store=x", os.getpid(), "mine")
    with pytest.raises(InUse, match="store=x: is in use by process 1 on host far"):
        mine.claim(lambda line: foreign(location))  # it refreshes while this one waits
    os.utime(tmp_path / LEASE, (1, 1))
    mine.claim(quiet)
    mine.check()
    foreign(location)
    with pytest.raises(InUse):
        mine.refresh()
    mine.release()
    assert (tmp_path / LEASE).exists()


def test_a_lease_is_refreshed_while_a_run_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease, fetched = tmp_path / "store" / LEASE, tmp_path / "fetched"

    def fetching(*_: object) -> None:
        claimed = lease.read_bytes()
        wait_for(lambda: lease.read_bytes() != claimed)
        fetched.touch()

    monkeypatch.setattr(process, "restore", fetching)
    monkeypatch.setattr(process, "REFRESH_SECONDS", 0.05)
    store, source = str(tmp_path / "store"), str(tmp_path / "source")
    work = process.Work(tmp_path / "run", "run", store, source, 1.0, 0.1, "mine")
    _, held = process._begin(work, os.getpid(), quiet)  # type: ignore[arg-type]  # it says nothing
    assert held is not None
    held.release()
    assert fetched.exists()


def test_a_process_that_has_ended_leaves_the_store(tmp_path: Path) -> None:
    location = Folder(tmp_path)
    location.prepare()
    mine = Lease(location, "store=x", os.getpid(), "mine")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        Lease(location, "store=x", other.pid, "first").claim(quiet)
        with pytest.raises(InUse, match=f"process {other.pid}"):
            mine.claim(quiet)
        record = json.loads((tmp_path / LEASE).read_text())
        (tmp_path / LEASE).write_text(json.dumps(record | {"began": 5.0}))  # a number used again
        mine.claim(quiet)
        Lease(location, "store=x", os.getpid(), "again").claim(quiet)
        mine.release()
        assert (tmp_path / LEASE).exists()
        Lease(location, "store=x", other.pid, "first").refresh(new=True)
    mine.claim(quiet)
    mine.release()
    assert not (tmp_path / LEASE).exists()


def test_waiting_ends_at_once_when_the_run_does() -> None:
    hurry = threading.Event()
    thread = threading.Thread(target=Budget(0.01, hurry).rest, args=(3600.0,))
    thread.start()
    hurry.set()
    wait_for(lambda: not thread.is_alive())
