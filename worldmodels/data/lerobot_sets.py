"""Episodes in data sets of LeRobot, of its formats 2.0, 2.1 and 3.0.

A row of a data set is a picture, the action that was chosen after it, and the reward of that
action. The picture that follows the last action is not recorded, so an episode of n rows has n - 1
steps here. docs/formats.md says which columns are read.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from worldmodels.data.foreign import BLOCK_BYTES, LARGEST_PICTURE, Foreign
from worldmodels.data.hdf5 import LARGEST_EPISODE, MOST_EPISODES
from worldmodels.data.numpy_files import MOST_FILE, MOST_NUMBERS
from worldmodels.data.videos import decoded
from worldmodels.errors import DataError
from worldmodels.files.untrusted import (
    MEGABYTE,
    open_regular,
    printable,
    read_bytes,
    read_json,
    sha256,
)

INFO = "meta/info.json"
ACTION, REWARD, TERMINATED, TRUNCATED = (
    *("action", "next.reward"),
    *("next.terminated", "next.truncated"),
)
EPISODE, SEED = "episode_index", "seed"
CHUNK = 1000
"""Files of a folder."""
FILE = "chunk-{:03d}/file-{:03d}"
"""Of format 3.0: numbers of a folder and of a file in it."""
_FILE_2 = ("data/chunk-{:03d}/episode_{:06d}.parquet", "videos/chunk-{:03d}/{}/episode_{:06d}.mp4")
PATHS = {
    2: (
        "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
    ),
    3: (
        "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
    ),
}
"""Where the files of a format are, as info.json has to say: a path that it gives is not followed,
only compared."""
_NUMBERS = {"BOOLEAN", "INT32", "INT64", "FLOAT", "DOUBLE"}
"""Parquet's types of at most eight bytes a value."""
_DAMAGE = (
    *(AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError),
    *(Image.DecompressionBombError, pa.ArrowException),
)
"""What reading a damaged file may raise."""
_AGAIN = "make the data set again"


class _Episode(NamedTuple):
    """An episode: its number and rows, and the file of its data and that of its video, where it
    begins after `start` seconds."""

    number: int
    rows: int
    data: Path
    video: Path
    start: float
    seed: int | None


