"""Arrays of NumPy files, read without pickles and in bounded memory; episodes in NumPy archives."""

from __future__ import annotations

import math
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from worldmodels.data.foreign import BLOCK_BYTES, LARGEST_PICTURE, Foreign
from worldmodels.errors import ArtifactError, DataError
from worldmodels.files.untrusted import MEGABYTE, open_regular, printable, sha256

MOST_NUMBERS = 256 * MEGABYTE
"""Bytes of an array that is not of pictures."""
MOST_FILE = 2**40
_HEADERS: dict[tuple[int, int], Callable[[IO[bytes]], Any]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, EOFError, LookupError, MemoryError, OSError, RuntimeError),
    *(SyntaxError, ValueError),
)
"""What reading a damaged archive may raise."""
_ENTRIES = ("observations", "actions", "rewards", "terminations", "truncations")


class NumpySource:
    """Episodes in a folder of ``.npz`` archives, one each, in the order of their names.

    Args:
        folder: of the archives.

    Raises:
        DataError: there is none.
    """

    def __init__(self, folder: Path) -> None:
        self._paths = sorted(folder.glob("*.npz"))
        if not self._paths:
            raise DataError(f"source={folder}: has no file *.npz; give the folder of the archives")

    def __len__(self) -> int:
        """The number of archives."""
        return len(self._paths)

    def identity(self, index: int) -> str:
        """Name and SHA-256 of an archive."""
        path = self._paths[index]
        return f"{path.name} {sha256(path, MOST_FILE)}"

    def read(self, index: int) -> Foreign:
        """The episode of an archive; its pictures are read while they are used."""
        path = self._paths[index]
        with _archive(path) as archive:
            names = {name.removesuffix(".npy") for name in archive.namelist()}
            missing = {"observations", "actions"} - names
            if missing:
                raise DataError(
                    f"{path}: has no {' and no '.join(sorted(missing))}; its arrays have to be"
                    f" {', '.join(_ENTRIES)}"
                )
            arrays = {name: _entry(archive, name) for name in _ENTRIES[1:] if name in names}
        return Foreign(
            str(path),
            _pictures(path),
            arrays["actions"],
            arrays.get("rewards"),
            arrays.get("terminations"),
            arrays.get("truncations"),
        )


def read_array(file: IO[bytes], size: int) -> np.ndarray:
    """The array of a ``.npy`` file of `size` bytes; raises `ValueError` where it is none."""
    shape, order, dtype = _header(file)
    count = _check_declared(file, size, shape, dtype)
    if count > MOST_NUMBERS:
        raise ValueError(f"an array has {count:,} bytes, at most {MOST_NUMBERS:,}")
    return np.frombuffer(file.read(count), dtype).reshape(shape, order=order)


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], Any, np.dtype[Any]]:
    """Shape, order ("C" or "F") and type of the array that follows."""
    version = np.lib.format.read_magic(file)
    if version not in _HEADERS:
        raise ValueError(f"it is of format {version}")
    try:
        shape, fortran, dtype = _HEADERS[version](file)
    except tokenize.TokenError as error:  # of NumPy's reader, of a bracket that is not closed
        raise ValueError("its header is cut off") from error
    if dtype.hasobject:
        raise ValueError("it has Python objects, which are not read")
    return shape, "F" if fortran else "C", dtype


def _check_declared(
    file: IO[bytes], size: int, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> int:
    """The bytes that the header before declares; raises `ValueError` where others follow."""
    count = math.prod(shape) * dtype.itemsize
    if file.tell() + count != size:
        raise ValueError(f"it declares {count:,} bytes and has {size - file.tell():,}")
    return count


def _entry(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    info = archive.getinfo(f"{name}.npy")
    with archive.open(info) as file:
        return read_array(file, info.file_size)


def _pictures(path: Path) -> Iterator[np.ndarray]:
    """Blocks of the observations of an archive."""
    with _archive(path) as archive, archive.open("observations.npy") as file:
        shape, order, dtype = _header(file)
        _check_declared(file, archive.getinfo("observations.npy").file_size, shape, dtype)
        if dtype != np.uint8 or len(shape) != 4 or shape[3] != 3 or 0 in shape or order != "C":
            raise DataError(
                f"{path}: observations are {dtype} {shape}, not uint8 pictures (T + 1, H, W, 3);"
                " give colour pictures"
            )
        if math.prod(shape[1:3]) > LARGEST_PICTURE:
            raise ValueError(f"a picture of {shape[2]}x{shape[1]} pixels")
        size = math.prod(shape[1:])
        rows = max(1, BLOCK_BYTES // size)
        for start in range(0, shape[0], rows):
            count = min(rows, shape[0] - start)
            content = file.read(count * size)
            if len(content) < count * size:
                raise ValueError("its observations are cut off")
            yield np.frombuffer(content, np.uint8).reshape(count, *shape[1:]).copy()


@contextmanager
def _archive(path: Path) -> Iterator[zipfile.ZipFile]:
    """Errors of a damaged archive as `DataError`."""
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            yield archive
    except ArtifactError:
        raise
    except _DAMAGE as error:
        reason = printable(" ".join(str(error).split()), 200)
        raise DataError(
            f"{path}: cannot be read ({reason}); save it again with numpy.savez, or remove it"
        ) from error
