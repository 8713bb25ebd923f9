"""HDF5 files: written so that HDF5 gets no error of the disk, and checked before they are read.

After a failed write, HDF5 prints pages of errors and sometimes crashes. Therefore it writes through
`_Disk`, which keeps the error. HDF5 files can refer to other files (external storage, links,
virtual data sets) or declare dimensions of which nothing is stored. Therefore `open_checked` checks
the structure before anything is read or allocated.
"""

from __future__ import annotations

import math
import os
import resource
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import h5py
import numpy as np

from worldmodels.files.atomic import atomic_path
from worldmodels.runs.integrity import Listed, reading, verify

LARGEST_CHUNK = 2**26
"""Bytes: 16 frames of 1024x1024."""
LARGEST_EPISODE = 2**30
"""Bytes of an episode's frames, which are in memory together: 87,000 of 64x64."""
MOST_EPISODES = 2**20
LONGEST_EPISODE = 2**31
MOST_OPEN = 128
_MOST_ATTRIBUTES, _LARGEST_ATTRIBUTE = 256, 4096
_BLOSC, _FLETCHER32 = 32001, int(h5py.h5z.FILTER_FLETCHER32)
_BLOSC_HEADER, _CHECKSUM = 16, 4
"""Bytes in front of a chunk that Blosc packed, and behind each that Fletcher32 guards."""


class Column(NamedTuple):
    """What a data set has to be: its type, and how many dimensions."""

    dtype: type[np.generic]
    rank: int


class Output(NamedTuple):
    """A file that is being written, and the disk it is written to."""

    file: h5py.File
    disk: _Disk

    def check(self) -> None:
        """Raise the `OSError` of the first write that failed."""
        self.disk.check()


@contextmanager
def writing(path: Path) -> Iterator[Output]:
    """Write an HDF5 file, atomically.

    Raises `ArtifactError` for a full or read-only disk, of which nothing is left then.
    """
    with atomic_path(path) as temporary, temporary.open("w+b", buffering=0) as content:
        disk = _Disk(content.fileno())
        with h5py.File(disk, "w") as file:
            yield Output(file, disk)
        disk.check()


class _Disk:
    """A file for h5py, on which no write fails.

    The first error is kept, and what is written from then on stays in memory, where HDF5 finds it
    again until it has closed the file.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._position = 0
        self._error: OSError | None = None
        self._unwritten: list[tuple[int, bytes]] = []

    def check(self) -> None:
        """Raise the `OSError` of the first write that failed."""
        if self._error is not None:
            raise self._error

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to `offset` from the beginning or, as h5py does at opening, from the end."""
        end = os.fstat(self._descriptor).st_size if whence == os.SEEK_END else 0
        self._position = end + offset
        return self._position

    def tell(self) -> int:
        """Where the next read or write is."""
        return self._position

    def write(self, data: bytes | memoryview) -> int:
        """Write all of `data`."""
        content = bytes(data)
        at, done = self._position, 0
        self._position += len(content)
        while self._error is None and done < len(content):
            try:
                done += os.pwrite(self._descriptor, content[done:], at + done)
            except OSError as error:
                self._error = error
        if self._error is not None:
            self._unwritten.append((at, content))
        return len(content)

    def read(self, size: int) -> bytes:
        """Read what was written; zeros where nothing was."""
        at, content = self._position, bytearray(size)
        try:
            found = os.pread(self._descriptor, size, at)
        except OSError as error:
            self._error, found = self._error or error, b""
        content[: len(found)] = found
        for start, data in self._unwritten:
            first, last = max(start, at), min(start + len(data), at + size)
            if first < last:
                content[first - at : last - at] = data[first - start : last - start]
        self._position += size
        return bytes(content)

    def truncate(self, size: int) -> int:
        """Make the file `size` bytes long."""
        if self._error is None:
            try:
                os.ftruncate(self._descriptor, size)
            except OSError as error:
                self._error = error
        return size

    def flush(self) -> None:
        """Do nothing: nothing is buffered."""