class LeRobotSource:
    """Episodes in a data set of LeRobot.

    Args:
        folder: of the data set, which contains ``meta``.
        camera: the feature whose pictures are read; None for the only one.

    Raises:
        DataError: it is none, or has no such pictures, or no actions.
        ArtifactError: a file cannot be read.
    """

    def __init__(self, folder: Path, camera: str | None) -> None:
        where = f"source={folder}"
        if not (folder / INFO).exists():
            raise DataError(
                f"{where}: is not a data set of LeRobot ({INFO} is missing); give its folder"
            )
        info = read_json(folder / INFO, MEGABYTE)
        features = info.get("features") if isinstance(info, dict) else None
        if not isinstance(features, dict) or not all(
            isinstance(f, dict) for f in features.values()
        ):
            raise DataError(f"{folder / INFO}: describes no features; {_AGAIN}")
        self._features: dict[str, dict[str, Any]] = features
        self._camera = _chosen(where, features, camera)
        self._video = features[self._camera].get("dtype") == "video"
        if ACTION not in features:
            raise DataError(f"{where}: has no feature {ACTION}; give a data set of actions")
        self._rate = _rate(folder / INFO, info.get("fps"))
        version = _version(folder / INFO, info)
        with _readable(folder / "meta"):
            episodes = self._listed_2(folder) if version == 2 else self._listed_3(folder)
            self._episodes = sorted(islice(episodes, MOST_EPISODES + 1))
            if len(self) > MOST_EPISODES:
                raise ValueError(f"more than {MOST_EPISODES:,} episodes")
        if not self._episodes:
            raise DataError(f"{where}: has no episode; give another data set")
        self._hash = lru_cache(maxsize=None)(lambda path: sha256(path, MOST_FILE))
        self._numbers = lru_cache(maxsize=1)(self._read_numbers)

    def __len__(self) -> int:
        """The number of episodes."""
        return len(self._episodes)

    def identity(self, index: int) -> str:
        """Number and camera of an episode, and SHA-256 of its files."""
        episode = self._episodes[index]
        files = [episode.data, episode.video] if self._video else [episode.data]
        return " ".join((str(episode.number), self._camera, *map(self._hash, files)))

    def read(self, index: int) -> Foreign:
        """Episode `index`; its pictures are read while they are used."""
        episode = self._episodes[index]
        name = f"{episode.data}: episode {episode.number}"
        table, rows = self._numbers(episode.data), episode.rows
        found = np.flatnonzero(table[EPISODE].to_numpy() == episode.number)
        first = int(found[0]) if len(found) else 0
        if len(found) != rows or rows < 2 or found[-1] - first != rows - 1:
            raise DataError(
                f"{name}: has {len(found)} rows, {rows} are listed in meta, and at least 2 are"
                f" needed; {_AGAIN}"
            )
        if self._video:
            pictures = decoded(episode.video, rows, episode.start)
        else:
            pictures = self._pictures(name, episode.data, range(first, first + rows))
        with _readable(episode.data):
            columns = {
                key: np.array(table[key].slice(first, rows - 1).to_pylist())
                for key in table.column_names
            }
            ends = [columns[key] for key in (TERMINATED, TRUNCATED) if key in columns]
            ended = any(bool(end[-1]) for end in ends)
        return Foreign(
            name,
            pictures,
            columns[ACTION],
            columns.get(REWARD),
            columns.get(TERMINATED),
            # An end in the row that is no step here is none of the step before it.
            columns.get(TRUNCATED) if ended else None,
            episode.seed,
        )

    def _listed_2(self, folder: Path) -> Iterator[_Episode]:
        """The episodes of format 2: a file of data each, and one of video."""
        lines = read_bytes(folder / "meta" / "episodes.jsonl", MOST_NUMBERS).decode().splitlines()
        for record in (json.loads(line) for line in lines if line.strip()):
            number, rows = _whole(record[EPISODE]), _whole(record["length"])
            data, video = _FILE_2
            yield _Episode(
                number,
                rows,
                folder / data.format(number // CHUNK, number),
                folder / video.format(number // CHUNK, self._camera, number),
                0.0,
                None,
            )

    def _listed_3(self, folder: Path) -> Iterator[_Episode]:
        """The episodes of format 3: files have several, one after another."""
        prefix = f"videos/{self._camera}/"
        for path in sorted((folder / "meta" / "episodes").glob("*/*.parquet")):
            needed = [EPISODE, "length", "data/chunk_index", "data/file_index"]
            if self._video:
                needed += [
                    prefix + name for name in ("chunk_index", "file_index", "from_timestamp")
                ]
            batches = _table(path, needed, optional=[SEED]).to_batches(max_chunksize=1024)
            for row in (row for batch in batches for row in batch.to_pylist()):
                places = [_whole(row[f"data/{name}_index"]) for name in ("chunk", "file")]
                video, start = folder, 0.0
                if self._video:
                    numbers = [_whole(row[f"{prefix}{name}_index"]) for name in ("chunk", "file")]
                    video = folder / "videos" / self._camera / f"{FILE.format(*numbers)}.mp4"
                    # Half a picture earlier: times are rounded.
                    start = max(0.0, float(row[f"{prefix}from_timestamp"]) - 0.5 / self._rate)
                seed = row.get(SEED)
                yield _Episode(
                    _whole(row[EPISODE]),
                    _whole(row["length"]),
                    folder / "data" / f"{FILE.format(*places)}.parquet",
                    video,
                    start,
                    seed if isinstance(seed, int) and 0 <= seed < 2**31 else None,
                )

    def _read_numbers(self, path: Path) -> pa.Table:
        """Everything but the pictures of a file."""
        optional = [key for key in (REWARD, TERMINATED, TRUNCATED) if key in self._features]
        return _table(path, [EPISODE, ACTION], optional)

    def _pictures(self, name: str, path: Path, rows: range) -> Iterator[np.ndarray]:
        """Blocks of the pictures in some rows of a file."""
        block: list[np.ndarray] = []
        with _readable(path), open_regular(path) as file:
            parquet = pq.ParquetFile(file)
            stop = 0
            for group in range(parquet.num_row_groups):
                start, stop = stop, stop + parquet.metadata.row_group(group).num_rows
                if stop <= rows.start or start >= rows.stop:
                    continue
                _check_size(parquet, [group], [self._camera], LARGEST_EPISODE)
                # One at a time: a picture that is stored once may stand in many rows.
                for batch in parquet.iter_batches(1, row_groups=[group], columns=[self._camera]):
                    for row, cell in enumerate(batch[0].to_pylist(), start):
                        if row in rows:
                            block.append(_picture(name, cell))
                        if block and len(block) * block[0].nbytes > BLOCK_BYTES:
                            yield np.stack(block)
                            block = []
                    start += batch.num_rows
            if block:
                yield np.stack(block)


def _version(path: Path, info: dict[str, Any]) -> int:
    """The number of the format, 2 or 3."""
    given = info.get("codebase_version")
    if given not in ("v2.0", "v2.1", "v3.0"):
        raise DataError(
            f"{path}: codebase_version is {printable(repr(given), 60)}, not v2.0, v2.1 or v3.0;"
            " convert it with LeRobot"
        )
    version = int(given[1])
    for key, wanted in zip(("data_path", "video_path"), PATHS[version], strict=True):
        found = info.get(key, wanted)
        if found not in (wanted, None):
            raise DataError(
                f"{path}: {key} is {printable(repr(found), 120)}, not {wanted}; {_AGAIN}"
            )
    if version == 2 and info.get("chunks_size", CHUNK) != CHUNK:
        raise DataError(f"{path}: chunks_size is not {CHUNK}; convert it with LeRobot")
    return version


def _rate(path: Path, given: Any) -> float:
    if not isinstance(given, int | float) or not 0 < given < 1e6:
        raise DataError(f"{path}: fps is {printable(repr(given), 60)}, not a rate; {_AGAIN}")
    return float(given)


def _chosen(where: str, features: dict[str, dict[str, Any]], camera: str | None) -> str:
    """The feature whose pictures are read."""
    kinds = ("image", "video")
    cameras = [key for key, feature in features.items() if feature.get("dtype") in kinds]
    shown = ", ".join(printable(key, 80) for key in cameras[:20])
    if not cameras:
        listed = ", ".join(printable(key, 80) for key in list(features)[:20])
        raise DataError(f"{where}: has no pictures, only {listed}; give a data set with a camera")
    if camera is None and len(cameras) > 1:
        raise DataError(f"{where}: has the cameras {shown}; choose one with camera={cameras[0]}")
    if camera is not None and camera not in cameras:
        raise DataError(f"camera={camera}: the data set has no such pictures; choose {shown}")
    chosen = camera or cameras[0]
    if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*", chosen):
        raise DataError(f"{where}: {shown} is not a name of a feature; {_AGAIN}")
    return chosen


def _whole(value: Any) -> int:
    if not isinstance(value, int) or not 0 <= value < 2**31:
        raise ValueError(f"{value!r} is not a number of a file, an episode or its rows")
    return value


def _table(path: Path, columns: list[str], optional: list[str]) -> pa.Table:
    """Columns of a Parquet file, in memory."""
    with _readable(path), open_regular(path) as file:
        parquet = pq.ParquetFile(file)
        names = parquet.schema_arrow.names
        missing = [name for name in columns if name not in names]
        if missing:
            raise ValueError(f"it has no column {', '.join(missing)}")
        wanted = columns + [name for name in optional if name in names]
        groups = range(parquet.num_row_groups)
        for column in _columns(parquet, groups, wanted):
            if column.physical_type not in _NUMBERS:
                raise ValueError(f"{column.path_in_schema} has no numbers")
        _check_size(parquet, groups, wanted, MOST_NUMBERS)
        return parquet.read(wanted)


def _columns(
    parquet: pq.ParquetFile, groups: Iterable[int], names: list[str]
) -> Iterator[pq.ColumnChunkMetaData]:
    """Some columns in each of some row groups, as the file describes them."""
    for number in groups:
        group = parquet.metadata.row_group(number)
        for index in range(group.num_columns):
            column = group.column(index)
            place = column.path_in_schema  # of lists and records, with what is in them
            if any(place == name or place.startswith(f"{name}.") for name in names):
                yield column


def _check_size(
    parquet: pq.ParquetFile, groups: Iterable[int], columns: list[str], most: int
) -> None:
    """Raise `ValueError` if columns of some row groups declare more than `most` bytes, encoded or
    as numbers: equal values are stored once."""
    size = 0
    for column in _columns(parquet, groups, columns):
        stored = max(column.total_uncompressed_size, column.total_compressed_size)
        size += max(stored, 8 * column.num_values)
    if size > most:
        raise ValueError(f"{', '.join(columns)} have {size:,} bytes, at most {most:,}")


def _picture(name: str, cell: Any) -> np.ndarray:
    """The pixels (H, W, 3) of an encoded picture."""
    content = cell.get("bytes") if isinstance(cell, dict) else None
    if not isinstance(content, bytes):
        raise DataError(f"{name}: its pictures are not in the data set; {_AGAIN}")
    with Image.open(io.BytesIO(content), formats=("PNG", "JPEG")) as image:
        if image.width * image.height > LARGEST_PICTURE:
            raise ValueError(f"a picture of {image.width}x{image.height} pixels")
        return np.asarray(image.convert("RGB"))


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Errors of a damaged file as `DataError`."""
    try:
        yield
    except _DAMAGE as error:
        reason = printable(" ".join(str(error).split()), 200)
        raise DataError(f"{path}: cannot be read ({reason}); {_AGAIN}") from error
