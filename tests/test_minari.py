"""Data sets of Minari: episodes to it and back, and one line for what does not fit."""

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from foreign import STEPS, archives, arrays, imported, stage
from gymnasium.spaces import Box, Discrete
from PIL import Image

from worldmodels.errors import DataError

PICTURES = Box(0, 255, (32, 32, 3), np.uint8)
ACTIONS = Box(-9, 9, (2,), np.float32)


@pytest.fixture
def minari(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The library, with its data sets in a folder of the test."""
    library = pytest.importorskip("minari", reason="minari is not installed")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "sets"))
    return library


def test_episodes_go_to_minari_and_back_unchanged(
    minari: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    before = imported(data, archives(tmp_path / "source", side=32), "numpy", "env.size=32")
    stage(data, "stage=export", "format=minari", "run=other")
    root = data / "other" / "export" / "minari"
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(root))
    found = minari.load_dataset("worldmodels/other-v0")
    assert found.total_episodes == 3
    for episode, ours in zip(found, before, strict=True):
        assert np.array_equal(episode.observations, ours.frames)
        assert np.array_equal(episode.actions, ours.actions)
    shutil.move(data / "other", data / "original")
    again = data / "original" / "export" / "minari" / "worldmodels" / "other-v0"
    back = imported(data, again, "minari", "env.size=32")
    for one, other in zip(before, back, strict=True):
        for name, value in vars(one).items():
            assert np.array_equal(value, getattr(other, name)), name
        assert one.actions.dtype == other.actions.dtype


def _saved(minari: Any, observation: Any, action: Any, content: dict[str, Any]) -> Path:
    """A data set of one episode, as Minari writes it."""
    from minari.data_collector.episode_buffer import EpisodeBuffer

    buffer = EpisodeBuffer(**content)
    found = minari.create_dataset_from_buffers(
        "test/set-v0", [buffer], observation_space=observation, action_space=action
    )
    return Path(found.storage.data_path).parent


def _content(seed: int, **other: Any) -> dict[str, Any]:
    found = arrays(seed, side=32) | {"truncations": np.zeros(STEPS, bool)}
    return found | other


@pytest.mark.parametrize(("seed", "warned"), [(7, True), (2**28, False)])
def test_seeds_in_the_range_of_evaluations_are_a_warning(
    minari: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: int, warned: bool
) -> None:
    folder = _saved(minari, PICTURES, ACTIONS, _content(0) | {"seed": seed})
    (episode,) = imported(tmp_path / "data", folder, "minari")
    assert episode.seed == seed
    assert (f"choose an evaluate.first_seed above {seed}" in capsys.readouterr().out) == warned


def test_discrete_actions_of_minari_become_vectors(minari: Any, tmp_path: Path) -> None:
    chosen = np.arange(STEPS) % 3 + 1
    folder = _saved(minari, PICTURES, Discrete(3, start=1), _content(0, actions=chosen))
    (episode,) = imported(tmp_path / "data", folder, "minari")
    assert np.array_equal(episode.actions, np.eye(3, dtype=np.float32)[chosen - 1])


def test_observations_of_minari_that_are_no_pictures_are_one_line(
    minari: Any, tmp_path: Path
) -> None:
    numbers = np.zeros((STEPS + 1, 8), np.float32)
    space = Box(-1, 1, (8,), np.float32)
    folder = _saved(minari, space, ACTIONS, _content(0, observations=numbers))
    with pytest.raises(DataError, match=r"observations are Box\(.*not uint8 pictures \(H, W, 3\)"):
        imported(tmp_path / "data", folder, "minari")


def test_a_data_set_that_refers_to_other_files_or_runs_code_is_one_line(
    minari: Any, tmp_path: Path
) -> None:
    folder = _saved(minari, PICTURES, ACTIONS, _content(0))
    content = (folder / "data" / "main_data.hdf5").read_bytes()
    with h5py.File(folder / "data" / "main_data.hdf5", "a") as file:
        del file["episode_0/rewards"]
        file["episode_0/rewards"] = h5py.ExternalLink("/etc/hostname", "rewards")
    with pytest.raises(DataError, match="episode_0/rewards is a link"):
        imported(tmp_path / "data", folder, "minari")
    (folder / "data" / "main_data.hdf5").write_bytes(content)
    metadata = folder / "data" / "metadata.json"
    record = json.loads(metadata.read_text())
    del record["observation_space"]
    metadata.write_text(json.dumps(record))
    with pytest.raises(DataError, match=r"metadata\.json: does not describe observation_space"):
        imported(tmp_path / "data", folder, "minari")


def test_a_folder_without_a_data_set_is_one_line(minari: Any, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"is not a data set of Minari \(data/metadata.json is"):
        imported(tmp_path / "data", tmp_path / "empty", "minari")


def test_actions_of_minari_of_another_kind_are_one_line(minari: Any, tmp_path: Path) -> None:
    space = Box(-9, 9, (2, 2), np.float32)
    content = _content(0, actions=np.zeros((STEPS, 2, 2), np.float32))
    folder = _saved(minari, PICTURES, space, content)
    with pytest.raises(DataError, match="supported are a vector of numbers"):
        imported(tmp_path / "data", folder, "minari")


def _overwritten(name: str, value: np.ndarray) -> Callable[[h5py.File], None]:
    def edit(file: h5py.File) -> None:
        del file[f"episode_0/{name}"]
        file[f"episode_0/{name}"] = value

    return edit


def _virtual(file: h5py.File) -> None:
    layout = h5py.VirtualLayout((STEPS,), np.float64)
    layout[:] = h5py.VirtualSource("/etc/hostname", "rewards", (STEPS,))
    del file["episode_0/rewards"]
    file.create_virtual_dataset("episode_0/rewards", layout)


def _enormous(file: h5py.File) -> None:
    del file["episode_0/rewards"]
    file.create_dataset("episode_0/rewards", (2**40,), np.float64, chunks=(1024,))


def _enormous_together(file: h5py.File) -> None:
    for number in range(3):  # declared, and not stored
        file.create_dataset(f"episode_0/infos/{number}", (2**26,), np.float64, chunks=(1024,))


def _two_names_a_level(file: h5py.File) -> None:
    group = file.create_group("episode_0/infos")
    for _ in range(30):
        below = group.create_group("a")
        group["b"] = below
        group = below


def _without_actions(file: h5py.File) -> None:
    del file["episode_0/actions"]


DAMAGE: dict[str, tuple[Callable[[h5py.File], None], str]] = {
    "no pictures": (
        _overwritten("observations", np.zeros((STEPS + 1, 32, 32), np.uint8)),
        "episode 0 cannot be read",
    ),
    "an unknown choice": (
        _overwritten("actions", np.full(STEPS, 3)),
        r"episode 0: an action is not one of Discrete\(3\)",
    ),
    "stored elsewhere": (_virtual, "the data of /episode_0/rewards are stored elsewhere"),
    "too large": (_enormous, "episode_0 has 8,796,093,0[0-9,]* bytes, at most"),
    "too large together": (_enormous_together, "episode_0 has 1,[0-9,]* bytes, at most 1,073,7"),
    "groups of two names": (_two_names_a_level, "/episode_0/infos/a.*/b has another name too"),
    "no actions": (_without_actions, "episode 0 cannot be read"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_data_set_is_one_line(name: str, minari: Any, tmp_path: Path) -> None:
    edit, problem = DAMAGE[name]
    content = _content(0, actions=np.arange(STEPS) % 3)
    folder = _saved(minari, PICTURES, Discrete(3), content)
    with h5py.File(folder / "data" / "main_data.hdf5", "a") as file:
        edit(file)
    with pytest.raises(DataError, match=problem) as caught:
        imported(tmp_path / "data", folder, "minari")
    assert "\n" not in str(caught.value)


def _jpeg(side: int) -> np.ndarray:
    """A file of a black square, as Minari stores it."""
    content = io.BytesIO()
    Image.new("RGB", (side, side)).save(content, "JPEG")
    return np.frombuffer(content.getvalue(), np.uint8)


def _claimed(content: np.ndarray, side: int) -> np.ndarray:
    """The same file with another number of rows and columns in its header."""
    place = content.tobytes().index(b"\xff\xc0") + 5
    size = np.frombuffer(side.to_bytes(2, "big") * 2, np.uint8)
    return np.concatenate([content[:place], size, content[place + 4 :]])


@pytest.mark.parametrize(
    ("picture", "problem"),
    [
        (_jpeg(600), "its pictures have more than 2,097,152 bytes"),
        (_claimed(_jpeg(32), 9000), "a picture of 9000x9000 pixels"),
        (_claimed(_jpeg(32), 60_000), "exceeds limit"),
    ],
    ids=["many pixels together", "a large picture", "a decompression bomb"],
)
def test_encoded_pictures_of_many_pixels_are_one_line(
    minari: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    picture: np.ndarray,
    problem: str,
) -> None:
    monkeypatch.setattr("worldmodels.data.minari_sets.LARGEST_EPISODE", 2**21)
    folder = _saved(minari, PICTURES, ACTIONS, _content(0))
    with h5py.File(folder / "data" / "main_data.hdf5", "a") as file:
        del file["episode_0/observations"]
        place = file["episode_0"].create_dataset(
            "observations", (STEPS + 1,), h5py.vlen_dtype(np.uint8)
        )
        for row in range(STEPS + 1):
            place[row] = picture
    with pytest.raises(DataError, match=f"episode 0 cannot be read.*{problem}") as caught:
        imported(tmp_path / "data", folder, "minari")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("episodes", [10**12, -1, "x", None])
def test_a_number_of_episodes_that_cannot_be_is_one_line(
    minari: Any, tmp_path: Path, episodes: Any
) -> None:
    folder = _saved(minari, PICTURES, ACTIONS, _content(0))
    metadata = folder / "data" / "metadata.json"
    record = json.loads(metadata.read_text())
    metadata.write_text(json.dumps(record | {"total_episodes": episodes}))
    with pytest.raises(DataError, match=f"total_episodes is '?{episodes}'?, not 0 to 1048576"):
        imported(tmp_path / "data", folder, "minari")


def test_another_storage_of_minari_is_one_line(minari: Any, tmp_path: Path) -> None:
    folder = _saved(minari, PICTURES, ACTIONS, _content(0))
    metadata = folder / "data" / "metadata.json"
    metadata.write_text(json.dumps(json.loads(metadata.read_text()) | {"data_format": "arrow"}))
    with pytest.raises(DataError, match="data_format is 'arrow', not hdf5; make it again with"):
        imported(tmp_path / "data", folder, "minari")
