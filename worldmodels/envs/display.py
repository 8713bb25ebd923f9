"""A display for environments that open a window, on machines that have none."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from pyvirtualdisplay.abstractdisplay import XStartError, XStartTimeoutError
from pyvirtualdisplay.display import Display

from worldmodels.errors import DisplayError
from worldmodels.system.environment import variables

DisplayMode = Literal["auto", "xvfb", "forward", "none"]

_MARKER = "WORLDMODELS_DISPLAY"
"""Set while a display is provided, so that child processes share it and start none of theirs."""

_SCREEN = (1280, 1024)
_START_S = 120.0
"""Patience with a server that has started and does not answer: the machine may be busy."""
_SHUTDOWN_S = 5.0
"""How long a server that has no clients left is waited for."""
_X11_HELLO = struct.pack("<BxHHHHxx", ord("l"), 11, 0, 0, 0)
"""Connection setup of the X11 protocol, version 11.0, little-endian, without authorisation."""


@contextmanager
def virtual_display(mode: DisplayMode, needed: bool) -> Iterator[None]:
    """Provide the display that an engine draws on, for this process and its children.

    - "auto" starts Xvfb if a display is needed and ``$DISPLAY`` is unset;
    - "xvfb" starts it in any case;
    - "forward" uses the ``$DISPLAY`` there is, such as that of ``ssh -X``;
    - "none" starts nothing and lets SDL (pygame) draw without a display.

    The server ends with the block, or with the last window that this process leaves open, and also
    when this process is killed. Inside another such block, and in children of one, this does
    nothing.

    Args:
        mode: where the display comes from.
        needed: whether the engine needs one; used by "auto" only.

    Raises:
        DisplayError: Xvfb is missing or does not start, or there is nothing to forward.
    """
    if _MARKER in os.environ:
        yield
    elif mode == "none":
        with variables(SDL_VIDEODRIVER="dummy", **{_MARKER: mode}):
            yield
    elif (missing := missing_display(mode, needed)) is not None:
        raise DisplayError(missing)
    elif mode == "forward":
        with variables(**{_MARKER: mode}):
            yield
    elif mode == "xvfb" or (needed and not os.environ.get("DISPLAY")):
        with _xvfb() as display, variables(DISPLAY=display, **{_MARKER: "xvfb"}):
            yield
    else:
        yield


def missing_display(mode: DisplayMode, needed: bool) -> str | None:
    """Why `virtual_display` could provide no display, in one line; None if it could.

    Args:
        mode: where the display comes from.
        needed: whether the engine needs one.
    """
    here = bool(os.environ.get("DISPLAY"))
    if mode == "forward" and not here:
        return (
            "display=forward: $DISPLAY is not set: "
            "log in with `ssh -X`, or use display=xvfb or display=none"
        )
    started = mode == "xvfb" or (mode == "auto" and needed and not here)
    if started and shutil.which("Xvfb") is None:
        return (
            f"display={mode}: Xvfb is not installed: run `apt-get install xvfb`, or use"
            " display=none if the environment can draw without a display"
        )
    return None


@contextmanager
def _xvfb() -> Iterator[str]:
    """Run an X server without a screen; yields its name, such as ``:99``."""
    server = Display(
        visible=False,
        size=_SCREEN,
        extra_args=["-terminate"],  # end when the last client leaves
        manage_global_env=False,
    )
    try:
        with _signals_blocked():
            server.start()
        client = _connect(server.display)
    except (OSError, XStartError, XStartTimeoutError) as error:
        if server.is_alive():
            server.stop()
        reason = " ".join(str(error).split())
        raise DisplayError(
            f"Xvfb does not start ({reason}): try `Xvfb :99` by hand, or use display=none"
        ) from error
    try:
        yield f":{server.display}"
    finally:
        client.close()
        # Left by its last client the server removes its lock file and socket and ends; `stop`
        # would kill it before that.
        deadline = time.monotonic() + _SHUTDOWN_S
        while server.is_alive() and time.monotonic() < deadline:
            time.sleep(0.01)
        # If it were killed while a window of this process is open, Xlib would end this process. It
        # ends with that window.
        if not server.is_alive():
            server.stop()


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Start a child that signals to the whole process group do not stop.

    Ctrl-C and a scheduler's SIGTERM reach every process at once. The server must outlive them, or
    Xlib ends this process before it has saved its progress. Children inherit the mask.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(
        signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    )
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _connect(display: int) -> socket.socket:
    """Become a client of the server until this process ends.

    The kernel closes the connection however the process ends, and ``-terminate`` does the rest.
    The socket is not inherited by programs that this process runs.
    """
    path = f"/tmp/.X11-unix/X{display}"
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        try:
            client.connect(path)
        except OSError:
            client.connect(f"\0{path}")  # where /tmp/.X11-unix cannot be made (Linux)
        client.settimeout(_START_S)
        client.sendall(_X11_HELLO)
        if client.recv(1) != b"\x01":
            raise ConnectionRefusedError(f"display :{display} refuses clients")
    except OSError:
        client.close()
        raise
    return client
