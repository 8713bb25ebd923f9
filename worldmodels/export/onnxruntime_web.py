"""The files of ONNX Runtime Web, which run ONNX graphs in a browser.

They are not part of this package: 14 MB of WebAssembly, which no Python package has. npm downloads
them once from the registry that it is configured for, and they are kept in the user's cache folder.
Version and SHA-512 are fixed here, and compared at each use.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tarfile
import tempfile
import zlib
from pathlib import Path

from worldmodels.errors import ConfigError
from worldmodels.files.atomic import atomic_path
from worldmodels.files.caches import cache_folder

VERSION = "1.30.0"
FILES = {
    "ort.wasm.bundle.min.mjs": (
        "d4a705f0258065eaad4dcbcb80a3ed38c5c86e459e87ef8b0c24290e14390115"
        "711c02f554d2f9aebd0e23e3314db98d200365744fc0feaf8ee2048a81232359"
    ),
    "ort-wasm-simd-threaded.wasm": (
        "1adeded62203219fcf5c484cfce5657aa5875689b490423f86cf1ca1dd1cad77"
        "15f630c6337f41db71ee42794e3a00ce0b7c78939a71220b5d83368bf6ea7730"
    ),
}
"""SHA-512 of each file that a page needs."""
_PACKAGE = f"onnxruntime-web@{VERSION}"
_FOLDER = f"onnxruntime-web-{VERSION}"
_ARCHIVE = f"{_FOLDER}.tgz"
_LARGEST = 2**26
"""Bytes that are read of a file, at most."""
_SECONDS = 600
"""For a download of 33 MB."""


def kept() -> bool:
    """Whether the files are in the cache folder, as they should be."""
    return all(_sha512(cache_folder(_FOLDER) / name) == digest for name, digest in FILES.items())


def fetch() -> Path:
    """The folder of the files, which are downloaded where they are not there.

    An archive that ``npm pack`` wrote elsewhere is used if it is put into the folder.

    Raises:
        ConfigError: npm is missing or cannot download, or the files are not those of this version.
    """
    folder = cache_folder(_FOLDER)
    if kept():
        return folder
    by_hand = (
        f"or run npm pack {_PACKAGE} where there is a network and put {_ARCHIVE} into {folder}"
    )
    if (folder / _ARCHIVE).exists():
        _unpack(folder / _ARCHIVE, folder, f"remove {folder / _ARCHIVE} and get it again")
        return folder
    npm = shutil.which("npm")
    if npm is None:
        raise ConfigError(
            f"{_PACKAGE}: npm, which downloads it, is missing; install npm, {by_hand}"
        )
    with tempfile.TemporaryDirectory() as temporary:
        command = [npm, "pack", _PACKAGE, "--silent", "--pack-destination", temporary]
        try:
            done = subprocess.run(
                command,
                cwd=temporary,
                capture_output=True,
                text=True,
                check=False,
                timeout=_SECONDS,
            )
        except subprocess.TimeoutExpired:
            raise ConfigError(
                f"{_PACKAGE}: npm did not finish in {_SECONDS} s; try again, {by_hand}"
            ) from None
        archive = Path(temporary) / _ARCHIVE
        if done.returncode or not archive.exists():
            reason = " ".join(done.stderr.split())[:200] or f"exit code {done.returncode}"
            raise ConfigError(
                f"{_PACKAGE}: npm could not download it ({reason}); connect to a network, {by_hand}"
            )
        _unpack(archive, folder, f"try again, {by_hand}")
    return folder


def _unpack(archive: Path, folder: Path, remedy: str) -> None:
    """Write the files of an archive to the cache folder, once the SHA-512 of all were compared.

    Raises:
        ConfigError: it is damaged or of something else; its line ends with `remedy`.
    """
    contents = {}
    try:
        with tarfile.open(archive, "r:gz") as packed:
            for name in FILES:
                member = packed.extractfile(f"package/dist/{name}")
                contents[name] = b"" if member is None else member.read(_LARGEST)
    except (tarfile.TarError, zlib.error, KeyError, ValueError, OSError, EOFError) as error:
        raise ConfigError(
            f"{_ARCHIVE}: is damaged, or no archive of {_PACKAGE} ({error}); {remedy}"
        ) from error
    for name, content in contents.items():
        if hashlib.sha512(content).hexdigest() != FILES[name]:
            raise ConfigError(f"{_ARCHIVE}: {name} is not that of {_PACKAGE} (SHA-512); {remedy}")
    for name, content in contents.items():
        with atomic_path(folder / name) as temporary:
            temporary.write_bytes(content)


def _sha512(path: Path) -> str:
    """SHA-512 of a file in hexadecimal; empty where there is none."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha512").hexdigest()
    except OSError:
        return ""
