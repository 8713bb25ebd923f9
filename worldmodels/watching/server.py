"""The page of ``stage=watch``: views as Server-Sent Events, and what a person asks for as requests.

Every page that is open shows the same game. The page is served on 127.0.0.1 and takes requests of
its own alone: a page of another site may neither read nor steer, also not where its name is made to
lead to 127.0.0.1 (DNS rebinding).
"""

from __future__ import annotations

import functools
import json
import math
import re
import threading
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from worldmodels.export.server import FileHandler, LocalServer
from worldmodels.export.web import PAGE as PLAY_PAGE
from worldmodels.files.images import png
from worldmodels.reporting.media import PNG, data_url
from worldmodels.watching.session import Driver, Session, View

PAGE = Path(__file__).parent / "page"
SHARED = ("controls.js", "icon.svg", "meters.js", "style.css")
"""The files of the page of ``stage=play`` that this page has too."""
MOST_PAGES = 8
"""Pages that may be open at once."""
_HEARTBEAT = 5.0
"""Seconds without a view after which an empty line tells whether a page is still there."""
_SILENCE = 30.0
"""Seconds after which a page that takes nothing is given up."""
_FAREWELL = 2.0
"""Seconds that the end of the program waits for pages to take the last event."""
_LONGEST_REQUEST = 4096
_HOST = r"(127\.0\.0\.1|localhost)(:\d+)?"


class _Published:
    """A view as the line of an event, which is made when the first page takes it."""

    def __init__(self, view: View) -> None:
        self._view = view

    @functools.cached_property
    def event(self) -> bytes:
        return b"data: %s\n\n" % json.dumps(described(self._view), allow_nan=False).encode()


