"""A page of stage=watch without a browser: its events and requests."""

import json
import re
import urllib.request
from collections.abc import Callable
from typing import Any

from command import Running
from waiting import HANG_SECONDS, wait_for

View = dict[str, Any]


def address(program: Running) -> str:
    """Where a program that runs serves its page."""

    def found() -> re.Match[str] | None:
        assert program.process.is_alive(), program.errors
        return re.search(r"http://[\d.:]+/", program.output)

    wait_for(found)
    match = found()
    assert match is not None
    return match[0]


class Page:
    """Takes the views of a program, and asks for something.

    Args:
        where: the address that it serves.
    """

    def __init__(self, where: str) -> None:
        self.address = where
        self._events = urllib.request.urlopen(f"{where}events", timeout=HANG_SECONDS)

    def view(self, wanted: Callable[[View], object] = lambda view: True) -> View:
        """The next view that is wanted; fails where the program ends before."""
        for found in iter(self.next, None):
            if wanted(found):
                return found
        raise AssertionError("the program has ended")

    def next(self) -> View | None:
        """The next view; None at the end."""
        for line in self._events:
            name, _, value = line.decode().strip().partition(":")
            if name == "event" and value.strip() == "end":
                return None
            if name == "data" and value.strip():
                view: View = json.loads(value, parse_constant=_refuse)
                return view
        return None

    def ask(self, headers: dict[str, str] | None = None, /, **request: object) -> None:
        """Ask the program for something; raises HTTPError where it refuses."""
        post(f"{self.address}ask", json.dumps(request).encode(), headers or {})

    def close(self) -> None:
        self._events.close()


def post(where: str, content: bytes, headers: dict[str, str]) -> bytes:
    """The answer to a request that posts JSON."""
    kind = {"Content-Type": "application/json"}
    request = urllib.request.Request(where, content, kind | headers)
    with urllib.request.urlopen(request, timeout=HANG_SECONDS) as answer:
        body: bytes = answer.read()
    return body


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is no JSON")
