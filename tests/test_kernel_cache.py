"""Where compiled kernels are kept when the package, the home folder or both cannot be written."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from worldmodels.envs.carracing.compiled import forget_stale, is_current
from worldmodels.errors import WorldModelsError

pytestmark = pytest.mark.system
ROOT = Path(__file__).parents[1]
STRANGER = 54321
"""A user who has no name and no home."""

USE_A_KERNEL = """
import json, os, stat, subprocess, sys
from pathlib import Path
from worldmodels.envs.carracing.compiled import SOURCES, forget_stale
from worldmodels.envs.carracing.picture import kerb_color
from worldmodels.worlds.kernels import uniform

folder = Path(kerb_color.stats.cache_path)
forget_stale(folder, SOURCES)
kerb_color(1)
told = {"folder": str(folder), "hits": sum(kerb_color.stats.cache_hits.values())}
told["worlds"] = uniform.stats.cache_path
told["given"] = os.environ.get("NUMBA_CACHE_DIR")
if told["given"]:
    told["mode"] = stat.S_IMODE(os.stat(told["given"]).st_mode)
if "child" in sys.argv:
    child = subprocess.run([sys.executable, "-B", sys.argv[1]], capture_output=True, text=True)
    told["child"] = json.loads(child.stdout) | {"errors": child.stderr}
print(json.dumps(told))
"""


@pytest.fixture
def site() -> Iterator[Path]:
    """A copy of the package where other users can read it: pytest's own folders are private."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    shutil.copytree(
        ROOT / "worldmodels", folder / "worldmodels", ignore=shutil.ignore_patterns("__pycache__")
    )
    (folder / "script.py").write_text(USE_A_KERNEL)
    yield folder
    shutil.rmtree(folder)


def kernels(site: Path) -> Path:
    return site / "worldmodels" / "envs" / "carracing" / "__pycache__"


def use_a_kernel(
    site: Path,
    settings: dict[str, str],
    *words: str,
    before: tuple[str, ...] = (),
    cwd: Path | None = None,
) -> tuple[dict[str, Any], list[str]]:
    """What a process says that imports the package and calls a kernel, and its warnings."""
    # Another user cannot write what coverage measures here.
    dropped = ("NUMBA", "COVERAGE") if before else ("NUMBA",)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
    for name in ("HOME", "XDG_CACHE_HOME"):
        kept.pop(name, None)
    done = subprocess.run(
        [*before, sys.executable, "-B", str(site / "script.py"), *words],
        env=kept | settings,
        cwd=cwd or site,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told, done.stderr.splitlines()


def as_stranger() -> tuple[str, ...]:
    """Words before a command that make another user run it; skips where that cannot be."""
    setpriv = shutil.which("setpriv")
    if setpriv is None or os.getuid() != 0:
        pytest.skip("only root can run a command as another user")
    words = (setpriv, f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups")
    if subprocess.run([*words, sys.executable, "-c", "import numba"], check=False).returncode:
        pytest.skip("another user cannot read this Python")
    return words


def test_kernels_are_kept_beside_the_package(site: Path) -> None:
    told, warnings = use_a_kernel(site, {})
    assert (told["folder"], told["given"], warnings) == (str(kernels(site)), None, [])
    again, _ = use_a_kernel(site, {})
    assert (told["hits"], again["hits"]) == (0, 1)


def test_without_a_folder_to_write_a_private_one_is_shared_and_removed(site: Path) -> None:
    kernels(site).write_text("no folder")
    told, warnings = use_a_kernel(site, {"HOME": "/dev/null"}, str(site / "script.py"), "child")
    assert told["mode"] == 0o700
    assert not Path(told["given"]).exists()
    assert told["child"]["folder"] == told["folder"]
    assert Path(told["worlds"]).is_relative_to(told["given"])
    assert (told["hits"], told["child"]["hits"], told["child"]["errors"]) == (0, 1, "")
    (line,) = warnings
    assert told["folder"] in line
    assert "set NUMBA_CACHE_DIR" in line


def test_the_users_own_folder_is_used(site: Path, tmp_path: Path) -> None:
    kernels(site).write_text("no folder")
    own = {"HOME": "/dev/null", "NUMBA_CACHE_DIR": str(tmp_path / "own")}
    told, warnings = use_a_kernel(site, own)
    assert (told["given"], warnings) == (own["NUMBA_CACHE_DIR"], [])
    for folder in (told["folder"], told["worlds"]):
        assert Path(folder).is_relative_to(own["NUMBA_CACHE_DIR"])
    assert use_a_kernel(site, own)[0]["hits"] == 1


def test_an_own_folder_that_cannot_be_written_is_named(site: Path) -> None:
    told, (line,) = use_a_kernel(site, {"NUMBA_CACHE_DIR": "/dev/null/own"})
    assert told["folder"] == str(kernels(site))
    assert told["given"] is None  # its children need not say it again
    assert line.startswith("NUMBA_CACHE_DIR=/dev/null/own: cannot be written")


def test_a_stranger_without_a_home_starts_from_the_kernels_that_are_there(site: Path) -> None:
    words = as_stranger()
    assert use_a_kernel(site, {})[0]["hits"] == 0
    before = sorted(kernels(site).iterdir())
    with tempfile.TemporaryDirectory() as folder:
        own = Path(folder)
        own.chmod(0o777)
        told, warnings = use_a_kernel(site, {}, before=words, cwd=own)
        assert not list(own.iterdir())  # numba would have made a folder called ~
    assert told["hits"] == 1
    assert len(warnings) == 1
    assert told["mode"] == 0o700
    assert sorted(kernels(site).iterdir()) == before


def test_kernels_that_cannot_be_removed_are_used_only_if_current(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled, sources = tmp_path / "compiled", tmp_path / "sources"
    sources.mkdir()
    (sources / "kernel.py").write_text("1")
    forget_stale(compiled, sources)
    (compiled / "kernel.nbi").touch()

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "write_text", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    assert is_current(compiled, sources)
    assert not forget_stale(compiled, sources)
    (sources / "more.py").touch()
    assert not is_current(compiled, sources)
    with pytest.raises(WorldModelsError, match="compiled from other sources"):
        forget_stale(compiled, sources)
    assert forget_stale(tmp_path / "empty", sources)  # nothing there that could be stale
