"""Episodes in videos, each with a table of actions beside it."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

import imageio_ffmpeg
import numpy as np

from worldmodels.data.foreign import BLOCK_BYTES, LARGEST_PICTURE, Foreign
from worldmodels.data.numpy_files import MOST_FILE, MOST_NUMBERS, read_array
from worldmodels.errors import DataError
from worldmodels.files.untrusted import open_regular, printable, read_bytes, sha256

SUFFIXES = (".avi", ".mkv", ".mov", ".mp4", ".webm")
# A playlist would name further files and addresses, whatever its suffix is.
_INPUT = ("-protocol_whitelist", "file", "-format_whitelist", "avi,matroska,webm,mov,mp4")
_OUTPUT = ("-fps_mode", "passthrough")
"""Each picture of the video once, also where its rate varies."""
_COLUMNS = {"reward": "rewards", "terminated": "terminated", "truncated": "truncated"}
"""Columns of a table that are no numbers of an action."""


class VideoSource:
    """Episodes in a folder of videos, in the order of their names.

    Beside ``drive.mp4`` is ``drive.csv`` or ``drive.npy`` with a row for each action.

    Args:
        folder: of the videos.

    Raises:
        DataError: there is none, or one without actions.
    """

    def __init__(self, folder: Path) -> None:
        videos = sorted(path for path in folder.glob("*") if path.suffix.lower() in SUFFIXES)
        if not videos:
            raise DataError(
                f"source={folder}: has no video ({', '.join(SUFFIXES)}); give the folder of the"
                " videos"
            )
        self._paths: list[tuple[Path, Path]] = []
        for video in videos:
            tables = [video.with_suffix(suffix) for suffix in (".csv", ".npy")]
            found = [table for table in tables if table.exists()]
            if len(found) != 1:
                raise DataError(
                    f"{video}: has {len(found)} tables of actions beside it; put"
                    f" {tables[0].name} or {tables[1].name} there"
                )
            self._paths.append((video, found[0]))

    def __len__(self) -> int:
        """The number of videos."""
        return len(self._paths)

    def identity(self, index: int) -> str:
        """Names and SHA-256 of a video and its table."""
        return " ".join(f"{path.name} {sha256(path, MOST_FILE)}" for path in self._paths[index])

    def read(self, index: int) -> Foreign:
        """The episode of a video, which is decoded while its pictures are used."""
        video, table = self._paths[index]
        found = _read_csv(table) if table.suffix == ".csv" else _read_npy(table)
        return Foreign(
            str(video),
            decoded(video),
            found["actions"],
            found.get("rewards"),
            found.get("terminated"),
            found.get("truncated"),
        )


def decoded(path: Path, count: int | None = None, start: float = 0.0) -> Iterator[np.ndarray]:
    """Blocks of the pictures of a video.

    Args:
        path: of the video.
        count: at most so many pictures; None for all.
        start: seconds, before which no picture is taken.

    Raises:
        DataError: it cannot be decoded, or its pictures are larger than allowed.
    """
    open_regular(path).close()
    place = f"file:{path.absolute()}"
    given = [*_INPUT, "-ss", f"{start:.6f}"] if start else list(_INPUT)
    limit = [] if count is None else ["-frames:v", str(count)]
    reader = imageio_ffmpeg.read_frames(place, input_params=given, output_params=[*_OUTPUT, *limit])
    try:
        width, height = next(reader)["size"]
        if width * height > LARGEST_PICTURE:
            raise DataError(
                f"{path}: has pictures of {width}x{height}, at most {LARGEST_PICTURE:,} pixels are"
                " read; encode it again with smaller ones"
            )
        rows = max(1, BLOCK_BYTES // (width * height * 3))
        block: list[np.ndarray] = []
        for content in reader:
            block.append(np.frombuffer(content, np.uint8).reshape(height, width, 3))
            if len(block) == rows:
                yield np.stack(block)
                block = []
        if block:
            yield np.stack(block)
    except (OSError, RuntimeError, KeyError, ValueError, IndexError, StopIteration) as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        reason = printable(lines[-1] if lines else type(error).__name__, 200)
        raise DataError(
            f"{path}: cannot be decoded, ffmpeg reports: {reason}; remove it, or encode it again"
        ) from error
    finally:
        reader.close()


def _read_npy(path: Path) -> dict[str, np.ndarray]:
    try:
        with open_regular(path, MOST_NUMBERS) as file:
            return {"actions": read_array(file, path.stat().st_size)}
    except (ValueError, EOFError, SyntaxError) as error:
        reason = printable(" ".join(str(error).split()), 200)
        raise DataError(
            f"{path}: cannot be read ({reason}); save it again with numpy.save"
        ) from error


def _read_csv(path: Path) -> dict[str, np.ndarray]:
    """Columns of a table, which the first line names."""
    try:
        text = read_bytes(path, MOST_NUMBERS).decode("utf-8-sig")
        names, *rows = [row for row in csv.reader(io.StringIO(text)) if row]
        table = np.array([[float(cell) for cell in row] for row in rows], np.float64)
        if table.shape != (len(rows), len(names)) or not rows:
            raise ValueError("no row below the first line" if not rows else "rows of other lengths")
    except (ValueError, csv.Error) as error:
        reason = printable(" ".join(str(error).split()), 200)
        raise DataError(
            f"{path}: is not a table of numbers ({reason}); the first line names the columns, each"
            " other line is a step"
        ) from error
    columns = {name.strip(): table[:, number] for number, name in enumerate(names)}
    found = {_COLUMNS[name]: columns.pop(name) for name in _COLUMNS if name in columns}
    if not columns:
        raise DataError(f"{path}: has no column of actions; add one for each of their numbers")
    return {"actions": np.stack(list(columns.values()), axis=1), **found}
