"""Files of a run: whole, made by what the manifest says, and as many as it says."""

import errno
import hashlib
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import ALONE, composed, run, unmeasured
from conftest import Once

from worldmodels.data.episodes import EpisodeSet
from worldmodels.data.shards import Episode, write_shard
from worldmodels.errors import ArtifactError, DataError
from worldmodels.files.atomic import read_json, write_json
from worldmodels.runs.artifacts import Run
from worldmodels.runs.integrity import listed, reading, verified
from worldmodels.stages import rollouts
from worldmodels.stages.context import Context

FILES = {
    "rollouts": {"shard-00000.h5", "shard-00001.h5"},
    "vae": {"vae.safetensors"},
    "rnn": {"rnn.safetensors", "latents.h5", "calibration.json"},
    "controller": {
        f"agent/{name}"
        for name in ("agent.json", "vae.safetensors", "rnn.safetensors", "controller.safetensors")
    },
}


def error_line(done: subprocess.CompletedProcess[str]) -> str:
    """The one line of a failure, beside the notice of a simulator that is slow to load."""
    lines = [line for line in done.stderr.splitlines() if "compiling the CarRacing" not in line]
    assert done.returncode == 1, (done.stdout, done.stderr)
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("error: ")
    return lines[0]


def manifest(data: Path, stage: str) -> dict[str, Any]:
    record: dict[str, Any] = read_json(data / "smoke" / stage / "manifest.json")
    record.pop("crc32", None)  # what is written again is to be read again
    return record


def flip(path: Path, rng: random.Random) -> None:
    """Flip one bit anywhere."""
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(bytes(content))


def small_shard(path: Path, steps: int = 3, seed: int = 0) -> None:
    frames = np.random.default_rng(seed).integers(0, 256, (steps + 1, 8, 8, 3), np.uint8)
    ends = np.arange(steps) == steps - 1
    zeros = np.zeros((steps, 3), np.float32)
    write_shard(path, [Episode(frames, zeros, zeros[:, 0], ends, ends & False, seed)], {})


def test_manifests_list_what_later_stages_read(smoke: Path) -> None:
    for stage, names in FILES.items():
        files = manifest(smoke, stage)["files"]
        assert set(files) == names
        for name, value in files.items():
            content = (smoke / "smoke" / stage / name).read_bytes()
            assert hashlib.sha256(content).hexdigest() == value


def test_one_flipped_bit_anywhere_is_damage(copy: Path) -> None:
    rng = random.Random()
    for stage, names in FILES.items():
        folder = copy / "smoke" / stage
        for name in names:
            whole = (folder / name).read_bytes()
            verified(folder, name)
            for _ in range(5):
                flip(folder / name, rng)
                with pytest.raises(DataError, match=rf"{name} is damaged \(its SHA-256"):
                    verified(folder, name)
                (folder / name).write_bytes(whole)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("rollouts/shard-00001.h5", ("stage=vae", "overwrite=true")),
        ("rollouts/shard-00001.h5", ("stage=inspect",)),
        ("vae/vae.safetensors", ("stage=controller", "overwrite=true")),
        ("rnn/rnn.safetensors", ("stage=controller", "overwrite=true")),
        ("rnn/latents.h5", ("stage=controller", "overwrite=true", "controller.pca_components=8")),
        ("controller/agent/controller.safetensors", ("stage=evaluate", "overwrite=true")),
    ],
)
def test_a_stage_names_the_damaged_file_before_it_is_opened(
    copy: Path, name: str, words: tuple[str, ...]
) -> None:
    flip(copy / "smoke" / name, random.Random())
    line = error_line(run(copy, "preset=smoke", ALONE, *words))
    assert f"smoke/{name} is damaged" in line


