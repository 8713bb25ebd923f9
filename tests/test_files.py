"""Files and manifests as they may be found, and writes that the system refuses: one line each."""

import contextlib
import json
import os
import resource
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from worldmodels.data.hdf5 import writing
from worldmodels.errors import ArtifactError
from worldmodels.files.atomic import JsonLines, read_json, write_json
from worldmodels.runs.artifacts import Run

GOOD: dict[str, Any] = {
    "state": "complete",
    "config": {"size": 1},
    "inputs": {"vae": "abc"},
    "fingerprint": "def",
    "summary": {},
}


def edited(**changes: Any) -> bytes:
    return json.dumps(GOOD | changes).encode()


def sampled(samples: Any) -> bytes:
    return edited(resources={"cpu_s": 1.0, "peak_bytes": {}, "gpu_samples": samples})


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{}", "state is missing"),
        (b"[]", "is no JSON object"),
        (b"5", "is no JSON object"),
        (b'{"state": "complete"}', "config is missing"),
        (edited(config=[]), "config is of a wrong type"),
        (edited(fingerprint=7), "fingerprint is of a wrong type"),
        (edited(inputs={"vae": ["abc"]}), "inputs are not all fingerprints"),
        (edited(state="perhaps"), "state is neither running nor complete"),
        (edited(wall_s="long"), "wall_s is of a wrong type"),
        (edited(resources={"cpu_s": 1.0, "peak_bytes": {"host": "much"}}), "not all numbers"),
        (sampled("many"), "gpu_samples is not a sum and number"),
        (sampled([1.0]), "gpu_samples is not a sum and number"),
        (sampled([1.0, 0]), "gpu_samples is not a sum and number"),
        (sampled([float("nan"), 2]), "gpu_samples is not a sum and number"),
        (sampled(["1", 2]), "gpu_samples is not a sum and number"),
        (b"[" * 100_000, "is damaged"),
        (b"1" * 5000, "is damaged"),
        (b"\x89PNG\r\n\xff\xfe", "is damaged"),
        (b"", "is damaged"),
    ],
)
def test_what_is_no_manifest_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    run = Run(tmp_path)
    path = tmp_path / "rnn/manifest.json"
    path.parent.mkdir()
    path.write_bytes(content)
    for use in (lambda: run.locate("rnn"), lambda: run.begin("rnn", {"size": 1}, {})):
        with pytest.raises(ArtifactError, match="overwrite=true") as refused:
            use()
        assert str(refused.value).startswith(f"{path}: ")
        assert said in str(refused.value)
    assert path.read_bytes() == content
    with run.begin("rnn", {"size": 1}, {}, overwrite=True) as folder:  # as the line says
        folder.finish("def")
    assert run.has("rnn")


def test_what_is_no_regular_file_or_too_large_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for name, said in (("pipe", "is not a regular file"), ("zero", "is a link")):
        with pytest.raises(ArtifactError, match=f"{name}: {said}"):
            read_json(tmp_path / name)
    with pytest.raises(ArtifactError, match="is not a regular file"):
        read_json(tmp_path)
    write_json(tmp_path / "long.json", list(range(100)))
    monkeypatch.setattr("worldmodels.files.atomic._JSON_BYTES", 100)
    with pytest.raises(ArtifactError, match=r"long\.json: has [0-9]+ bytes, at most 100"):
        read_json(tmp_path / "long.json")


@contextlib.contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """As ``ulimit -f`` does it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_line_that_does_not_fit_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    log = JsonLines(tmp_path / "log.jsonl")
    log.append({"a": 1})
    before = log.path.read_bytes()
    limit = files_of_at_most(len(before) + 4)
    with limit, pytest.raises(ArtifactError, match=r"log\.jsonl: File too large; .*ulimit -f"):
        log.append({"a": 2})
    assert log.path.read_bytes() == before
    log.append({"a": 3})
    assert log.read() == [{"a": 1}, {"a": 3}]


def test_arrays_that_do_not_fit_leave_the_old_file(tmp_path: Path) -> None:
    path, noise = tmp_path / "file.h5", np.random.default_rng(0).random(100_000)
    path.write_bytes(b"old")
    limit = files_of_at_most(50_000)
    large = pytest.raises(ArtifactError, match=r"file\.h5: File too large; .*ulimit -f")
    with limit, large, writing(path) as output:
        output.file["noise"] = noise
        output.file.flush()
        # HDF5 goes on as if it had been written.
        assert output.file["noise"][-10:].tolist() == noise[-10:].tolist()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_does_not_fit_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    write_json(path, "old")
    limit = files_of_at_most(100)
    with limit, pytest.raises(ArtifactError, match=r"file\.json: File too large; .*ulimit -f"):
        write_json(path, "new" * 100)
    assert read_json(path) == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_record_that_is_no_object_is_named(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    for line in ("5", "[" * 100_000, "{"):
        path.write_text(line + "\n")
        with pytest.raises(ArtifactError, match=r"log\.jsonl: is damaged .*overwrite=true"):
            JsonLines(path).read()


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """A folder that anybody may enter, of a process that may not do everything."""
    folder = Path(tempfile.mkdtemp())
    root = os.geteuid() == 0
    if root:
        os.chown(folder, 65534, -1)
        os.seteuid(65534)
    try:
        yield folder
    finally:
        if root:
            os.seteuid(0)
        shutil.rmtree(folder)


def test_a_folder_without_permission_is_named(unprivileged: Path) -> None:
    run, log = Run(unprivileged / "run"), JsonLines(unprivileged / "run/log.jsonl")
    with run.begin("vae", {}, {}) as folder:
        folder.finish("abc")
    unprivileged.joinpath("run").chmod(0o555)
    try:
        assert run.begin("vae", {}, {}).complete  # reading needs no lock
        for use in (
            lambda: run.begin("rnn", {}, {}),
            lambda: run.begin("vae", {}, {}, overwrite=True),
            lambda: log.append({}),
            lambda: write_json(unprivileged / "run/new.json", {}),
        ):
            with pytest.raises((ArtifactError, PermissionError), match="Permission denied"):
                use()
        assert sorted(path.name for path in run.root.glob("[!.]*")) == ["vae"]
        run.folder("vae").chmod(0)
        with pytest.raises(PermissionError) as refused:
            run.locate("vae")
        assert refused.value.filename is not None
    finally:
        run.root.chmod(0o755)
        run.folder("vae").chmod(0o755)


def test_a_file_where_a_folder_is_needed_is_named(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    with pytest.raises(OSError, match=str(tmp_path / "run")):
        Run(tmp_path / "run").begin("vae", {}, {})
    with pytest.raises(ArtifactError, match=f"{tmp_path}/run/a: Not a directory; a file is where"):
        write_json(tmp_path / "run/a/file.json", {})
