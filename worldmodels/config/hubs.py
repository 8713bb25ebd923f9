"""The addresses of repositories on the Hugging Face Hub: ``hf://owner/name`` or with
``@revision``."""

from __future__ import annotations

import re
from typing import NamedTuple

from worldmodels.errors import ConfigError

SCHEME = "hf://"
_NAME = r"\w(?:[\w.-]*\w)?"
_ADDRESS = re.compile(rf"{SCHEME}({_NAME}/{_NAME})(?:@({_NAME}(?:/{_NAME})*))?", re.ASCII)


class HubAddress(NamedTuple):
    """A repository on the Hub.

    Args:
        repository: owner and name.
        revision: commit, tag or branch; None is the newest commit.
    """

    repository: str
    revision: str | None


def is_hub(name: str) -> bool:
    """Whether `name` is an address and not a folder."""
    return name.startswith(SCHEME)


def hub_address(key: str, name: str) -> HubAddress:
    """The parts of an address.

    Args:
        key: that has it, for the message.
        name: the address.

    Raises:
        ConfigError: it has another form.
    """
    found = _ADDRESS.fullmatch(name)
    if found is None or ".." in name or "--" in name:
        raise ConfigError(f"{key}={name}: no address on the Hub; give {SCHEME}owner/name@revision")
    return HubAddress(found[1], found[2])
