"""Agents on the Hugging Face Hub: fetched once for each commit, then read as any other folder.

Only the files of an agent are fetched, each of a size that is known and within its limit. They are
kept below the user's cache folder by repository and commit; ``agent.json``, which has the SHA-256
of the others, is fetched last, so that a folder with it is complete.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator, Mapping
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
    """An agent that was fetched.

    Args:
        folder: of its files.
        source: its address, with the commit.
    """

    folder: Path
    source: str


def find_agent(key: str, name: str) -> Path | None:
    """As `require_agent`, but None where `name` is no address and no folder of an agent."""
    return fetch(key, name).folder if is_hub(name) else shipped.find_agent(name)


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
    return fetch(key, name).folder if is_hub(name) else shipped.require_agent(key, name)


@functools.cache
def fetch(key: str, address: str) -> Fetched:
    """The agent of an address, from the cache folder or the Hub; raises as `require_agent`.

    A revision that is a commit needs no network once it was fetched. Others are resolved once in a
    process, so that all stages of a command use one commit.
    """
    repository, revision = hub_address(key, address)
    place = cache_folder("hub") / repository.replace("/", "--")
    pinned = revision is not None and _COMMIT.fullmatch(revision) is not None
    if pinned and (place / str(revision) / RECORD).exists():
        return Fetched(place / str(revision), address)
    extras.require(f"{key}={address}", "huggingface_hub")
    with _one_line(f"{key}={address}"):
        api = _api()
        info = api.model_info(repository, revision=revision, files_metadata=True)
        commit, sizes = str(info.sha), {file.rfilename: file.size for file in info.siblings or ()}
        if not _COMMIT.fullmatch(commit) or (pinned and commit != revision):
            raise ConfigError(
                f"{key}={address}: the Hub answers with {printable(commit, 60)}, which is not that"
                " commit; give another revision"
            )
        folder = place / commit
        if not (folder / RECORD).exists():
            _check_sizes(f"{key}={address}", sizes)
            for name in (*PARTS, RECORD):
                if name in sizes:
                    # Not into the Hub's cache, which consists of links: agents may not have any.
                    fetched = api.hf_hub_download(
                        repository, name, revision=commit, local_dir=folder
                    )
                    _check_size(f"{key}={address}", Path(fetched), sizes[name])
    return Fetched(folder, f"{SCHEME}{repository}@{commit}")


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
        size, most = sizes.get(name, 1), MEGABYTE if name == RECORD else PART_BYTES
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
def _one_line(where: str) -> Iterator[None]:
    """Errors of the Hub and of the network as `ConfigError`."""
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
            f"{where}: cannot be fetched ({reason}); connect to a network, or give the folder of an"
            " agent"
        ) from error
