"""``resume=`` from a store whose content is not trusted."""

import hashlib
import json
import os
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
