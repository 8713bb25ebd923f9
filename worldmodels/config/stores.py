"""The addresses that ``store=`` and ``resume=`` take: a folder, or a bucket of an object store."""

from __future__ import annotations

from worldmodels.errors import ConfigError

MODULES = {"file": None, "s3": "s3fs", "gs": "gcsfs"}
"""Protocol -> the module by which fsspec reaches such a store; None where none is needed.

Only stores that put a whole object under a name or none: the index of a store is replaced so.
"""


def protocol(key: str, url: str) -> str:
    """The protocol of an address; ``file`` of a path.

    Args:
        key: that has it, for the message.
        url: ``s3://bucket/prefix``, ``gs://bucket/prefix``, ``file:///folder`` or a path.

    Raises:
        ConfigError: it is empty, of a protocol that is not among `MODULES`, or names no bucket.
    """
    name, separator, place = url.partition("://")
    if not separator:
        name, place = "file", url
    if name not in MODULES:
        raise ConfigError(
            f"{key}={url}: no protocol {name} here; choose a folder, s3://bucket/prefix or"
            " gs://bucket/prefix"
        )
    if not place.strip("/"):
        what = "folder" if name == "file" else "bucket"
        raise ConfigError(f"{key}={url}: names no {what}; give one for this run alone")
    return name
