"""Data sets of LeRobot: episodes to them and back, and one line for what does not fit."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np
import pytest
from foreign import STEPS, archives, arrays, imported, stage

from worldmodels.errors import DataError, WorldModelsError
from worldmodels.files.images import png

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")

FPS = 10


def exported(tmp_path: Path) -> tuple[list[Any], Path]:
    """Imported archives, and the data set of LeRobot that is made of them."""
    data = tmp_path / "data"
    before = imported(data, archives(tmp_path / "source"), "numpy")
    stage(data, "stage=export", "format=lerobot", "run=other")
    shutil.move(data / "other", data / "original")
    return before, data / "original" / "export" / "lerobot" / "worldmodels" / "other"


def test_episodes_go_to_lerobot_and_back_unchanged(tmp_path: Path) -> None:
    before, folder = exported(tmp_path)
    back = imported(tmp_path / "data", folder, "lerobot")
    for one, other in zip(before, back, strict=True):
        for name, value in vars(one).items():
            assert np.array_equal(value, getattr(other, name)), name


def test_an_exported_data_set_has_what_lerobot_reads(tmp_path: Path) -> None:
    before, folder = exported(tmp_path)
    info = json.loads((folder / "meta" / "info.json").read_text())
    assert (info["codebase_version"], info["total_episodes"]) == ("v3.0", 3)
    data = pq.read_table(folder / info["data_path"].format(chunk_index=0, file_index=0))
    assert info["total_frames"] == len(data) == 3 * (STEPS + 1)
    assert set(info["features"]) == set(data.column_names)
    assert data["index"].to_pylist() == list(range(len(data)))
    assert data["frame_index"].to_pylist() == list(range(STEPS + 1)) * 3
    assert data["timestamp"][5].as_py() == pytest.approx(5 / info["fps"])
    assert data["next.done"].to_pylist()[: STEPS + 1] == [False] * (STEPS - 1) + [True, True]
    episodes = pq.read_table(folder / "meta/episodes/chunk-000/file-000.parquet").to_pylist()
    assert [row["dataset_from_index"] for row in episodes] == [0, STEPS + 1, 2 * (STEPS + 1)]
    assert [row["length"] for row in episodes] == [STEPS + 1] * 3
    found = json.loads((folder / "meta" / "stats.json").read_text())
    actions = np.concatenate([episode.actions for episode in before]).astype(np.float64)
    assert found["action"]["mean"] == pytest.approx(actions.mean(axis=0))
    assert found["action"]["std"] == pytest.approx(actions.std(axis=0))
    assert found["action"]["count"] == [3 * STEPS]
    frames = np.concatenate([episode.frames for episode in before]) / 255
    deviation = np.array(found["observation.image"]["std"])
    assert deviation.shape == (3, 1, 1)
    assert deviation.ravel() == pytest.approx(frames.std(axis=(0, 1, 2)))


def test_without_rewards_a_data_set_has_none(tmp_path: Path) -> None:
    source = archives(tmp_path / "source", 1)
    found = arrays(0)
    del found["rewards"]
    np.savez(source / "episode-0.npz", **found)
    data = tmp_path / "data"
    imported(data, source, "numpy")
    stage(data, "stage=export", "format=lerobot", "run=other")
    folder = data / "other" / "export" / "lerobot" / "worldmodels" / "other"
    assert "next.reward" not in json.loads((folder / "meta" / "info.json").read_text())["features"]
    shutil.move(data / "other", data / "original")
    folder = data / "original" / "export" / "lerobot" / "worldmodels" / "other"
    imported(data, folder, "lerobot")
    manifest = json.loads((data / "other" / "rollouts" / "manifest.json").read_text())
    assert manifest["summary"]["rewarded"] is False


def video(path: Path, pictures: np.ndarray) -> None:
    """A video whose pictures are as they were."""
    path.parent.mkdir(parents=True, exist_ok=True)
    height, width = pictures.shape[1:3]
    writer = imageio_ffmpeg.write_frames(
        str(path),
        (width, height),
        fps=FPS,
        codec="libx264rgb",
        pix_fmt_out="rgb24",
        macro_block_size=1,
        output_params=["-qp", "0"],
        quality=None,
    )
    writer.send(None)
    for picture in pictures:
        writer.send(np.ascontiguousarray(picture))
    writer.close()


def described(folder: Path, version: str, cameras: dict[str, str]) -> None:
    features: dict[str, Any] = {
        name: {"dtype": kind, "shape": [16, 16, 3]} for name, kind in cameras.items()
    }
    features["action"] = {"dtype": "float32", "shape": [2]}
    info = {"codebase_version": version, "fps": FPS, "features": features}
    (folder / "meta").mkdir(parents=True)
    (folder / "meta" / "info.json").write_text(json.dumps(info))


def rows(number: int, found: dict[str, Any]) -> dict[str, Any]:
    """The columns of an episode; the action of its last picture is of no step."""
    last = np.zeros((1, 2), np.float32)
    actions = list(np.concatenate([found["actions"], last]))
    return {"episode_index": [number] * len(actions), "action": actions}


def test_episodes_in_one_video_are_cut_at_their_times(tmp_path: Path) -> None:
    folder, camera = tmp_path / "set", "observation.images.front"
    described(folder, "v3.0", {camera: "video", "observation.images.back": "video"})
    found = [arrays(number, steps) for number, steps in enumerate((12, 7, 9))]
    pictures = [one["observations"] for one in found]
    video(folder / "videos" / camera / "chunk-000" / "file-000.mp4", np.concatenate(pictures))
    starts = np.cumsum([0] + [len(part) for part in pictures[:-1]])
    table = [rows(number, one) for number, one in enumerate(found)]
    columns = {key: [cell for part in table for cell in part[key]] for key in table[0]}
    (folder / "data" / "chunk-000").mkdir(parents=True)
    pq.write_table(pa.table(columns), folder / "data" / "chunk-000" / "file-000.parquet")
    listed = {
        "episode_index": [0, 1, 2],
        "length": [len(part) for part in pictures],
        "data/chunk_index": [0] * 3,
        "data/file_index": [0] * 3,
        f"videos/{camera}/chunk_index": [0] * 3,
        f"videos/{camera}/file_index": [0] * 3,
        f"videos/{camera}/from_timestamp": starts / FPS,
    }
    (folder / "meta" / "episodes" / "chunk-000").mkdir(parents=True)
    pq.write_table(pa.table(listed), folder / "meta/episodes/chunk-000/file-000.parquet")
    with pytest.raises(DataError, match=r"has the cameras .*choose one with camera=observation"):
        imported(tmp_path / "data", folder, "lerobot")
    with pytest.raises(DataError, match=r"camera=top: the data set has no such pictures"):
        imported(tmp_path / "data", folder, "lerobot", "camera=top")
    episodes = imported(tmp_path / "data", folder, "lerobot", f"camera={camera}")
    for episode, one in zip(episodes, found, strict=True):
        assert np.array_equal(episode.frames, one["observations"])
        assert np.array_equal(episode.actions, one["actions"])
        assert episode.truncated[-1]


def older(folder: Path) -> list[dict[str, Any]]:
    """A data set of format 2.1: a file of data and one of video for each episode."""
    described(folder, "v2.1", {"observation.image": "video"})
    found, lines = [arrays(number) for number in range(2)], []
    for number, one in enumerate(found):
        name = f"chunk-000/{{}}episode_{number:06d}"
        video(folder / f"videos/{name.format('observation.image/')}.mp4", one["observations"])
        data = folder / f"data/{name.format('')}.parquet"
        data.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(rows(number, one)), data)
        lines.append(json.dumps({"episode_index": number, "tasks": [], "length": STEPS + 1}))
    (folder / "meta" / "episodes.jsonl").write_text("\n".join(lines))
    return found


def test_a_data_set_of_an_older_format_is_read(tmp_path: Path) -> None:
    found = older(tmp_path / "set")
    episodes = imported(tmp_path / "data", tmp_path / "set", "lerobot")
    for episode, one in zip(episodes, found, strict=True):
        assert np.array_equal(episode.frames, one["observations"])
        assert np.array_equal(episode.actions, one["actions"])


def test_a_video_of_lerobot_that_ends_early_is_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    found = older(folder)
    path = folder / "videos/chunk-000/observation.image/episode_000001.mp4"
    video(path, found[1]["observations"][:5])
    with pytest.raises(DataError, match="episode 1: ends after 5 pictures, 12 actions need 13"):
        imported(tmp_path / "data", folder, "lerobot")


Edit = Callable[[Path], object]
DATA = "data/chunk-000/file-000.parquet"


def _info(**changed: Any) -> Edit:
    def edit(folder: Path) -> None:
        path = folder / "meta" / "info.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changed))

    return edit


def _column(name: str, made: Callable[[Any], Any], path: str = DATA) -> Edit:
    def edit(folder: Path) -> None:
        table = pq.read_table(folder / path)
        index = table.column_names.index(name)
        pq.write_table(table.set_column(index, name, made(table[name])), folder / path)

    return edit


def _png(side: int) -> dict[str, Any]:
    return {"bytes": png(np.zeros((side, side, 3), np.uint8)), "path": None}


IMAGE = "observation.image"
EPISODES = "meta/episodes/chunk-000/file-000.parquet"
MISFITS: dict[str, tuple[Edit, str]] = {
    "another version": (_info(codebase_version="v9.0"), "codebase_version is 'v9.0', not v2.0"),
    "no features": (_info(features=[]), "describes no features"),
    "no rate": (_info(fps=0), "fps is 0, not a rate"),
    "no actions": (
        _info(features={IMAGE: {"dtype": "image"}}),
        "has no feature action; give a data set of actions",
    ),
    "no pictures": (
        _info(features={"action": {}, "observation.state": {"dtype": "float32"}}),
        "has no pictures, only action, observation.state; give a data set with a camera",
    ),
    "a path that leads elsewhere": (
        _info(data_path="../../secret-{file_index}.parquet"),
        r"data_path is '\.\./\.\./secret",
    ),
    "a name that leads elsewhere": (
        _info(features={"../image": {"dtype": "video"}, "action": {}}),
        r"\.\./image is not a name of a feature",
    ),
    "no file of data": (lambda folder: (folder / DATA).unlink(), "is missing"),
    "damage": (lambda folder: (folder / DATA).write_bytes(b"PAR1" * 9), "cannot be read"),
    "a file number that is none": (
        _column("data/file_index", lambda c: pa.array([-1] * len(c)), EPISODES),
        "-1 is not a number of a file",
    ),
    "rows that are not listed": (
        _column("length", lambda c: pa.array([99] * len(c)), EPISODES),
        "episode 0: has 13 rows, 99 are listed in meta",
    ),
    "actions of several lengths": (
        _column("action", lambda c: pa.array([[0.0] * (1 + n % 2) for n in range(len(c))])),
        "cannot be read",
    ),
    "texts as actions": (
        _column("action", lambda c: pa.array(["left"] * len(c))),
        "action has no numbers",
    ),
    "pictures elsewhere": (
        _column(IMAGE, lambda c: pa.array([{"bytes": None, "path": "a.png"}] * len(c), c.type)),
        "its pictures are not in the data set",
    ),
    "pictures that are none": (
        _column(IMAGE, lambda c: pa.array([{"bytes": b"GIF89a", "path": None}] * len(c), c.type)),
        "cannot be read",
    ),
    "pictures of several sizes": (
        _column(IMAGE, lambda c: pa.array([_png(16 + n % 2) for n in range(len(c))], c.type)),
        "cannot be read",
    ),
}


@pytest.mark.parametrize("name", MISFITS)
def test_a_data_set_of_lerobot_that_does_not_fit_is_one_line(
    name: str, whole: Path, tmp_path: Path
) -> None:
    edit, problem = MISFITS[name]
    folder = tmp_path / "set"
    shutil.copytree(whole, folder)
    edit(folder)
    with pytest.raises(WorldModelsError, match=problem) as caught:
        imported(tmp_path / "data", folder, "lerobot")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "data" / "other" / "rollouts").exists()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set that can be imported."""
    return exported(tmp_path_factory.mktemp("lerobot"))[1]


