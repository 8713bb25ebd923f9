"""Reading ahead in a thread, while the consumer computes."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def prefetch(items: Iterable[T], depth: int = 4) -> Iterator[T]:
    """Yield `items` in order, up to `depth` of them made ahead in a background thread.

    An exception of the source is raised at the consumer, in its place. The thread ends when the
    consumer does, early or not.
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
