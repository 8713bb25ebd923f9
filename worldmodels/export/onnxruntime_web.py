"""The files of ONNX Runtime Web, which run ONNX graphs in a browser.

They are not part of this package: 14 MB of WebAssembly, which no Python package has. npm downloads
them once from the registry that it is configured for, and they are kept in the user's cache folder.
Version and SHA-512 are fixed here, and compared at each use.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from worldmodels.errors import ConfigError
from worldmodels.files.atomic import atomic_path

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
_ARCHIVE = f"onnxruntime-web-{VERSION}.tgz"
_SECONDS = 600
"""For a download of 33 MB."""


def cache_folder() -> Path:
    """Where the files are kept: below ``$XDG_CACHE_HOME``, by default ``~/.cache``."""
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "worldmodels" / f"onnxruntime-web-{VERSION}"


def kept() -> bool:
    """Whether the files are in the cache folder, as they should be."""
    return all(_sha512(cache_folder() / name) == digest for name, digest in FILES.items())


def fetch() -> Path:
    """The folder of the files, which are downloaded where they are not there.

    An archive that ``npm pack`` wrote elsewhere is used if it is put into the folder.

    Raises:
        ConfigError: npm is missing or cannot download, or the files are not those of this version.
    """
    folder = cache_folder()
    if kept():
        return folder
    by_hand = (
        f"or run npm pack {_PACKAGE} where there is a network and put {_ARCHIVE} into {folder}"
    )
    if (folder / _ARCHIVE).exists():
        _unpack(folder / _ARCHIVE, folder)
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
        _unpack(archive, folder)
    return folder


def _unpack(archive: Path, folder: Path) -> None:
    """Write the files of an archive to the cache folder, after their SHA-512 was compared."""
    try:
        with tarfile.open(archive) as packed:
            members = [packed.extractfile(f"package/dist/{name}") for name in FILES]
            contents = [member.read() for member in members if member is not None]
    except (tarfile.TarError, KeyError, OSError, EOFError) as error:
        raise ConfigError(f"{archive}: is no archive of {_PACKAGE} ({error}); remove it") from error
    for (name, digest), content in zip(FILES.items(), contents, strict=True):
        if hashlib.sha512(content).hexdigest() != digest:
            raise ConfigError(
                f"{archive}: {name} is not that of {_PACKAGE} (SHA-512); get it from another source"
            )
        with atomic_path(folder / name) as temporary:
            temporary.write_bytes(content)


def _sha512(path: Path) -> str:
    """SHA-512 of a file in hexadecimal; empty where there is none."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha512").hexdigest()
    except OSError:
        return ""
