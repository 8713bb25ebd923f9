"""Messages between two processes over a socket, with an end that never blocks.

A message is its length (8 bytes) and its pickle. Both ends belong to this program: a pickle comes
from no file and no other user.
"""

from __future__ import annotations

import pickle
import socket
import struct
import time
from collections import deque
from multiprocessing.reduction import ForkingPickler
from typing import Any

_BEAT_SECONDS = 0.5
_LENGTH = struct.Struct("!Q")
_PIECE = 2**18
"""Bytes that are read at most at a time from one end, so that the others have their turn."""


def pack(message: Any) -> list[bytes | memoryview]:
    """The parts of a message as they go over the socket: one where a copy costs little."""
    content = memoryview(ForkingPickler.dumps(message))
    length = _LENGTH.pack(len(content))
    return [length + content] if len(content) < _PIECE else [length, content]


class BlockingEnd:
    """The worker's end: it waits for what it has asked for."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        end.setblocking(True)

    def send(self, message: Any) -> None:
        """Send one message. Raises `OSError` when the other end is closed."""
        for part in pack(message):
            self._end.sendall(part)

    def receive(self) -> Any:
        """Wait for one message. Raises `EOFError` when the other end is closed."""
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        return pickle.loads(self._exactly(length))

    def _exactly(self, length: int) -> bytearray:
        content = bytearray(length)
        view = memoryview(content)
        while view:
            got = self._end.recv_into(view)
            if got == 0:
                raise EOFError
            view = view[got:]
        return content


class PollingEnd:
    """The pool's end: it takes what is there and gives what there is room for, and never waits."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        end.setblocking(False)
        self._outgoing: deque[memoryview] = deque()
        self._head = bytearray(_LENGTH.size)
        self._content: bytearray | None = None
        self._rest = memoryview(self._head)

    def fileno(self) -> int:
        """For a selector."""
        return self._end.fileno()

    @property
    def unsent(self) -> bool:
        """Whether there is more to send than there was room for."""
        return bool(self._outgoing)

    def post(self, message: Any) -> None:
        """Send as much of a message as there is room for; `flush` sends the rest."""
        self._outgoing.extend(memoryview(part) for part in pack(message))
        self.flush()

    def flush(self) -> bool:
        """Send what there is room for; whether any of it went. A closed end takes nothing."""
        moved = False
        try:
            while self._outgoing:
                sent = self._end.send(self._outgoing[0])
                moved = True
                self._outgoing[0] = self._outgoing[0][sent:]
                if not self._outgoing[0]:
                    self._outgoing.popleft()
        except BlockingIOError:
            pass
        except (BrokenPipeError, ConnectionResetError):
            self._outgoing.clear()  # the worker is dead, which `take` tells
        return moved

    def take(self) -> list[Any]:
        """The messages that are complete. Raises `EOFError` when the other end is closed."""
        messages: list[Any] = []
        budget = _PIECE
        try:
            while budget > 0:
                got = self._end.recv_into(self._rest, min(len(self._rest), budget))
                if got == 0:
                    if messages:  # what it said last comes first
                        break
                    raise EOFError
                budget -= got
                self._rest = self._rest[got:]
                if not self._rest and self._content is None:
                    (length,) = _LENGTH.unpack(self._head)
                    self._content = bytearray(length)
                    self._rest = memoryview(self._content)
                elif not self._rest and self._content is not None:
                    messages.append(pickle.loads(self._content))
                    self._content, self._rest = None, memoryview(self._head)
        except BlockingIOError:
            pass
        except ConnectionResetError:
            if not messages:
                raise EOFError from None
        return messages

    def close(self) -> None:
        """Close this end, which the other one notices."""
        self._end.close()


class Reporter:
    """Sends a worker's steps, at most once in a while.

    Args:
        end: of the worker.
    """

    def __init__(self, end: BlockingEnd) -> None:
        self._end = end
        self._steps, self._sent = 0, time.monotonic()

    def beat(self, steps: int) -> None:
        """Count `steps`; send them if the last message was a while ago."""
        self._steps += steps
        if time.monotonic() - self._sent > _BEAT_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Send the steps counted since the last message."""
        self._end.send(("beat", self._steps))
        self._steps, self._sent = 0, time.monotonic()
