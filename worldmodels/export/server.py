"""HTTP on 127.0.0.1 for the pages that this program shows in a browser."""

from __future__ import annotations

import sys
from collections.abc import Callable
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from socketserver import BaseRequestHandler
from typing import Any

from worldmodels.errors import ConfigError

_TYPES = {".mjs": "text/javascript", ".js": "text/javascript", ".wasm": "application/wasm"}
"""The files that a browser takes with the right type only, whatever this machine calls them."""


class FileHandler(SimpleHTTPRequestHandler):
    """Serves the files of a folder, without a log line for each request."""

    extensions_map = SimpleHTTPRequestHandler.extensions_map | _TYPES

    def end_headers(self) -> None:
        """Add the headers of every answer."""
        self.send_header("Cache-Control", "no-cache")  # another agent may have the same address
        self.send_header("Content-Security-Policy", "frame-ancestors 'none'")
        self.send_header("X-Content-Type-Options", "nosniff")
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Write nothing."""


class LocalServer(ThreadingHTTPServer):
    """Listens on 127.0.0.1 as soon as it is made.

    Args:
        handler: of its requests.
        key: of the configuration that has the port, for the error.
        port: 0 for a free one.

    Raises:
        ConfigError: the port cannot be used.
    """

    def __init__(self, handler: Callable[..., BaseRequestHandler], key: str, port: int) -> None:
        try:
            super().__init__(("127.0.0.1", port), handler)
        except OSError as error:
            raise ConfigError(
                f"{key}={port}: {error.strerror}; choose another port, or 0 for a free one"
            ) from error

    @property
    def address(self) -> str:
        """What a browser opens."""
        return f"http://127.0.0.1:{self.server_port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print an error, except that of a browser which has left or does not read."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)