def test_sizes_that_a_file_declares_are_limited(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worldmodels.data.lerobot_sets.LARGEST_EPISODE", 1000)
    with pytest.raises(DataError, match=r"observation.image have .* bytes, at most 1,000"):
        imported(tmp_path / "data", whole, "lerobot")
    monkeypatch.setattr("worldmodels.data.lerobot_sets.MOST_NUMBERS", 100)
    with pytest.raises(DataError, match=r"bytes, at most 100"):
        imported(tmp_path / "data", whole, "lerobot")


def test_equal_values_that_are_stored_once_count_as_often_as_they_are_read(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "set"
    shutil.copytree(whole, folder)
    rows = 100_000
    table = pq.read_table(folder / DATA).slice(0, 1)
    pq.write_table(pa.concat_tables([table] * rows), folder / DATA, compression="none")
    size = (folder / DATA).stat().st_size
    assert size < 8 * rows
    monkeypatch.setattr("worldmodels.data.lerobot_sets.MOST_NUMBERS", 8 * rows)
    with pytest.raises(DataError, match=r"bytes, at most 800,000"):
        imported(tmp_path / "data", folder, "lerobot")


def test_the_number_of_episodes_is_limited(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worldmodels.data.lerobot_sets.MOST_EPISODES", 2)
    with pytest.raises(DataError, match="more than 2 episodes"):
        imported(tmp_path / "data", whole, "lerobot")


def test_a_folder_without_a_data_set_of_lerobot_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        DataError, match=r"is not a data set of LeRobot \(meta/info.json is missing"
    ):
        imported(tmp_path / "data", tmp_path / "empty", "lerobot")
