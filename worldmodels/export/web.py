"""The static page that dreams in a browser: for any static host, or served from this machine."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from shutil import copyfile

from worldmodels.export import onnxruntime_web
from worldmodels.export.server import FileHandler, LocalServer
from worldmodels.files.atomic import atomic_path

PAGE = Path(__file__).parent / "page"


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


class PageServer(LocalServer):
    """Serves the files of a folder for ``stage=play``.

    Args:
        folder: with ``index.html``.
        port: 0 for a free one.

    Raises:
        ConfigError: the port cannot be used.
    """

    def __init__(self, folder: Path, port: int) -> None:
        super().__init__(partial(FileHandler, directory=str(folder)), "play.port", port)