class OpenFiles:
    """Files that are open for reading, few at a time: the one that was read longest ago is closed.

    Files are never changed in their place, so that none is locked; on network file systems a
    stale lock would keep them from being read.

    Args:
        most: that are open at once; None is as many as a quarter of the process's limit, and 128.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most or _affordable()
        self._files: OrderedDict[Path, h5py.File] = OrderedDict()
        self._lock = Lock()

    @contextmanager
    def lend(self, path: Path) -> Iterator[h5py.File]:
        """The open file, which no other thread closes meanwhile."""
        with self._lock:
            if path not in self._files:
                while len(self._files) >= self._most:
                    self._files.popitem(last=False)[1].close()
                self._files[path] = h5py.File(path, "r", locking=False)
            self._files.move_to_end(path)
            yield self._files[path]

    def close(self, path: Path) -> None:
        """Close a file, if it is open."""
        with self._lock:
            if path in self._files:
                self._files.pop(path).close()


def _affordable() -> int:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_OPEN if limit == resource.RLIM_INFINITY else max(1, min(MOST_OPEN, limit // 4))


def open_checked(
    listed: Listed,
    columns: Mapping[str, Column],
    files: OpenFiles,
    optional: Mapping[str, Column] = {},
) -> None:
    """Verify a file, and that it consists of `columns` alone, before its data are read.

    Each chunk of each data set has to be stored in the file, and to be as large in memory as
    declared. Packed, it may be a thousandth of that, so that whole columns are read by blocks.

    Args:
        listed: the file, with the SHA-256 of its manifest if there is one.
        columns: name -> type and dimensions of every data set that the file must have.
        files: opens the file and keeps it open.
        optional: further data sets, of which the file has all or none.

    Raises:
        DataError: it is missing, damaged, or something else.
        ArtifactError: it cannot be read.
    """
    verify(listed)
    path = listed.path
    with reading(path, listed.remedy), path.open("rb") as raw, files.lend(path) as file:
        if file.userblock_size:
            raise ValueError("it begins with a user block")
        if len(file) == len(columns) + len(optional):
            columns = {**columns, **optional}
        if len(file) != len(columns):
            raise ValueError(f"it has {len(file)} entries, not {len(columns)}")
        _check_attributes(file)
        for name, column in columns.items():
            _check_column(file, name, column, raw.fileno())


def check_lengths(data: h5py.Dataset) -> np.ndarray:
    """The lengths of episodes, (episodes,) int64; raises `ValueError` unless they can be."""
    if not 1 <= data.shape[0] <= MOST_EPISODES:
        raise ValueError(f"it has {data.shape[0]:,} episodes")
    lengths: np.ndarray = data[:]
    if lengths.min() < 1 or lengths.max() > LONGEST_EPISODE:
        raise ValueError(f"it has an episode of {lengths.min()} or {lengths.max()} steps")
    return lengths


def check_rows(file: h5py.File, rows: Mapping[str, int]) -> None:
    """Raise `ValueError` unless the data sets have so many rows."""
    for name, count in rows.items():
        if file[name].shape[0] != count:
            raise ValueError(f"{name} has {file[name].shape[0]:,} rows, not {count:,}")


def finite(name: str, array: np.ndarray) -> np.ndarray:
    """`array`; raises `ValueError` unless all of it is finite."""
    if not np.isfinite(array).all():
        raise ValueError(f"{name} are not finite")
    return array


def _check_attributes(file: h5py.File) -> None:
    if len(file.attrs) > _MOST_ATTRIBUTES:
        raise ValueError(f"it has {len(file.attrs):,} attributes")
    kinds = (h5py.h5t.STRING, h5py.h5t.INTEGER, h5py.h5t.FLOAT)
    for name in file.attrs:
        attribute = file.attrs.get_id(name)
        scalar = attribute.shape == () and attribute.get_storage_size() <= _LARGEST_ATTRIBUTE
        if not scalar or attribute.get_type().get_class() not in kinds:
            raise ValueError(f"the attribute {name[:40]!r} is neither a number nor a short text")


def _check_column(file: h5py.File, name: str, column: Column, descriptor: int) -> None:
    if not isinstance(file.get(name, getlink=True), h5py.HardLink):
        raise ValueError(f"{name} is a link")
    if file.get(name, getclass=True) is not h5py.Dataset:
        raise ValueError(f"{name} is not a data set")
    data = file[name]
    plan = data.id.get_create_plist()
    layout = plan.get_layout()
    if layout not in (h5py.h5d.CHUNKED, h5py.h5d.CONTIGUOUS) or plan.get_external_count():
        raise ValueError(f"the data of {name} are stored elsewhere")  # virtual, external, compact
    if data.dtype != np.dtype(column.dtype) or len(data.shape) != column.rank:
        raise ValueError(
            f"{name} is {data.dtype} of {len(data.shape)} dimensions, not"
            f" {np.dtype(column.dtype)} of {column.rank}"
        )
    if 0 in data.shape:
        raise ValueError(f"{name} is empty")
    if layout == h5py.h5d.CHUNKED:
        _check_chunks(name, data, plan, descriptor)
        return
    size, stored = math.prod(data.shape) * data.dtype.itemsize, data.id.get_storage_size()
    if stored != size or data.id.get_offset() + size > os.fstat(descriptor).st_size:
        raise ValueError(f"{name} is {size:,} bytes, of which {stored:,} are stored")


def _check_chunks(name: str, data: h5py.Dataset, plan: h5py.h5p.PropDCID, descriptor: int) -> None:
    size = math.prod(data.chunks) * data.dtype.itemsize
    if data.chunks[1:] != data.shape[1:] or size > LARGEST_CHUNK:
        raise ValueError(f"{name} has chunks of {data.chunks}")
    filters = [plan.get_filter(number)[0] for number in range(plan.get_nfilters())]
    if filters not in ([_FLETCHER32], [_BLOSC, _FLETCHER32]):
        raise ValueError(f"{name} is packed by the filters {filters}")
    count, on_disk = -(-data.shape[0] // data.chunks[0]), os.fstat(descriptor).st_size
    if count > on_disk // _CHECKSUM:  # known before the index of the chunks is walked through
        raise ValueError(f"{name} declares {count:,} chunks in a file of {on_disk:,} bytes")
    chunks: list[h5py.h5d.StoreInfo] = []
    data.id.chunk_iter(chunks.append)
    if len(chunks) != count or sum(chunk.size for chunk in chunks) > on_disk:
        raise ValueError(f"{name} has {len(chunks):,} chunks stored, of {count:,}")
    for chunk in chunks:
        packed = chunk.filter_mask == 0 and filters[0] == _BLOSC
        plain = chunk.filter_mask == (1 if filters[0] == _BLOSC else 0)
        found = chunk.size - _CHECKSUM
        if packed:
            header = os.pread(descriptor, _BLOSC_HEADER, chunk.byte_offset)
            found = int.from_bytes(header[4:8], "little")
        if not (packed or plain) or found != size:
            raise ValueError(f"{name} has a chunk of {found:,} bytes, not {size:,}")
