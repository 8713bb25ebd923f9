"""The static page that dreams in a browser: for any static host, or served from this machine."""

from __future__ import annotations

import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from shutil import copyfile
from typing import Any

from worldmodels.errors import ConfigError
from worldmodels.export import onnxruntime_web
from worldmodels.files.atomic import atomic_path

PAGE = Path(__file__).parent / "page"
_TYPES = {".mjs": "text/javascript", ".js": "text/javascript", ".wasm": "application/wasm"}
"""The files that a browser takes with the right type only, whatever this machine calls them."""


def write_page(folder: Path) -> list[str]:
    """Write the page and ONNX Runtime Web beside an agent that `write_onnx` wrote.

    Args:
        folder: of the exported agent.

    Returns:
        the names of the files.

    Raises:
        ConfigError: ONNX Runtime Web cannot be had.
    """
    runtime = onnxruntime_web.fetch()
    sources = [*sorted(PAGE.iterdir()), *(runtime / name for name in onnxruntime_web.FILES)]
    for source in sources:
        with atomic_path(folder / source.name) as temporary:
            copyfile(source, temporary)
    return [source.name for source in sources]


class _Handler(SimpleHTTPRequestHandler):
    """Serves files, without a log line for each request."""

    extensions_map = SimpleHTTPRequestHandler.extensions_map | _TYPES

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-cache")  # another agent may have the same address
        self.send_header("X-Content-Type-Options", "nosniff")
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Write nothing."""


class PageServer(ThreadingHTTPServer):
    """Serves the files of a folder on 127.0.0.1; it listens as soon as it is made.

    Args:
        folder: with ``index.html``.
        port: 0 for a free one.

    Raises:
        ConfigError: the port cannot be used.
    """

    def __init__(self, folder: Path, port: int) -> None:
        try:
            super().__init__(("127.0.0.1", port), partial(_Handler, directory=str(folder)))
        except OSError as error:
            raise ConfigError(
                f"play.port={port}: {error.strerror}; choose another port, or 0 for a free one"
            ) from error

    @property
    def address(self) -> str:
        """What a browser opens."""
        return f"http://127.0.0.1:{self.server_port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print an error, except that of a browser which has left."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)
