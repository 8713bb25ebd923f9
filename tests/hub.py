"""A server that speaks the part of the Hugging Face Hub's protocol by which agents are fetched."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "a1" * 20


@dataclass
class Hub:
    """What the server has.

    Args:
        repositories: owner and name -> folder of its files at `COMMIT`, which is also its ``main``.
        sizes: that it states in place of the true ones.
        address: of the server.
        sent: names of the files that were sent, in order.
    """

    repositories: dict[str, Path] = field(default_factory=dict)
    sizes: dict[str, int | None] = field(default_factory=dict)
    address: str = ""
    sent: list[str] = field(default_factory=list)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, hub: Hub, *arguments: Any) -> None:
        self.hub = hub
        super().__init__(*arguments)

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        parts = unquote(urlsplit(self.path).path).strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            self._describe("/".join(parts[2:4]), parts[5] if len(parts) > 5 else "main")
        elif "resolve" in parts[2:3]:
            self._send_file("/".join(parts[:2]), parts[3], "/".join(parts[4:]))
        else:
            self._answer(404, b"{}", {})

    def _found(self, repository: str, revision: str) -> Path | None:
        folder = self.hub.repositories.get(repository)
        if folder is not None and revision in (COMMIT, "main"):
            return folder
        code = "RepoNotFound" if folder is None else "RevisionNotFound"
        self._answer(404, b"{}", {"X-Error-Code": code})
        return None

    def _describe(self, repository: str, revision: str) -> None:
        folder = self._found(repository, revision)
        if folder is None:
            return
        files = [
            {"rfilename": path.name, "size": self.hub.sizes.get(path.name, path.stat().st_size)}
            for path in sorted(folder.iterdir())
        ]
        described = {"id": repository, "sha": COMMIT, "siblings": files}
        self._answer(200, json.dumps(described).encode(), {"Content-Type": "application/json"})

    def _send_file(self, repository: str, revision: str, name: str) -> None:
        folder = self._found(repository, revision)
        if folder is None:
            return
        content = (folder / name).read_bytes()
        if self.command == "GET":
            self.hub.sent.append(name)
        etag = hashlib.sha256(content).hexdigest()
        self._answer(200, content, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT})

    def _answer(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)


@contextmanager
def serving() -> Iterator[Hub]:
    """A server on this machine."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, hub))
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
