"""Archives and videos as episodes: imported, continued, and one line for what does not fit."""

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np
import pytest
from command import error_line, run
from foreign import STEPS, archives, arrays, imported, shards, stage

from worldmodels.errors import ConfigError, DataError, WorldModelsError

SIZE = ("env.size=128", "env.crop_rows=null")


def test_archives_become_episodes(tmp_path: Path) -> None:
    episodes = imported(tmp_path / "data", archives(tmp_path / "source"), "numpy")
    assert len(episodes) == 3
    for number, episode in enumerate(episodes):
        wanted = arrays(number)
        assert np.array_equal(episode.frames, wanted["observations"])
        assert np.array_equal(episode.actions, wanted["actions"])
        assert np.array_equal(episode.rewards, wanted["rewards"])
        assert np.array_equal(episode.terminated, wanted["terminations"])
        assert not episode.truncated.any()
    assert len({episode.seed for episode in episodes}) == 3


def test_pictures_are_cropped_and_reduced_as_those_of_an_environment(tmp_path: Path) -> None:
    source = archives(tmp_path / "source", 1, side=32)
    (episode,) = imported(tmp_path / "data", source, "numpy", "env.crop_rows=16")
    whole = arrays(0, side=32)["observations"]
    assert np.array_equal(episode.frames[:, 4, 4], whole[:, 8, 8])
    assert np.array_equal(episode.frames[:, 12, 12], whole[:, 8, 24]), "of the upper half alone"


@pytest.mark.system
def test_an_import_that_is_killed_continues_to_the_same_shards(tmp_path: Path) -> None:
    source = archives(tmp_path / "source", 3, steps=400, side=128)
    words = ("stage=import", "format=numpy", f"source={source}", "run=other", *SIZE)
    done = run(tmp_path / "whole", *words)
    assert done.returncode == 0, done.stderr
    data = tmp_path / "killed"
    assert run(data, *words, kill_at_write=3).returncode == -9
    first = data / "other" / "rollouts" / "shard-00000.h5"
    written = first.stat().st_mtime_ns
    done = run(data, *words)
    assert "1 of 3 episodes are there: continuing" in done.stdout
    assert first.stat().st_mtime_ns == written
    assert len(shards(data)) == 3
    assert shards(data) == shards(tmp_path / "whole")
    assert "done before" in run(data, *words).stdout


def test_a_source_that_has_changed_is_taken_over_from_the_first_change_on(tmp_path: Path) -> None:
    source = archives(tmp_path / "source")
    imported(tmp_path / "data", source, "numpy")
    np.savez(source / "episode-1.npz", **arrays(7))
    np.savez(source / "episode-4.npz", **arrays(8))
    found = imported(tmp_path / "data", source, "numpy")
    seeds = (0, 7, 2, 8)
    for episode, seed in zip(found, seeds, strict=True):
        assert np.array_equal(episode.frames, arrays(seed)["observations"])


def test_after_an_episode_that_does_not_fit_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worldmodels.stages.importing.SHARD_BYTES", 1)
    source = archives(tmp_path / "source")
    np.savez(source / "episode-2.npz", **arrays(2) | {"actions": np.zeros((STEPS, 3))})
    with pytest.raises(DataError, match="its actions have 3 numbers, those before it 2"):
        imported(tmp_path / "data", source, "numpy")
    before = shards(tmp_path / "data")
    assert len(before) == 2
    (source / "episode-2.npz").unlink()
    assert len(imported(tmp_path / "data", source, "numpy")) == 2
    assert shards(tmp_path / "data") == before


Edit = Callable[[dict[str, Any]], None]


def _object(found: dict[str, Any]) -> None:
    found["rewards"] = np.array([None] * STEPS, object)


