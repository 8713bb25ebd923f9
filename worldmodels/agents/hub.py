"""Agents and published weights on the Hugging Face Hub: fetched once for each commit.

Only the files of an agent, or one file of weights, are fetched, each of a size that is known and
within its limit. They are kept below the user's cache folder by repository and commit. An agent is
then read as any other folder; ``agent.json``, which has the SHA-256 of its other files, is fetched
last, so that a folder with it is complete.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from worldmodels import extras
from worldmodels.agents.folder import PART_BYTES, PARTS, RECORD
from worldmodels.config import shipped
from worldmodels.config.hubs import SCHEME, hub_address, is_hub
from worldmodels.errors import DISTRIBUTION, ArtifactError, ConfigError
from worldmodels.files.caches import cache_folder
from worldmodels.files.untrusted import MEGABYTE, printable
from worldmodels.version import __version__

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_COMMIT = re.compile(r"[0-9a-f]{40}")


class Fetched(NamedTuple):
    """An agent or a file that was fetched.

    Args:
        path: the folder of the agent, or the file.
        source: address of the repository, with the commit.
    """

    path: Path
    source: str


def find_agent(key: str, name: str) -> Path | None:
    """As `require_agent`, but None where `name` is neither an address nor a folder of an agent."""
    return fetch(key, name).path if is_hub(name) else shipped.find_agent(name)


def require_agent(key: str, name: str) -> Path:
    """The folder of the trained agent that `key` names.

    Args:
        key: that names it, for the message.
        name: folder of an agent or of a controller stage, an agent that is shipped, or an address
            ``hf://owner/name@revision``.

    Raises:
        ConfigError: there is no agent, or the Hub cannot be reached.
        ArtifactError: the repository has no agent, or a file of a wrong size.
    """
    return fetch(key, name).path if is_hub(name) else shipped.require_agent(key, name)


@functools.cache
def fetch(key: str, address: str) -> Fetched:
    """The agent of an address, from the cache folder or the Hub; raises as `require_agent`.

    A revision that is a commit needs no network once it was fetched. Others are resolved once in a
    process, so that all stages of a command use one commit.
    """
    where, repository, revision = f"{key}={address}", *hub_address(key, address)
    place = cache_folder("hub") / repository.replace("/", "--")
    if _pinned(revision) and (place / str(revision) / RECORD).exists():
        return Fetched(place / str(revision), address)
    extras.require(where, "huggingface_hub")
    with _one_line(where, "the folder of an agent"):
        api = _api()
        commit, sizes = _described(where, api, repository, revision)
        folder = place / commit
        if not (folder / RECORD).exists():
            _check_sizes(where, sizes)
            for name in (*PARTS, RECORD):
                if name in sizes:
                    _download(where, api, repository, name, folder, sizes[name])
    return Fetched(folder, f"{SCHEME}{repository}@{commit}")


def fetch_file(
    key: str, address: str, choose: Callable[[Iterable[str]], str], most: int
) -> Fetched:
    """One file of a repository, from the cache folder or the Hub.

    A revision that is a commit needs no network once the file was fetched.

    Args:
        key: that has the address, for messages.
        address: of the repository.
        choose: returns one of the names of the repository's files, or raises an error.
        most: bytes that the file may have.

    Raises:
        ConfigError: there is no repository, or the Hub cannot be reached.
        ArtifactError: the file is of a wrong size.
    """
    where, repository, revision = f"{key}={address}", *hub_address(key, address)
    place = cache_folder("weights") / repository.replace("/", "--")
    kept = place / str(revision)
    if _pinned(revision) and (names := _files(kept)):
        return Fetched(kept / choose(names), address)
    extras.require(where, "huggingface_hub")
    with _one_line(where, "a file or folder"):
        api = _api()
        commit, sizes = _described(where, api, repository, revision)
        name = choose(sizes)
        path = place / commit / name
        if not path.exists():
            _check_bytes(where, name, sizes[name], most)
            _download(where, api, repository, name, path.parent, sizes[name])
    return Fetched(path, f"{SCHEME}{repository}@{commit}")


def _pinned(revision: str | None) -> bool:
    """Whether a revision is a commit."""
    return revision is not None and _COMMIT.fullmatch(revision) is not None


def _files(folder: Path) -> list[str]:
    """The names of the files in a folder; none where there is no folder."""
    return [path.name for path in folder.iterdir() if path.is_file()] if folder.is_dir() else []


def _described(
    where: str, api: HfApi, repository: str, revision: str | None
) -> tuple[str, dict[str, int | None]]:
    """The commit that a revision is, and the sizes of its files in bytes, by name."""
    info = api.model_info(repository, revision=revision, files_metadata=True)
    commit = str(info.sha)
    if not _COMMIT.fullmatch(commit) or (_pinned(revision) and commit != revision):
        raise ConfigError(
            f"{where}: the Hub answers with {printable(commit, 60)}, which is not that commit; give"
            " another revision"
        )
    return commit, {file.rfilename: file.size for file in info.siblings or ()}


def _download(
    where: str, api: HfApi, repository: str, name: str, folder: Path, size: int | None
) -> None:
    """Fetch a file to a folder that is named by the commit; raises `ArtifactError` where the file
    has another size in bytes."""
    # Not into the Hub's cache, which consists of links: agents may not have any.
    fetched = api.hf_hub_download(repository, name, revision=folder.name, local_dir=folder)
    _check_size(where, Path(fetched), size)


def _api() -> HfApi:
    from huggingface_hub import HfApi
    from huggingface_hub.utils import disable_progress_bars, logging

    logging.set_verbosity_error()
    disable_progress_bars()
    # Read here as well, for the package reads it only once, when it is imported.
    endpoint = os.environ.get("HF_ENDPOINT") or None
    return HfApi(endpoint, library_name=DISTRIBUTION, library_version=__version__)


def _check_sizes(where: str, sizes: Mapping[str, int | None]) -> None:
    """Raise an error unless a repository has an agent whose files are not too large."""
    if RECORD not in sizes:
        raise ConfigError(
            f"{where}: the repository has no trained agent ({RECORD} is missing); give one that"
            " stage=export format=huggingface wrote"
        )
    for name in (*PARTS, RECORD):
        _check_bytes(where, name, sizes.get(name, 1), MEGABYTE if name == RECORD else PART_BYTES)


def _check_bytes(where: str, name: str, size: int | None, most: int) -> None:
    """Raise `ArtifactError` for a file of no known size, or of more than `most` bytes."""
    if size is None or size > most:
        raise ArtifactError(
            f"{where}: {name} has {'no size' if size is None else f'{size:,} bytes'}, at most"
            f" {most:,} are fetched; it is something else"
        )


def _check_size(where: str, path: Path, size: int | None) -> None:
    if path.stat().st_size != size:
        path.unlink()
        raise ArtifactError(f"{where}: {path.name} has other bytes than the Hub states; try again")


@contextmanager
def _one_line(where: str, instead: str) -> Iterator[None]:
    """Errors of the Hub and of the network as `ConfigError`.

    Args:
        where: the key and its value.
        instead: what the key takes that needs no network.
    """
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError:
        raise ConfigError(
            f"{where}: its owner grants access on request; ask for it on the Hub, then log in with"
            " hf auth login"
        ) from None
    except errors.RepositoryNotFoundError:
        raise ConfigError(
            f"{where}: there is no such repository, or it is private; check the name, or log in"
            " with hf auth login"
        ) from None
    except errors.RevisionNotFoundError:
        raise ConfigError(
            f"{where}: the repository has no such revision; give one of its commits, tags or"
            " branches"
        ) from None
    # HTTPError: of the package that huggingface_hub sends its requests by.
    except (errors.HTTPError, OSError, ValueError) as error:
        first = error.__cause__ or error
        reason = printable(" ".join(str(first).split()) or type(first).__name__, 200)
        raise ConfigError(
            f"{where}: cannot be fetched ({reason}); connect to a network, or give {instead}"
        ) from error
