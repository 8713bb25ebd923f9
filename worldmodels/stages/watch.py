"""Stage ``watch``: an agent or a person in the environment, live, on a page or in a window."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from worldmodels import seeds
from worldmodels.agents.folder import Agent, read_agent
from worldmodels.config.choices import Display
from worldmodels.errors import ConfigError
from worldmodels.export.controls import Controls, controls_of
from worldmodels.files.untrusted import printable
from worldmodels.runs.tracking import say
from worldmodels.stages.context import Context
from worldmodels.stages.recording import Recording
from worldmodels.watching.game import Game
from worldmodels.watching.server import WatchServer
from worldmodels.watching.session import Driver, Session


def run(context: Context) -> None:
    """Play episodes in the environment until SIGINT, SIGTERM or the last of them.

    Raises:
        ArtifactError: there is no agent, it is damaged, or the recorded episodes are.
        ConfigError: the port cannot be used, or the agent does not fit the environment.
        DisplayError: there is no display for the window.
    """
    torch.set_num_threads(1)  # as workers have: the same episodes, and a batch of one gains by none
    config = context.config.watch
    in_window = context.config.display is Display.forward
    with ExitStack() as stack:
        # First of all, so that a port in use ends the command at once.
        server = None if in_window else WatchServer(config.port)
        if server is not None:
            stack.enter_context(server)
        folder = _agent(context)
        agent = None if folder is None else read_agent(folder)
        game = stack.enter_context(closing(_game(context, folder, agent)))
        recording = stack.enter_context(Recording(context)) if config.record else None
        controls = controls_of(context.config.env.id, game.actions.bounds)
        session = Session(
            game,
            controls,
            _evaluation_seeds(config.first_seed) if recording is None else recording.seeds(),
            Driver.you if recording is not None else Driver.controller,
            agent is not None,
            recording,
            config.episodes,
        )
        about = _about(context, game, controls, agent is not None)
        if server is None:
            # Imported here: it loads SDL.
            from worldmodels.watching.window import Window

            with closing(Window(session, about)) as window:
                session.run(window)
            return
        server.start(session, about)
        say(f"watch: {server.address} (Ctrl-C ends)")
        try:
            session.run(server.feed)
        finally:
            server.stop()


def _agent(context: Context) -> Path | None:
    """The folder of the agent; None where a person records episodes and the run has no agent.

    Raises:
        ArtifactError: it is missing or damaged.
    """
    inputs, config = context.inputs, context.config
    named = inputs.model is not None or context.published is not None
    if config.watch.record and not named and not context.run.has("controller"):
        return None
    folder, _ = inputs.agent()
    return folder


def _game(context: Context, folder: Path | None, agent: Agent | None) -> Game:
    """The environment, seen through the agent's models.

    Raises:
        ArtifactError: a file of a model is damaged.
        ConfigError: the agent was trained in another environment, or this one cannot be made.
    """
    runtime, engine = context.runtime, context.config.watch.engine
    if folder is None or agent is None:
        return Game(runtime.real(engine), None)
    env = context.config.env
    if agent.config.env_id != env.id:
        raise ConfigError(
            f"env.id={env.id}: the agent {folder} was trained for {agent.config.env_id}; choose"
            " that environment"
        )
    return Game(
        runtime.real(
            engine, folder / "vae.safetensors", folder / "rnn.safetensors", agent.config.features
        ),
        agent,
    )


def _about(context: Context, game: Game, controls: Controls, agent: bool) -> dict[str, Any]:
    """What is shown once, as JSON."""
    config = context.config
    return {
        "name": printable(config.model or config.run, 200) if agent else "no agent",
        "run": printable(config.run, 200),
        "environment": printable(config.env.id, 200),
        "engine": context.runtime.env_spec(config.watch.engine).engine,
        "rate": game.rate,
        "agent": agent,
        "controls": asdict(controls),
        "bounds": asdict(game.actions.bounds),
    }


def _evaluation_seeds(first: int) -> Iterator[int]:
    """The seeds of evaluations from `first` on, and from 0 on after the last."""
    return (number % seeds.EVALUATION_END for number in itertools.count(first))