MISFITS: dict[str, tuple[Edit, str]] = {
    "no pictures": (
        lambda a: a.update(observations=np.zeros((STEPS + 1, 8), np.float32)),
        r"observations are float32 \(13, 8\), not uint8 pictures",
    ),
    "grey pictures": (
        lambda a: a.update(observations=a["observations"][..., :1]),
        r"observations are uint8 \(13, 16, 16, 1\), not uint8 pictures",
    ),
    "a picture too few": (
        lambda a: a.update(observations=a["observations"][:-1]),
        "ends after 12 pictures, 12 actions need 13",
    ),
    "a picture too many": (
        lambda a: a.update(actions=a["actions"][:-1]),
        "has more than 12 pictures, which go with 11 actions",
    ),
    "small pictures": (
        lambda a: a.update(observations=a["observations"][:, :8, :8]),
        "pictures of 8x8 are smaller than env.size=16",
    ),
    "no actions": (lambda a: a.pop("actions"), "has no actions; its arrays have to be"),
    "rewards of another length": (
        lambda a: a.update(rewards=a["rewards"][1:]),
        r"rewards are \(11,\) for 12 actions",
    ),
    "an early end": (
        lambda a: a["terminations"].__setitem__(3, True),
        "ends before its last action; make an episode of each part",
    ),
    "not finite": (
        lambda a: a["actions"].__setitem__(3, np.nan),
        "actions are not all finite",
    ),
    "texts": (lambda a: a.update(actions=np.array(["left"] * STEPS)), "actions are <U4"),
    "actions of two dimensions": (
        lambda a: a.update(actions=np.zeros((STEPS, 2, 2), np.float32)),
        r"actions are \(12, 2, 2\), not \(T, A\) with at least one step",
    ),
    "one number as actions": (
        lambda a: a.update(actions=np.float32(1)),
        r"actions are \(\), not \(T, A\) with at least one step",
    ),
    "records as ends": (
        lambda a: a.update(terminations=np.zeros(STEPS, [("a", "f4"), ("b", "f4")])),
        "terminations are .*'b'.*, not numbers",
    ),
    "texts as ends": (
        lambda a: a.update(terminations=np.array([""] * (STEPS - 1) + ["no"])),
        "terminations are <U2, not numbers",
    ),
    "pickled objects": (_object, "it has Python objects, which are not read"),
}


@pytest.mark.parametrize("name", MISFITS)
def test_an_archive_that_does_not_fit_is_one_line(name: str, tmp_path: Path) -> None:
    edit, problem = MISFITS[name]
    (tmp_path / "source").mkdir()
    found = arrays(0)
    edit(found)
    path = tmp_path / "source" / "a.npz"
    np.savez(path, **found)
    with pytest.raises(DataError, match=problem) as caught:
        imported(tmp_path / "data", path.parent, "numpy")
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "data" / "other" / "rollouts").exists()


def test_a_picture_is_read_only_if_it_is_there_and_no_larger_than_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "source").mkdir()
    path = tmp_path / "source" / "a.npz"
    np.savez(path, **arrays(0))
    with monkeypatch.context() as patched:
        patched.setattr("worldmodels.data.numpy_files.LARGEST_PICTURE", 255)
        with pytest.raises(DataError, match="a picture of 16x16 pixels"):
            imported(tmp_path / "data", path.parent, "numpy")
    header = {"descr": "|u1", "fortran_order": False, "shape": (STEPS + 1, 4000, 4000, 3)}
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name in content.keys() - {"observations.npy"}:
            archive.writestr(name, content[name])
        with archive.open("observations.npy", "w") as file:
            np.lib.format.write_array_header_1_0(file, header)
    with pytest.raises(DataError, match="it declares 624,000,000 bytes and has 0"):
        imported(tmp_path / "data", path.parent, "numpy")


def _unclosed() -> bytes:
    """A file of NumPy in whose header a bracket is not closed."""
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2".ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(24)


