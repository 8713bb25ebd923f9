"""Environment variables that are changed for a while, for the child processes that inherit them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def variables(**values: str) -> Iterator[None]:
    """Set environment variables within the block, and put back what they were."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def kept() -> Iterator[None]:
    """Put back the whole environment at the end of the block, whatever is set in it."""
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)
