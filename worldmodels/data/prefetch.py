"""Prefetching of batches in a background thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import TypeVar

from worldmodels.system.spent import spending

T = TypeVar("T")


def prefetch(items: Iterable[T], depth: int = 4) -> Iterator[T]:
    """Yield `items` in order, while a background thread produces the next ones.

    The time that the caller waits for an item is counted as "reading" (`worldmodels.system.spent`).

    The thread ends when the generator is exhausted or closed.

    Args:
        items: produced in the thread.
        depth: items that are produced ahead, at most.

    Raises:
        Exception: whatever `items` raises, at the position of the item that it replaces.
    """
    ahead: queue.Queue[tuple[str, T | BaseException | None]] = queue.Queue(depth)
    stop = threading.Event()

    def put(kind: str, value: T | BaseException | None) -> None:
        while not stop.is_set():
            try:
                ahead.put((kind, value), timeout=0.1)
                return
            except queue.Full:
                continue

    def produce() -> None:
        try:
            for item in items:
                put("item", item)
                if stop.is_set():
                    return
            put("end", None)
        except BaseException as error:
            put("error", error)

    thread = threading.Thread(target=produce, name="prefetch", daemon=True)
    thread.start()
    try:
        while True:
            with spending("reading"):
                kind, value = ahead.get()
            if kind == "end":
                return
            if kind == "error":
                assert isinstance(value, BaseException)
                raise value
            yield value  # type: ignore[misc]
    finally:
        stop.set()
        thread.join()
