"""Data sets of Minari: episodes in one, and episodes of a run as one."""

from __future__ import annotations

import io
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
from gymnasium.spaces import Box, Discrete, Space
from PIL import Image

from worldmodels.data.episodes import EpisodeSet
from worldmodels.data.foreign import LARGEST_PICTURE, Foreign
from worldmodels.data.hdf5 import LARGEST_EPISODE, MOST_EPISODES
from worldmodels.data.numpy_files import MOST_FILE
from worldmodels.envs.vector import is_picture
from worldmodels.errors import DataError
from worldmodels.files.atomic import writing
from worldmodels.files.untrusted import MEGABYTE, open_regular, printable, read_json, sha256

if TYPE_CHECKING:
    from minari.dataset.minari_storage import MinariStorage

METADATA = "metadata.json"
CONTENT = "main_data.hdf5"
"""The files of a data set's folder ``data``."""
_DAMAGE = (
    *(AssertionError, LookupError, MemoryError, OSError, RuntimeError, TypeError, ValueError),
    Image.DecompressionBombError,
)
"""What reading an episode of a damaged data set may raise."""
_OTHER_FORMAT = "make it again with data_format='hdf5'"


class MinariSource:
    """Episodes in a data set of Minari, read by its library.

    Observations have to be colour pictures; actions a vector of numbers, which is taken as it is,
    or discrete, which becomes a one-hot vector.

    Args:
        folder: of the data set, which contains ``data``.

    Raises:
        DataError: it is none, or its observations or actions are of another kind.
        ArtifactError: a file cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self._where = f"source={folder}"
        self._data = folder / "data" if (folder / "data").is_dir() else folder
        if not (self._data / METADATA).exists():
            raise DataError(
                f"{self._where}: is not a data set of Minari (data/{METADATA} is missing); give its"
                " folder"
            )
        metadata = _check_metadata(self._data / METADATA)
        self._episodes = int(metadata["total_episodes"])
        self._rewarded = metadata.get("rewarded") is not False
        _check_content(self._data / CONTENT)
        self._storage = _opened(self._data)
        if not is_picture(self._storage.observation_space):
            raise DataError(
                f"{self._where}: observations are"
                f" {printable(str(self._storage.observation_space), 200)}, not uint8 pictures"
                " (H, W, 3); give a data set of colour pictures"
            )
        if not len(self):
            raise DataError(f"{self._where}: has no episode; give another data set")
        self._actions = self._storage.action_space
        if not (isinstance(self._actions, Discrete) or _is_vector(self._actions)):
            raise DataError(
                f"{self._where}: actions are {printable(str(self._actions), 200)}; supported are a"
                " vector of numbers (Box) and Discrete"
            )
        self._encoded = _is_encoded(self._storage)
        self._sha256 = sha256(self._data / CONTENT, MOST_FILE)

    def __len__(self) -> int:
        """The number of episodes."""
        return self._episodes

    def identity(self, index: int) -> str:
        """Number of an episode and SHA-256 of the data set."""
        return f"{index} {self._sha256}"

    def read(self, index: int) -> Foreign:
        """Episode `index`, read into memory."""
        name = f"{self._data}: episode {index}"
        try:
            if self._encoded:
                _check_encoded(self._data / CONTENT, index)
            (episode,) = self._storage.get_episodes([index])
            (metadata,) = self._storage.get_episode_metadata([index])
        except _DAMAGE as error:
            reason = printable(" ".join(str(error).split()), 200)
            raise DataError(f"{name} cannot be read ({reason}); make the data set again") from error
        pictures, actions = (np.asarray(episode[key]) for key in ("observations", "actions"))
        if pictures.dtype != np.uint8 or pictures.ndim != 4 or pictures.shape[3] != 3:
            raise DataError(
                f"{name}: observations are {pictures.dtype} {pictures.shape}, not uint8 pictures"
                " (T + 1, H, W, 3); make the data set again"
            )
        if isinstance(self._actions, Discrete):
            actions = _one_hot(name, actions, self._actions)
        columns = ("rewards", "terminations", "truncations")
        rewards, terminated, truncated = (np.asarray(episode[column]) for column in columns)
        seed = metadata.get("seed")
        known = isinstance(seed, int) and 0 <= seed < 2**31
        return Foreign(
            name,
            [pictures],
            actions,
            rewards if self._rewarded else None,
            terminated,
            truncated,
            seed if known else None,
        )


def write_minari(
    folder: Path, name: str, episodes: EpisodeSet, described: dict[str, Any]
) -> list[str]:
    """Write episodes as a data set of Minari, one after another.

    Args:
        folder: that Minari calls the root of its data sets; the data set is ``folder/name``, and
            is made anew.
        name: of the data set, ``namespace/name-v0``.
        episodes: to write; of discrete actions, the vectors that stand for them.
        described: further entries of its metadata.

    Returns:
        the names of the files in `folder`.

    Raises:
        ArtifactError: the disk is full or not writable.
        DataError: an episode is damaged.
    """
    from minari import __version__
    from minari.data_collector.episode_buffer import EpisodeBuffer
    from minari.dataset.minari_storage import MinariStorage

    data, frame = folder / name / "data", episodes.frame_shape
    size = episodes.episode(0).actions.shape[1]
    with writing(data):
        if data.exists():
            shutil.rmtree(data)
        data.mkdir(parents=True)
        storage = MinariStorage.new(
            data,
            observation_space=Box(0, 255, frame, np.uint8),
            action_space=Box(-np.inf, np.inf, (size,), np.float32),
            jpeg_encoding=False,  # which would change the pictures
        )
        for index in range(episodes.num_episodes):
            one = episodes.episode(index)
            buffer: Any = {
                "observations": one.frames,
                "actions": one.actions,
                "rewards": one.rewards,
                "terminations": one.terminated,
                "truncations": one.truncated,
            }
            storage.update_episodes([EpisodeBuffer(seed=one.seed, **buffer)])
        storage.update_metadata({"dataset_id": name, "minari_version": __version__, **described})
    return [f"{name}/data/{file}" for file in (METADATA, CONTENT)]


def _opened(data: Path) -> MinariStorage:
    from minari.dataset.minari_storage import MinariStorage

    try:
        return MinariStorage.read(data)
    except (ImportError, OSError, LookupError, ValueError, TypeError, AssertionError) as error:
        reason = printable(" ".join(str(error).split()), 200)
        raise DataError(f"{data}: cannot be read ({reason}); make the data set again") from error


def _is_encoded(storage: MinariStorage) -> bool:
    """Whether observations are stored as JPEG files."""
    from minari.dataset.minari_storage import is_image_space

    return bool(storage.jpeg_encoding) and bool(is_image_space(storage.observation_space))


def _is_vector(space: Space[Any]) -> bool:
    return (
        isinstance(space, Box) and len(space.shape) == 1 and np.issubdtype(space.dtype, np.number)
    )


def _one_hot(name: str, actions: np.ndarray, space: Discrete) -> np.ndarray:
    """Vectors (T, n) of discrete actions (T,)."""
    numbers = actions.reshape(-1) - space.start
    if actions.dtype.kind not in "iu" or ((numbers < 0) | (numbers >= space.n)).any():
        raise DataError(f"{name}: an action is not one of {space}; make the data set again")
    one_hot: np.ndarray = np.eye(int(space.n), dtype=np.float32)[numbers]
    return one_hot


def _check_metadata(path: Path) -> dict[str, Any]:
    """The metadata, which have to describe the spaces: where they do not, Minari makes the
    environment that they name, which runs code."""
    found = read_json(path, MEGABYTE)
    keys = ("observation_space", "action_space")
    if not isinstance(found, dict) or not all(isinstance(found.get(key), str) for key in keys):
        raise DataError(
            f"{path}: does not describe observation_space and action_space; make the data set again"
        )
    if found.get("data_format") != "hdf5":
        shown = printable(repr(found.get("data_format")), 60)
        raise DataError(f"{path}: data_format is {shown}, not hdf5; {_OTHER_FORMAT}")
    episodes = found.get("total_episodes")
    if not isinstance(episodes, int) or not 0 <= episodes <= MOST_EPISODES:
        shown = printable(repr(episodes), 60)
        raise DataError(
            f"{path}: total_episodes is {shown}, not 0 to {MOST_EPISODES}; make the data set again"
        )
    return found


def _check_content(path: Path) -> None:
    """Raise `DataError` for an HDF5 file that refers to others, or declares too large arrays."""
    open_regular(path).close()
    try:
        with h5py.File(path, "r", locking=False) as file:
            sizes: dict[str, int] = {}
            for name, data in _arrays(file, "", set()):
                plan = data.id.get_create_plist()
                virtual = plan.get_layout() == h5py.h5d.VIRTUAL
                if virtual or plan.get_external_count():
                    raise ValueError(f"the data of {name} are stored elsewhere")
                episode = name.split("/")[1]
                size = math.prod(data.shape or ()) * data.dtype.itemsize
                sizes[episode] = size = sizes.get(episode, 0) + size
                if size > LARGEST_EPISODE:
                    raise ValueError(f"{episode} has {size:,} bytes, at most {LARGEST_EPISODE:,}")
    except (OSError, LookupError, ValueError, RuntimeError, RecursionError) as error:
        reason = printable(" ".join(str(error).split()), 200)
        raise DataError(f"{path}: cannot be read ({reason}); make the data set again") from error


def _check_encoded(path: Path, index: int) -> None:
    """Raise `ValueError` if an episode's JPEG files, which may be small, are of too many pixels."""
    with h5py.File(path, "r", locking=False) as file:
        pictures, size = file[f"episode_{index}/observations"], 0
        for row in range(len(pictures)):
            content = np.asarray(pictures[row]).tobytes()
            with Image.open(io.BytesIO(content), formats=("JPEG",)) as image:
                pixels = image.width * image.height
                size += max(len(content), pixels * len(image.getbands()))
            if pixels > LARGEST_PICTURE:
                raise ValueError(f"a picture of {image.width}x{image.height} pixels")
            if size > LARGEST_EPISODE:
                raise ValueError(f"its pictures have more than {LARGEST_EPISODE:,} bytes")


def _arrays(
    group: h5py.Group, prefix: str, visited: set[int]
) -> Iterator[tuple[str, h5py.Dataset]]:
    """The data sets of a group and of the groups in it, by name.

    Raises `ValueError` for links, and for what has two names, which could be read without end; the
    addresses of what was `visited` are added.
    """
    for key in group:
        name = f"{prefix}/{key}"
        if not isinstance(group.get(key, getlink=True), h5py.HardLink):
            raise ValueError(f"{name} is a link")
        entry = group[key]
        address = h5py.h5o.get_info(entry.id).addr
        if address in visited:
            raise ValueError(f"{name} has another name too")
        visited.add(address)
        if isinstance(entry, h5py.Dataset):
            yield name, entry
        elif isinstance(entry, h5py.Group):
            yield from _arrays(entry, name, visited)