@pytest.mark.parametrize("name", ["actions", "observations"])
def test_a_header_that_is_cut_off_is_one_line(name: str, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    path = tmp_path / "source" / "a.npz"
    np.savez(path, **{key: array for key, array in arrays(0).items() if key != name})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(f"{name}.npy", _unclosed())
    with pytest.raises(DataError, match=r"a\.npz: cannot be read \(its header is cut off\)"):
        imported(tmp_path / "data", path.parent, "numpy")


@pytest.mark.parametrize(
    ("key", "changed", "problem"),
    [
        ("actions", np.zeros((STEPS, 3), np.float32), "its actions have 3 numbers, those before"),
        ("rewards", None, "has no rewards, those before it have; give all episodes rewards, or"),
    ],
)
def test_episodes_that_differ_in_kind_are_one_line(
    key: str, changed: np.ndarray | None, problem: str, tmp_path: Path
) -> None:
    source = archives(tmp_path / "source", 1)
    other = arrays(1) | {key: changed}
    np.savez(source / "other.npz", **{k: array for k, array in other.items() if array is not None})
    with pytest.raises(DataError, match=rf"other\.npz: {problem}"):
        imported(tmp_path / "data", source, "numpy")


def test_columns_of_one_number_are_taken(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    found = arrays(0)
    flat = found | {"actions": found["actions"][:, 0], "rewards": found["rewards"][:, None]}
    np.savez(tmp_path / "source" / "a.npz", **flat)
    (episode,) = imported(tmp_path / "data", tmp_path / "source", "numpy")
    assert np.array_equal(episode.actions, found["actions"][:, :1])
    assert np.array_equal(episode.rewards, found["rewards"])


def test_pictures_with_fewer_rows_than_are_cropped_are_one_line(tmp_path: Path) -> None:
    source = archives(tmp_path / "source", 1, side=32)
    with pytest.raises(DataError, match=r"pictures of 32 rows, env\.crop_rows=40; choose fewer"):
        imported(tmp_path / "data", source, "numpy", "env.crop_rows=40")


def test_an_archive_that_is_cut_off_or_no_archive_is_one_line(tmp_path: Path) -> None:
    source = archives(tmp_path / "source", 1)
    path = source / "episode-0.npz"
    content = path.read_bytes()
    for damaged in (content[:-200], content[:3000], b"no archive", b""):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"episode-0\.npz: cannot be read \(.*numpy\.savez"):
            imported(tmp_path / "data", source, "numpy")
    path.unlink()
    path.symlink_to("/etc/passwd")
    with pytest.raises(WorldModelsError, match="is a link"):
        imported(tmp_path / "data", source, "numpy")


# Videos


def video(path: Path, pictures: np.ndarray, *options: str) -> None:
    """A video without loss."""
    height, width = pictures.shape[1:3]
    writer = imageio_ffmpeg.write_frames(
        str(path),
        (width, height),
        codec="libx264rgb",
        quality=None,
        macro_block_size=1,
        pix_fmt_out="rgb24",
        output_params=["-crf", "0", *options],
    )
    writer.send(None)
    for picture in pictures:
        writer.send(np.ascontiguousarray(picture))
    writer.close()


def drives(folder: Path) -> Path:
    """A video with a table of actions, rewards and ends, and one with an array of actions."""
    folder.mkdir()
    first, second = arrays(0), arrays(1)
    video(folder / "a.mp4", first["observations"])
    columns = [*first["actions"].T, first["rewards"], first["terminations"]]
    table = np.stack(columns, axis=1)
    header = "steering,gas,reward,terminated"
    np.savetxt(folder / "a.csv", table, "%.9g", ",", header=header, comments="")
    video(folder / "b.mkv", second["observations"])
    np.savetxt(
        folder / "b.csv",
        np.column_stack([second["actions"], second["rewards"]]),
        "%.9g",
        ",",
        header="steering,gas,reward",
        comments="",
    )
    return folder


def test_videos_with_tables_become_episodes(tmp_path: Path) -> None:
    first, second = imported(tmp_path / "data", drives(tmp_path / "source"), "videos")
    for number, episode in enumerate((first, second)):
        wanted = arrays(number)
        assert np.array_equal(episode.frames, wanted["observations"])
        assert np.array_equal(episode.actions, wanted["actions"])
        assert np.array_equal(episode.rewards, wanted["rewards"])
    assert first.terminated.tolist() == [False] * (STEPS - 1) + [True]
    assert not second.terminated.any()
    assert second.truncated.tolist() == [False] * (STEPS - 1) + [True]


def _short(folder: Path) -> None:
    video(folder / "b.mkv", arrays(1)["observations"][:5])


def _cut(folder: Path) -> None:
    content = (folder / "a.mp4").read_bytes()
    (folder / "a.mp4").write_bytes(content[: len(content) // 2])


def _header_cut(folder: Path) -> None:
    (folder / "b.csv").unlink()
    (folder / "b.npy").write_bytes(_unclosed())


def _playlist(folder: Path) -> None:
    (folder / "a.mp4").write_text("#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n")


VIDEOS: dict[str, tuple[Callable[[Path], object], str]] = {
    "ends early": (_short, r"b\.mkv: ends after 5 pictures, 12 actions need 13"),
    "cut off": (_cut, r"a\.mp4: cannot be decoded, ffmpeg reports: "),
    "playlist": (_playlist, r"a\.mp4: cannot be decoded, ffmpeg reports: "),
    "array cut off": (_header_cut, r"b\.npy: cannot be read \(its header is cut off\)"),
    "no table": (lambda f: (f / "a.csv").unlink(), r"a\.mp4: has 0 tables of actions beside it"),
    "table of texts": (
        lambda f: (f / "a.csv").write_text("steering\nleft\n"),
        r"a\.csv: is not a table of numbers \(could not convert",
    ),
    "rows of other lengths": (
        lambda f: (f / "a.csv").write_text("steering\n1\n1,2\n"),
        r"a\.csv: is not a table of numbers",
    ),
    "no actions": (
        lambda f: (f / "a.csv").write_text("reward\n1\n"),
        r"a\.csv: has no column of actions",
    ),
}


@pytest.mark.parametrize("name", VIDEOS)
def test_a_video_that_does_not_fit_is_one_line(name: str, tmp_path: Path) -> None:
    edit, problem = VIDEOS[name]
    source = drives(tmp_path / "source")
    edit(source)
    with pytest.raises(DataError, match=problem) as caught:
        imported(tmp_path / "data", source, "videos")
    assert "\n" not in str(caught.value)


def test_a_video_of_larger_pictures_than_allowed_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worldmodels.data.videos.LARGEST_PICTURE", 255)
    with pytest.raises(DataError, match=r"a\.mp4: has pictures of 16x16, at most 255 pixels"):
        imported(tmp_path / "data", drives(tmp_path / "source"), "videos")


@pytest.mark.system
def test_models_train_on_imported_videos_without_rewards(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for number in range(4):
        found = arrays(number, side=64)
        video(source / f"{number}.mp4", found["observations"])
        np.save(source / f"{number}.npy", found["actions"])
    words = ("preset=smoke", "env.crop_rows=null", "vae.batch_size=8")
    done = run(tmp_path, "stage=import", "format=videos", f"source={source}", *words)
    assert "4 episodes, 52 frames, without rewards" in done.stdout, done.stderr
    assert run(tmp_path, "stage=vae", *words).returncode == 0
    line = error_line(run(tmp_path, "stage=rnn", *words))
    assert line.startswith("error: rnn.reward_weight=0.1: the episodes of ")
    assert line.endswith("have no rewards; give rnn.reward_weight=0")
    done = run(tmp_path, "stage=rnn", *words, "rnn.reward_weight=0")
    assert done.returncode == 0, done.stderr


# The command


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("format=onnx",), "format=onnx: stage=import reads numpy, videos, minari"),
        (("format=numpy",), "source: stage=import needs it"),
        (("format=numpy", "source=nowhere"), "source=nowhere: there is no such folder"),
        (("stage=export", "format=videos"), "format=videos: stage=export writes onnx, web"),
        (("format=numpy", "source=docs"), r"source=docs: has no file \*\.npz"),
        (("format=videos", "source=docs"), r"source=docs: has no video \(\.avi"),
    ],
)
def test_what_a_command_lacks_is_one_line(
    words: tuple[str, ...], problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).resolve().parent.parent)
    with pytest.raises((ConfigError, DataError), match=problem):
        stage(tmp_path, *(("stage=import", *words)[words[0].startswith("stage") :]))
