"""Episodes of a run as a data set of LeRobot, of its format 3.0."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from worldmodels.data.episodes import EpisodeSet
from worldmodels.data.lerobot_sets import (
    ACTION,
    CHUNK,
    EPISODE,
    FILE,
    INFO,
    PATHS,
    REWARD,
    SEED,
    TERMINATED,
    TRUNCATED,
)
from worldmodels.data.shards import Episode
from worldmodels.files.atomic import write_json, writing
from worldmodels.files.images import png

FRAMES_PER_SECOND = 50
"""Of the times of pictures: a run has steps, and those of CarRacing are a fiftieth of a second."""
_IMAGE = "observation.image"
_FILE_BYTES = 100 * 2**20
"""After which another file of data begins, as LeRobot does it."""


def write_lerobot(folder: Path, episodes: EpisodeSet, task: str, rewarded: bool) -> list[str]:
    """Write episodes as a data set of LeRobot, one after another.

    An episode of T steps has T + 1 rows. The action of the last one, which has the last picture,
    is zeros. Pictures are PNG.

    Args:
        folder: of the data set, made anew.
        episodes: to write; of discrete actions, the vectors that stand for them.
        task: the text that LeRobot has for each episode.
        rewarded: whether rewards were recorded; else the data set has none.

    Returns:
        the names of the files in `folder`.

    Raises:
        ArtifactError: the disk is full or not writable.
        DataError: an episode is damaged.
    """
    with writing(folder):
        if folder.exists():
            shutil.rmtree(folder)
        (folder / "meta").mkdir(parents=True)
        size, side = episodes.episode(0).actions.shape[1], episodes.frame_shape[0]
        schema = _schema(size, rewarded)
        statistics = {k: _Statistics() for k in (_IMAGE, ACTION, REWARD) if k in schema.names}
        listed = list(_write_data(folder, episodes, schema, statistics))
        path = folder / "meta" / "episodes" / f"{FILE.format(0, 0)}.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist([{**row, "tasks": [task]} for row in listed]), path)
        _write_tasks(folder / "meta" / "tasks.parquet", task)
        write_json(
            folder / "meta" / "stats.json",
            {key: found.summary() for key, found in statistics.items()},
        )
        write_json(folder / INFO, _info(schema, size, side, listed))
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def _write_data(
    folder: Path, episodes: EpisodeSet, schema: pa.Schema, statistics: dict[str, _Statistics]
) -> Iterator[dict[str, Any]]:
    """Write the rows of all episodes; where those of each are."""
    file, first, number = 0, 0, 0
    while number < episodes.num_episodes:
        place = file // CHUNK, file % CHUNK
        path = folder / "data" / f"{FILE.format(*place)}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        with pq.ParquetWriter(path, schema) as writer:
            written = 0
            while number < episodes.num_episodes and written < _FILE_BYTES:
                episode = episodes.episode(number)
                table = _rows(episode, number, first, schema)
                writer.write_table(table)
                written += table.nbytes
                _count(episode, statistics)
                rows = len(episode.frames)
                yield {
                    EPISODE: number,
                    "length": rows,
                    "data/chunk_index": place[0],
                    "data/file_index": place[1],
                    "dataset_from_index": first,
                    "dataset_to_index": first + rows,
                    "meta/episodes/chunk_index": 0,
                    "meta/episodes/file_index": 0,
                    SEED: episode.seed,
                }
                first, number = first + rows, number + 1
        file += 1


def _schema(action_size: int, rewarded: bool) -> pa.Schema:
    """The columns of the data. LeRobot has a vector of one number as a number."""
    action = pa.float32() if action_size == 1 else pa.list_(pa.float32(), action_size)
    return pa.schema(
        {
            _IMAGE: pa.struct({"bytes": pa.binary(), "path": pa.string()}),
            ACTION: action,
            **({REWARD: pa.float32()} if rewarded else {}),
            TERMINATED: pa.bool_(),
            TRUNCATED: pa.bool_(),
            "next.done": pa.bool_(),
            "timestamp": pa.float32(),
            "frame_index": pa.int64(),
            EPISODE: pa.int64(),
            "index": pa.int64(),
            "task_index": pa.int64(),
        }
    )


def _rows(episode: Episode, number: int, first: int, schema: pa.Schema) -> pa.Table:
    """The rows of an episode, of which the first is row `first` of the data set."""
    rows = len(episode.frames)
    size = episode.actions.shape[1]
    times = np.arange(rows)
    actions = np.zeros((rows, size), np.float32)
    actions[:-1] = episode.actions
    ends = [np.append(column, column[-1]) for column in (episode.terminated, episode.truncated)]
    columns = {
        _IMAGE: [{"bytes": png(frame, quickly=True), "path": None} for frame in episode.frames],
        ACTION: actions[:, 0] if size == 1 else list(actions),
        REWARD: np.append(episode.rewards, np.float32(0)),
        TERMINATED: ends[0],
        TRUNCATED: ends[1],
        "next.done": ends[0] | ends[1],
        "timestamp": (times / FRAMES_PER_SECOND).astype(np.float32),
        "frame_index": times,
        EPISODE: np.full(rows, number),
        "index": times + first,
        "task_index": np.zeros(rows, np.int64),
    }
    arrays = [pa.array(columns[field.name], field.type) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


class _Statistics:
    """Minimum, maximum, mean and standard deviation of each number of a feature."""

    def __init__(self) -> None:
        self._count, self._rows = 0, 0
        self._least, self._most = np.array(np.inf), np.array(-np.inf)
        self._total, self._squares = np.zeros(()), np.zeros(())

    def add(self, values: np.ndarray, rows: int) -> None:
        """Add numbers (n, size) of some rows."""
        values = values.astype(np.float64)
        self._least = np.minimum(self._least, values.min(axis=0))
        self._most = np.maximum(self._most, values.max(axis=0))
        self._total = self._total + values.sum(axis=0)
        self._squares = self._squares + np.square(values).sum(axis=0)
        self._count, self._rows = self._count + len(values), self._rows + rows

    def summary(self) -> dict[str, Any]:
        """What meta/stats.json has of a feature; of the channels of pictures (3, 1, 1)."""
        mean = self._total / self._count
        spread = np.sqrt(np.maximum(self._squares / self._count - np.square(mean), 0))
        found = {"min": self._least, "max": self._most, "mean": mean, "std": spread}
        shaped = {
            key: value.reshape(-1, 1, 1) if self._rows != self._count else value
            for key, value in found.items()
        }
        return {key: value.tolist() for key, value in shaped.items()} | {"count": [self._rows]}


def _count(episode: Episode, statistics: dict[str, _Statistics]) -> None:
    rows = len(episode.actions)
    statistics[_IMAGE].add(episode.frames.reshape(-1, 3) / 255.0, len(episode.frames))
    statistics[ACTION].add(episode.actions, rows)
    if REWARD in statistics:
        statistics[REWARD].add(episode.rewards[:, None], rows)


def _write_tasks(path: Path, task: str) -> None:
    """Write the table of tasks, which pandas reads with the text as its index."""
    described = [
        {"name": name, "field_name": name, "pandas_type": kind, "numpy_type": stored}
        for name, kind, stored in (("task_index", "int64", "int64"), ("task", "unicode", "object"))
    ]
    index = {"name": None, "field_name": None, "pandas_type": "unicode", "numpy_type": "object"}
    metadata = {
        "index_columns": ["task"],
        "column_indexes": [{**index, "metadata": {"encoding": "UTF-8"}}],
        "columns": [{**column, "metadata": None} for column in described],
        "pandas_version": "2.2.0",
    }
    table = pa.table({"task_index": pa.array([0]), "task": pa.array([task])})
    pq.write_table(table.replace_schema_metadata({"pandas": json.dumps(metadata)}), path)


def _info(
    schema: pa.Schema, action_size: int, side: int, listed: list[dict[str, Any]]
) -> dict[str, Any]:
    """The content of meta/info.json."""
    numbers = {"float": "float32"}  # what else there is has LeRobot's names
    features: dict[str, Any] = {
        field.name: {
            "dtype": numbers.get(str(field.type), str(field.type)),
            "shape": [1],
            "names": None,
        }
        for field in schema
    }
    shape = {"shape": [side, side, 3], "names": ["height", "width", "channels"]}
    features[_IMAGE] = {"dtype": "image", **shape}
    names = [f"action_{number}" for number in range(action_size)]
    features[ACTION] = {"dtype": "float32", "shape": [action_size], "names": names}
    data, video = PATHS[3]
    return {
        "codebase_version": "v3.0",
        "robot_type": None,
        "total_episodes": len(listed),
        "total_frames": listed[-1]["dataset_to_index"],
        "total_tasks": 1,
        "chunks_size": CHUNK,
        "data_files_size_in_mb": _FILE_BYTES // 2**20,
        "video_files_size_in_mb": 200,
        "fps": FRAMES_PER_SECOND,
        "splits": {"train": f"0:{len(listed)}"},
        "data_path": data,
        "video_path": video,
        "features": features,
    }