def test_a_file_is_verified_once(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted, digest = [], hashlib.file_digest

    def counting(file: Any, name: Any) -> Any:
        counted.append(name)
        return digest(file, name)

    monkeypatch.setattr(hashlib, "file_digest", counting)
    files = listed(copy / "smoke/rollouts", "shard-*.h5")
    for _ in range(3):
        EpisodeSet.listed(files)
    assert len(counted) == len(files) == 2


def test_an_artifact_of_an_older_version_is_read_with_a_warning(
    copy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = copy / "smoke/rollouts"
    record = manifest(copy, "rollouts")
    del record["files"], record["made_by"]
    write_json(folder / "manifest.json", record)
    assert EpisodeSet.listed(listed(folder, "shard-*.h5")).num_episodes == 8
    assert "being of an older version" in caplog.text


@pytest.mark.parametrize(
    "files", [[], {"../vae/vae.safetensors": "0" * 64}, {"/etc/passwd": "0" * 64}, {"a.h5": 5}]
)
def test_a_manifest_lists_files_of_its_folder(tmp_path: Path, files: object) -> None:
    record = {"state": "running", "config": {}, "inputs": {}, "files": files}
    write_json(tmp_path / "manifest.json", record)
    with pytest.raises(ArtifactError, match="files is not a table"):
        listed(tmp_path, "*")


OTHER = {
    "rollouts": ("shard-00000.h5", "rollouts.policy", "uniform"),
    "vae": ("checkpoint.safetensors", "vae.learning_rate", 0.5),
    "rnn": ("latents.h5", "rnn.learning_rate", 0.5),
    "controller": ("generations.jsonl", "controller.sigma", 0.5),
    "evaluate": ("agent.jsonl", "evaluate.first_seed", 50),
}


@pytest.mark.parametrize("stage", OTHER)
def test_what_was_made_with_another_configuration_is_not_adopted(copy: Path, stage: str) -> None:
    name, key, value = OTHER[stage]
    record = manifest(copy, stage)
    for part in ("files", "made_by"):
        del record[part]
    record["state"] = "running"
    record["config"][key] = value
    write_json(copy / "smoke" / stage / "manifest.json", record)
    line = error_line(run(copy, f"stage={stage}", "preset=smoke", f"{key}={value}", ALONE))
    assert f"smoke/{stage}/{name}: made with another configuration" in line
    assert "overwrite=true" in line


def test_metrics_of_another_configuration_are_not_gone_on_with(copy: Path) -> None:
    path = copy / "smoke/vae/metrics.csv"
    made_by = manifest(copy, "vae")["made_by"]
    path.write_text(path.read_text().replace(made_by, "0" * 16))
    record = manifest(copy, "vae") | {"state": "running"}
    write_json(copy / "smoke/vae/manifest.json", record)
    line = error_line(run(copy, "stage=vae", "preset=smoke", ALONE))
    assert "smoke/vae/metrics.csv: made with another configuration" in line


def test_growing_does_not_change_what_made_the_files(tmp_path: Path) -> None:
    few = Run(tmp_path / "few").begin("rollouts", {"episodes": 8, "seed": 1}, {}, ("episodes",))
    more = Run(tmp_path / "more").begin("rollouts", {"episodes": 9, "seed": 1}, {}, ("episodes",))
    other = Run(tmp_path / "other").begin("rollouts", {"episodes": 8, "seed": 2}, {}, ("episodes",))
    assert few.record["made_by"] == more.record["made_by"] != other.record["made_by"]


COLLECT = ("stage=rollouts", "preset=smoke", ALONE)


def test_damaged_and_missing_shards_are_collected_again_and_nothing_is_deleted(copy: Path) -> None:
    folder = copy / "smoke/rollouts"
    before = manifest(copy, "rollouts")
    flip(folder / "shard-00000.h5", random.Random())
    damaged = (folder / "shard-00000.h5").read_bytes()
    (folder / "shard-00001.h5").unlink()
    done = run(copy, *COLLECT)
    assert done.returncode == 0, done.stderr
    assert (folder / "shard-00000.h5.damaged").read_bytes() == damaged
    after = manifest(copy, "rollouts")
    assert (after["fingerprint"], after["files"]) == (before["fingerprint"], before["files"])


@pytest.mark.parametrize("name", ["shard-00007.h5", "shard-00001 (copy).h5"])
def test_shards_that_the_run_has_not_made_are_named(copy: Path, name: str) -> None:
    folder = copy / "smoke/rollouts"
    shutil.copy(folder / "shard-00001.h5", folder / name)
    assert name in error_line(run(copy, *COLLECT))
    assert EpisodeSet.listed(listed(folder, "shard-*.h5")).num_episodes == 8


def test_a_shard_of_other_seeds_is_named(copy: Path) -> None:
    folder = copy / "smoke/rollouts"
    shutil.copy(folder / "shard-00001.h5", folder / "shard-00000.h5")
    record = manifest(copy, "rollouts") | {"state": "running", "files": {}}
    write_json(folder / "manifest.json", record)
    line = error_line(run(copy, *COLLECT))
    assert "shard-00000.h5: its episodes have other seeds" in line


def test_a_shard_that_vanishes_meanwhile_is_collected_again(
    smoke: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, fsync = tmp_path / "smoke/rollouts", os.fsync

    def vanish(descriptor: int) -> None:
        fsync(descriptor)
        if not vanished and (folder / "shard-00000.h5").exists():
            (folder / "shard-00000.h5").unlink()
            vanished.append(True)

    vanished: list[bool] = []
    monkeypatch.setattr(os, "fsync", vanish)
    rollouts.run(Context(composed(*COLLECT), Run(tmp_path / "smoke")))
    assert vanished
    assert manifest(tmp_path, "rollouts")["files"] == manifest(smoke, "rollouts")["files"]


@pytest.mark.parametrize(
    "number", [errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE]
)
def test_an_error_of_the_system_is_no_damage(number: int) -> None:
    with pytest.raises(ArtifactError) as caught, reading(Path("a.h5"), "remedy it"):
        raise OSError(number, "")
    assert not isinstance(caught.value, DataError)
    assert str(caught.value).startswith(f"a.h5: {os.strerror(number)}; ")


def alone(script: str, folder: Path, *prefix: str) -> subprocess.CompletedProcess[str]:
    """Run some lines in a process of their own, without coverage, which would write files too."""
    begin = f"import resource, os\nfrom pathlib import Path\nfolder = Path({str(folder)!r})\n"
    words = [*prefix, sys.executable, "-c", begin + script]
    return subprocess.run(words, capture_output=True, text=True, env=unmeasured())


@pytest.fixture(scope="module")
def hundred(once: Once) -> Path:
    """A folder of a hundred shards; shared."""

    def make(folder: Path) -> None:
        for number in range(100):
            small_shard(folder / f"shard-{number:05d}.h5", seed=number)

    return once("hundred", make)


def test_few_files_are_open(hundred: Path) -> None:
    script = """
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
from worldmodels.data.episodes import EpisodeSet
episodes = EpisodeSet.open([folder])
others = EpisodeSet.open([folder])
seeds = [episodes.episode(number).seed for number in (*range(100), 0, 99, 50)]
print(seeds == [*range(100), 0, 99, 50], others.returns().shape)
"""
    done = alone(script, hundred)
    assert done.stdout == "True (100,)\n", done.stderr


def test_a_shard_that_may_not_be_read_is_not_left_out(tmp_path: Path) -> None:
    small_shard(tmp_path / "shard-00000.h5")
    (tmp_path / "shard-00000.h5").chmod(0)
    script = """
from worldmodels.data.episodes import EpisodeSet
from worldmodels.errors import ArtifactError, DataError
from worldmodels.runs.integrity import Listed
if os.getuid() == 0:
    os.setuid(65534)
try:
    EpisodeSet.listed([Listed(folder / "shard-00000.h5")], "skip")
except ArtifactError as error:
    print(isinstance(error, DataError), error)
"""
    done = alone(script, tmp_path)
    assert done.stdout.startswith(f"False {tmp_path}/shard-00000.h5: Permission denied; "), (
        done.stderr
    )


WRITE = """
import numpy as np
from worldmodels.data.latents import EncodedEpisode, write_latents
from worldmodels.data.shards import Episode, write_shard
from worldmodels.errors import ArtifactError
steps, rng = 500, np.random.default_rng(0)
ends, actions = np.arange(steps) == steps - 1, np.zeros((steps, 3), np.float32)
frames = rng.integers(0, 256, (steps + 1, 32, 32, 3), np.uint8)
mean = np.zeros((steps + 1, 32), np.float32)
game = Episode(frames, actions, actions[:, 0], ends, ends & False, 0)
seen = EncodedEpisode(mean, mean, actions, actions[:, 0], ends, 0)
limit()
for name in ("shard", "latents"):
    try:
        if name == "shard":
            write_shard(folder / "shard.h5", [game, game], {})
        else:
            write_latents(folder / "latents.h5", (seen for _ in range(50)), {})
    except ArtifactError as error:
        print(error)
"""


def lines_without_room(done: subprocess.CompletedProcess[str], folder: Path) -> None:
    """One line for each file that did not fit, nothing else, and nothing of it left."""
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert [f"{folder}/shard.h5" in lines[0], f"{folder}/latents.h5" in lines[1]] == [True, True]
    assert len(lines) == 2
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("size", [0, 4096, 1_000_000])
def test_a_limit_on_file_sizes_is_one_line_and_leaves_nothing(tmp_path: Path, size: int) -> None:
    limit = f"""
def limit():
    resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))
"""
    lines_without_room(alone(limit + WRITE, tmp_path), tmp_path)


@pytest.mark.system
@pytest.mark.parametrize("size", ["64k", "1m"])
def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path, size: str) -> None:
    mounted = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(tmp_path)]
    if os.getuid() != 0 or subprocess.run(mounted, capture_output=True).returncode != 0:
        pytest.skip("mounting a small file system needs root and CAP_SYS_ADMIN")
    try:
        lines_without_room(alone("limit = lambda: None\n" + WRITE, tmp_path), tmp_path)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