class Feed:
    """The latest view, for any number of pages; none of them delays the loop that shows it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._latest: _Published | None = None
        self._number = 0
        self._closed = False
        self.pages = 0
        """How many pages take views."""

    @property
    def watching(self) -> bool:
        """Whether a page takes views."""
        return self.pages > 0

    def attend(self) -> None:
        """Do nothing: pages have threads of their own."""

    def show(self, view: View) -> None:
        """Make a view the latest; pages that are slow miss those between."""
        with self._changed:
            self._latest, self._number = _Published(view), self._number + 1
            self._changed.notify_all()

    def close(self) -> None:
        """Let every page know that no further view comes; does not wait long for those that do not
        read."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.pages == 0, _FAREWELL)

    def enter(self) -> int | None:
        """Count a page that begins to take views: the number to begin `next` with; None where there
        are too many pages."""
        with self._changed:
            if self.pages >= MOST_PAGES:
                return None
            self.pages += 1
            return self._number

    def leave(self) -> None:
        """Count a page that has gone."""
        with self._changed:
            self.pages -= 1
            self._changed.notify_all()

    def next(self, after: int) -> tuple[int, bytes]:
        """Wait for a later event than number `after`: its number, and what is sent.

        The number is `after` again, with a comment to send, where none has come for some seconds.
        Once the feed is closed the latest view still comes, if it is later than `after`, and then
        the number -1 with the last event, after which there is nothing.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._number > after or self._closed, _HEARTBEAT)
            if self._number == after or self._latest is None:
                return (-1, b"event: end\ndata:\n\n") if self._closed else (after, b":\n\n")
            number, latest = self._number, self._latest
        return number, latest.event


class WatchServer(LocalServer):
    """Serves the page, its events and its requests.

    Args:
        port: 0 for a free one.

    Raises:
        ConfigError: the port cannot be used.
    """

    def __init__(self, port: int) -> None:
        self.feed = Feed()
        self.about: Mapping[str, Any] = {}
        self.session: Session
        super().__init__(partial(_Handler, directory=str(PAGE)), "watch.port", port)

    def start(self, session: Session, about: Mapping[str, Any]) -> None:
        """Answer requests, in threads of its own.

        Args:
            session: that pages show and steer.
            about: what a page shows once, JSON.
        """
        self.session, self.about = session, about
        threading.Thread(target=self.serve_forever, args=(0.1,), daemon=True).start()

    def stop(self) -> None:
        """Tell the pages, and listen no longer."""
        self.feed.close()
        self.shutdown()
        self.server_close()


class _Handler(FileHandler):
    """Answers one request."""

    server: WatchServer
    timeout = _SILENCE

    def parse_request(self) -> bool:
        return super().parse_request() and self._is_own()

    def do_GET(self) -> None:
        if self.path == "/events":
            self._send_views()
        elif self.path == "/about.json":
            self._answer(HTTPStatus.OK, json.dumps(self.server.about), "application/json")
        else:
            super().do_GET()

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if self.path != "/ask" or self.headers.get_content_type() != "application/json":
            self._answer(HTTPStatus.NOT_FOUND, "post JSON to /ask")
        elif not length.isdecimal() or int(length) > _LONGEST_REQUEST:
            self._answer(HTTPStatus.BAD_REQUEST, f"Content-Length: give 0 to {_LONGEST_REQUEST}")
        else:
            try:
                request = asked(self.server.session, json.loads(self.rfile.read(int(length))))
            except (ValueError, RecursionError) as error:
                self._answer(HTTPStatus.BAD_REQUEST, f"request: {error}")
                return
            self.server.session.post(request)
            self._answer(HTTPStatus.OK, "{}", "application/json")

    def translate_path(self, path: str) -> str:
        name = urlsplit(path).path.removeprefix("/")
        return str(PLAY_PAGE / name) if name in SHARED else super().translate_path(path)

    def list_directory(self, path: Any) -> None:
        """Answer nothing: a folder has no page."""
        self.send_error(HTTPStatus.NOT_FOUND)

    def _is_own(self) -> bool:
        """Whether the request is of this page; answers it where it is not."""
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        # For a picture in another site's page browsers give no origin, but whether the site is
        # another; a link to this page may be anywhere.
        own = self.headers.get("Sec-Fetch-Site") in (None, "none", "same-origin")
        opened = self.headers.get("Sec-Fetch-Dest") == "document" and self.command == "GET"
        # With another port where it comes through a tunnel.
        if re.fullmatch(_HOST, host) and origin in (None, f"http://{host}") and (own or opened):
            return True
        self._answer(HTTPStatus.FORBIDDEN, "only the page of this address may ask")
        return False

    def _answer(self, status: HTTPStatus, text: str, kind: str = "text/plain") -> None:
        content = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _send_views(self) -> None:
        feed, session = self.server.feed, self.server.session
        number = feed.enter()
        if number is None:
            self._answer(
                HTTPStatus.SERVICE_UNAVAILABLE, f"{MOST_PAGES} pages are open; close one first"
            )
            return
        try:
            session.post(session.look)
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            while number >= 0:
                number, content = feed.next(number)
                self.wfile.write(content)
        finally:
            feed.leave()
            # Its keys are not held any more; other pages send theirs again with the next change.
            session.post(partial(session.press, ()))


def asked(session: Session, request: object) -> Callable[[], None]:
    """What a request of the page asks for, as a call of a method of the session.

    ``{"keys": [names]}``, ``{"drive": "you" or "controller"}``, ``{"pause": true or false}``,
    ``{"step": true}``, ``{"restart": true}`` and ``{"skip": true}``.

    Raises:
        ValueError: it is none of these.
    """
    match request:
        case {"keys": [*keys]} if all(isinstance(key, str) for key in keys):
            return partial(session.press, keys)
        case {"drive": str(driver)} if driver in Driver.__members__:
            return partial(session.drive, Driver[driver])
        case {"pause": bool(paused)}:
            return partial(session.pause, paused)
        case {"step": True}:
            return session.step
        case {"restart": True}:
            return session.restart
        case {"skip": True}:
            return session.skip
    raise ValueError("asks for nothing that there is")


def described(view: View) -> dict[str, Any]:
    """A view as JSON: pictures as data URLs, numbers that are not finite as null."""
    found: dict[str, Any] = {
        "seed": view.seed,
        "step": view.step,
        "reward": _number(view.reward),
        "return": _number(view.total),
        "ended": view.ended,
        "driver": view.driver.name,
        "paused": view.paused,
        "waiting": view.waiting,
        "recorded": view.recorded,
        "action": [_number(number) for number in view.action],
        "picture": _picture(view.picture),
    }
    insight = view.insight
    if insight is not None:
        found["frame"] = _picture(insight.frame)
        found["reconstruction"] = _picture(insight.reconstruction)
        found["expected"] = None if insight.expected is None else _picture(insight.expected)
        found["termination"] = _number(insight.termination)
        found["influences"] = [
            [{"feature": one.feature, "amount": _number(one.amount)} for one in action]
            for action in insight.influences
        ]
    return found


def _number(value: float) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None


def _picture(image: np.ndarray) -> str:
    return data_url(png(image, quickly=True), PNG)
