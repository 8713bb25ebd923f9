"""Two commands in one run: the second is refused, and the kernel frees what a dead one held."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command import ALONE, error_line, run

from worldmodels.errors import ArtifactError
from worldmodels.runs import locks
from worldmodels.runs.artifacts import Run
from worldmodels.runs.locks import FolderLock


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_stage_at_work_keeps_others_out_until_it_ends(tmp_path: Path) -> None:
    one, two = Run(tmp_path / "run"), Run(tmp_path / "run")
    with one.begin("vae", {}, {}) as work:
        for overwrite in (False, True):
            with pytest.raises(ArtifactError) as refused:
                two.begin("vae", {}, {}, overwrite=overwrite)
            line = str(refused.value)
            assert line.startswith(
                f"{tmp_path}/run/vae: stage=vae is being made by process {os.getpid()} on host "
            )
            assert " since 2" in line
            assert line.endswith("; wait for it or stop it")
        with pytest.raises(ArtifactError, match="is not finished"):
            two.locate("vae")
        with two.begin("rnn", {}, {}) as other:  # another stage is free
            other.finish("def")
        work.finish("abc")
    assert two.begin("vae", {}, {}).complete


def test_an_error_frees_the_folder(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    with pytest.raises(ZeroDivisionError), run.begin("vae", {}, {}):
        raise ZeroDivisionError
    with run.begin("vae", {}, {}) as work:
        work.finish("abc")


def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    script = f"""
from pathlib import Path
from worldmodels.runs.locks import FolderLock
lock = FolderLock(Path({str(tmp_path / "vae")!r}), "vae")
print("held", flush=True)
input()
"""
    holder = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(ArtifactError, match=f"is being made by process {holder.pid} on host"):
        FolderLock(tmp_path / "vae", "vae")
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    FolderLock(tmp_path / "vae", "vae").release()


def test_a_command_leaves_what_another_one_makes_alone(copy: Path) -> None:
    before = names(copy)
    lock = FolderLock(copy / "smoke/vae", "vae")
    line = error_line(
        run(copy, "stage=vae", "preset=smoke", "vae.epochs=2", "overwrite=true", ALONE)
    )
    assert f"smoke/vae: stage=vae is being made by process {os.getpid()} on host" in line
    assert set(names(copy)) - set(before) <= {"smoke/.vae.lock"}
    done = run(copy, "stage=vae", "preset=smoke", ALONE)  # complete, so only read
    assert done.returncode == 0, done.stderr
    lock.release()


@pytest.mark.parametrize("missing", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_warned_of_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    missing: int,
) -> None:
    def flock(*_: Any) -> None:
        raise OSError(missing, os.strerror(missing))

    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr(locks, "_warned", False)
    run = Run(tmp_path / "run")
    for stage in ("vae", "rnn"):
        with run.begin(stage, {}, {}) as work:
            work.finish("abc")
        assert run.has(stage)
    assert capsys.readouterr().out.count("this file system has no locks") == 1


def test_what_a_lock_file_says_is_made_safe_to_show(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path / "vae", "vae")
    lock.path.write_bytes(b"\x1b[31mprocess \xff 1\nmore" + b"x" * 1000)
    with pytest.raises(ArtifactError) as refused:
        FolderLock(tmp_path / "vae", "vae")
    assert str(refused.value).isprintable()
    assert "more" not in str(refused.value)


def test_a_lock_file_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("content")
    (tmp_path / ".vae.lock").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match=r"\.vae\.lock"):
        FolderLock(tmp_path / "vae", "vae")
    assert (tmp_path / "precious").read_text() == "content"
