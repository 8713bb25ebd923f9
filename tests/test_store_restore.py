"""``resume=`` from a store whose content is not trusted."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from copies import content, copier, quiet, write

from worldmodels.errors import ArtifactError
from worldmodels.store.index import INDEX
from worldmodels.store.location import Folder
from worldmodels.store.restore import restore


def hostile(store: Path, files: dict[str, Any], **more: Any) -> Folder:
    location = Folder(store)
    location.prepare()
    record = {"format": 1, "version": "v", "run": "r", "files": files, "removed": []} | more
    location.write(INDEX, json.dumps(record).encode())
    return location


GOOD = {"size": 1, "sha256": hashlib.sha256(b"x").hexdigest()}


@pytest.mark.parametrize(
    "files",
    [
        *({name: GOOD} for name in ("../x", "/x", "a/../x", "a//x", "", ".", "a/.x", ".a/x")),
        *({name: GOOD} for name in ("a\\x", "a\nx", "a/\x00", "x" * 300, "a/" * 20 + "x", "a/")),
        {"a": GOOD, "a/x": GOOD},
        {"a": {"size": -1, "sha256": GOOD["sha256"]}},
        {"a": {"size": 2**60, "sha256": GOOD["sha256"]}},
        {"a": {"size": True, "sha256": GOOD["sha256"]}},
        {"a": {"size": 1, "sha256": "../../x"}},
        {"a": {"size": 1}},
        {"a": []},
    ],
)
def test_an_index_that_no_run_has_is_refused(files: dict[str, Any], tmp_path: Path) -> None:
    location = hostile(tmp_path / "store", files)
    with pytest.raises(ArtifactError, match=r"resume=.*index\.json is damaged"):
        restore(tmp_path / "run", "u", location, False, quiet)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]


@pytest.mark.parametrize(
    "damage", ["another", "longer", "missing", "link", "linked folder", "pipe"]
)
def test_content_that_is_not_what_the_index_says_is_refused(damage: str, tmp_path: Path) -> None:
    store, secret = tmp_path / "store", tmp_path / "secret"
    secret.mkdir()
    (secret / "x").write_text("x")
    location = hostile(store, {"vae/x": GOOD})
    if damage == "linked folder":
        (store / "vae").symlink_to(secret)
    elif damage != "missing":
        (store / "vae").mkdir()
        make: dict[str, Callable[[Path], Any]] = {
            "another": lambda path: path.write_text("y"),
            "longer": lambda path: path.write_text("xx"),
            "link": lambda path: path.symlink_to(secret / "x"),
            "pipe": os.mkfifo,
        }
        make[damage](store / "vae" / "x")
    with pytest.raises(ArtifactError):
        restore(tmp_path / "run", "u", location, False, quiet)
    assert not (tmp_path / "run").exists()
    assert secret.joinpath("x").read_text() == "x"


def test_a_run_that_does_not_fit_on_the_disk_is_refused(tmp_path: Path) -> None:
    location = hostile(tmp_path / "store", {"x": {"size": 2**42, "sha256": GOOD["sha256"]}})
    with pytest.raises(ArtifactError, match="has room for"):
        restore(tmp_path / "run", "u", location, False, quiet)


def test_a_restore_that_was_cut_off_goes_on(tmp_path: Path) -> None:
    root, store = tmp_path / "run", tmp_path / "store"
    write(root, vae__x="x" * 100, vae__y="y" * 100)
    copier(root, store).step()
    hidden = store / "vae" / "hidden"
    (store / "vae/y").rename(hidden)
    with pytest.raises(ArtifactError, match="vae/y is damaged or missing"):
        restore(tmp_path / "there", "u", Folder(store), False, quiet)
    assert not (tmp_path / "there").exists()
    hidden.rename(store / "vae/y")
    (store / "vae/x").unlink()  # it was fetched before
    restore(tmp_path / "there", "u", Folder(store), False, quiet)
    assert content(tmp_path / "there") == content(root)


@pytest.mark.parametrize(("old", "new"), [("vae__x__y", "vae__x"), ("vae__x", "vae__x__y")])
def test_a_folder_may_take_the_name_of_a_file_while_a_restore_is_cut_off(
    tmp_path: Path, old: str, new: str
) -> None:
    root, store, there = tmp_path / "run", tmp_path / "store", tmp_path / "there"
    write(root, **{old: "old", "vae__z": "z"})
    copying = copier(root, store)
    copying.step()
    hidden = store / "hidden"
    (store / "vae/z").rename(hidden)
    with pytest.raises(ArtifactError, match="vae/z is damaged or missing"):
        restore(there, "u", Folder(store), False, quiet)
    hidden.rename(store / "vae/z")
    shutil.rmtree(root)
    write(root, **{new: "new", "vae__z": "z"})
    copying.step()
    restore(there, "u", Folder(store), False, quiet)
    assert content(there) == content(root)


def test_a_folder_that_is_this_run_is_left_and_any_other_is_refused(tmp_path: Path) -> None:
    root, store, there = tmp_path / "run", Folder(tmp_path / "store"), tmp_path / "there"
    lines: list[str] = []
    store.prepare()
    with pytest.raises(ArtifactError, match="there is no copy of a run"):
        restore(there, "u", store, False, quiet)
    restore(there, "u", store, True, lines.append)
    assert "it begins here" in lines[-1]
    assert not there.exists()

    write(root, vae__x="x")
    restore(root, "u", store, True, quiet)  # a run that has begun before its store
    copier(root, store.root).step()
    there.mkdir()
    (there / ".vae.lock").touch()
    restore(there, "u", store, False, quiet)
    restore(there, "u", store, False, lines.append)
    assert "it is continued" in lines[-1]
    assert content(there) == content(root)

    write(tmp_path / "other", vae__x="y")
    with pytest.raises(ArtifactError, match="has files that are not from there"):
        restore(tmp_path / "other", "u", store, False, quiet)
    assert content(tmp_path / "other") == {"vae/x": b"y"}


def test_a_store_that_changes_meanwhile_is_restored_in_its_new_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, store = tmp_path / "run", Folder(tmp_path / "store")
    write(root, vae__x="x")
    copying = copier(root, store.root)
    copying.step()
    download, changes = store.download, iter([True])

    def changing(*arguments: Any) -> str | None:
        if next(changes, False):
            write(root, vae__x="new")
            copying.step()
        return download(*arguments)

    monkeypatch.setattr(store, "download", changing)
    restore(tmp_path / "there", "u", store, False, quiet)
    assert content(tmp_path / "there") == content(root) == {"vae/x": b"new"}
