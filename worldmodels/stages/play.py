"""Stage ``play``: the learned model of an agent as a game, on a page that this machine serves."""

from __future__ import annotations

from worldmodels.config.choices import Format
from worldmodels.export.web import PageServer
from worldmodels.runs.tracking import say
from worldmodels.stages.context import Context
from worldmodels.stages.export import export
from worldmodels.system import interrupts

_POLL = 0.5
"""Seconds after which a signal is noticed."""


def run(context: Context) -> None:
    """Write the page, and serve it on 127.0.0.1 until SIGINT or SIGTERM.

    Raises:
        ArtifactError: there is no agent, it is damaged, or its models cannot be exported.
        ConfigError: the port cannot be used, or the page's files cannot be had.
    """
    folder = export(context, Format.web)
    interrupts.check()
    with PageServer(folder, context.config.play.port) as server:
        server.timeout = _POLL
        say(f"play: {server.address} (Ctrl-C ends)")
        while not interrupts.requested():
            server.handle_request()
