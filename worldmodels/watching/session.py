"""The loop of ``stage=watch``: who drives, at the environment's own pace; what viewers ask for."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import numpy as np
import torch

from worldmodels.data.shards import Episode
from worldmodels.export.controls import Controls
from worldmodels.runs.tracking import say
from worldmodels.system import interrupts
from worldmodels.watching.game import Game, Insight
from worldmodels.worlds.collect import EpisodeRecorder

_POLL = 0.1
"""Seconds after which a signal and the viewer's own events are noticed, while time rests."""
_LAST_FRAME = 1.5
"""Seconds that the end of an episode is shown before the next one begins."""


class Driver(Enum):
    """Who chooses the actions."""

    you = "you"
    controller = "controller"


@dataclass(frozen=True)
class View:
    """One moment, as viewers show it: the action is the one that comes next.

    Args:
        seed: of the episode.
        step: steps taken.
        reward: of the last step.
        total: return so far.
        ended: how the episode ended: "terminated", "truncated", or "" while it goes on.
        driver: who chooses the next action.
        paused: time rests.
        waiting: time rests until a person presses a key.
        recorded: episodes that were recorded; None where none is.
        action: the next one, (A,).
        picture: of the environment, uint8 (H, W, 3).
        insight: of the agent's models, if there is an agent.
    """

    seed: int
    step: int
    reward: float
    total: float
    ended: str
    driver: Driver
    paused: bool
    waiting: bool
    recorded: int | None
    action: np.ndarray
    picture: np.ndarray
    insight: Insight | None


class Viewer(Protocol):
    """Shows views and passes on what a person asks for."""

    @property
    def watching(self) -> bool:
        """Whether anybody would see a view."""
        ...

    def show(self, view: View) -> None:
        """Show a view; returns at once, however slow those who watch are."""
        ...

    def attend(self) -> None:
        """Called often, from the thread of the loop, for events of the viewer's own."""
        ...


class Recording(Protocol):
    """Keeps the episodes in which a person drove."""

    @property
    def count(self) -> int:
        """How many there are."""
        ...

    def add(self, episode: Episode, driven: int) -> None:
        """Keep an episode in which a person chose the action of `driven` steps."""
        ...


class Session:
    """Episodes of a game, one after another, until a signal or the last of them.

    The methods that viewers call (`drive` to `look`) belong to the thread of `run`; other threads
    hand them to `post`.

    Args:
        game: that is played.
        controls: keys of a person.
        seeds: of the episodes.
        driver: of the first step.
        agent: whether there is one that can drive.
        recording: what keeps episodes; None for none.
        episodes: number of episodes after which `run` returns; None for no bound.
    """

    def __init__(
        self,
        game: Game,
        controls: Controls,
        seeds: Iterator[int],
        driver: Driver,
        agent: bool,
        recording: Recording | None = None,
        episodes: int | None = None,
    ) -> None:
        self._game, self._controls, self._seeds = game, controls, seeds
        self._driver, self._agent = driver, agent
        self._recording, self._left = recording, episodes
        self._posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._pressed: tuple[str, ...] = ()
        self._tapped: tuple[str, ...] = ()  # pressed since the last step, perhaps released again
        self._paused = self._waiting = self._single = self._changed = self._over = False
        self._due = 0.0

    def post(self, request: Callable[[], None]) -> None:
        """Have the loop call a method of this session; may be called from any thread."""
        self._posted.put(request)

    def drive(self, driver: Driver) -> None:
        """Hand over to another driver; the controller only drives where there is an agent."""
        if driver is Driver.you or self._agent:
            self._driver, self._tapped, self._changed = driver, (), True
            self._waiting = self._waiting and driver is Driver.you

    def press(self, keys: Sequence[str]) -> None:
        """The keys that a person holds now, the latest last. A new one takes over from the
        controller, and acts in one step at least, however soon it is released."""
        keys = tuple(key for key in keys if key in self._controls.keys)
        fresh = tuple(key for key in keys if key not in self._pressed)
        if fresh:
            self._driver, self._waiting = Driver.you, False
        self._tapped += fresh
        self._pressed, self._changed = keys, True

    def pause(self, paused: bool) -> None:
        """Let time rest, or go on."""
        self._paused, self._changed = paused, True

    def step(self) -> None:
        """Take a single step and rest."""
        self._paused, self._single, self._waiting = True, True, False

    def restart(self) -> None:
        """Begin the episode again; the next one, where this one is recorded already."""
        if self._recording is not None and self._game.ended:
            self.skip()
        else:
            self._begin(self._game.seed)

    def skip(self) -> None:
        """Begin the next episode."""
        self._begin(next(self._seeds))

    def end(self) -> None:
        """Let `run` return."""
        self._over = True

    def look(self) -> None:
        """Show the present moment again, to somebody who has just come."""
        self._changed = True

    def run(self, viewer: Viewer) -> None:
        """Play until SIGINT, SIGTERM, or the last episode's end has been shown. Time rests while
        nobody watches.

        Args:
            viewer: that shows the views.

        Raises:
            ArtifactError: an episode could not be recorded.
        """
        self.skip()
        while not (self._over or interrupts.requested()):
            self._obey(resting=self._paused or self._waiting or not viewer.watching)
            viewer.attend()
            if self._is_due(viewer.watching):
                if self._game.ended:
                    if self._is_last():
                        return
                    self.skip()
                else:
                    self._advance()
            if self._changed and viewer.watching:
                self._changed = False
                viewer.show(self._view())

    def _obey(self, resting: bool) -> None:
        """Carry out what was asked for, or wait for it until the next step is due."""
        left = _POLL if resting or self._single else self._due - time.monotonic()
        wait = 0.0 if self._single else min(max(left, 0.0), _POLL)
        try:
            self._posted.get(timeout=wait)()
            while True:
                self._posted.get_nowait()()
        except queue.Empty:
            return

    def _is_due(self, watched: bool) -> bool:
        """Whether a step, or the next episode, comes now."""
        if self._single:
            self._single = False
            return not self._game.ended
        rests = self._paused or self._waiting or not watched
        return (not rests or self._is_last()) and time.monotonic() >= self._due

    def _is_last(self) -> bool:
        """Whether the last episode has ended."""
        return self._game.ended and self._left is not None and self._left <= 0

    def _begin(self, seed: int) -> None:
        self._game.begin(seed)
        self._waiting = self._driver is Driver.you
        self._driven, self._tapped = 0, ()
        self._recorder = None if self._recording is None else EpisodeRecorder()
        if self._recorder is not None:
            self._recorder.begin(self._game.world)
        self._due, self._changed = time.monotonic(), True

    def _advance(self) -> None:
        """Take one step; what was missed of the pace is lost."""
        game, action = self._game, self._action()
        self._tapped = ()
        period = 1 / game.rate
        self._due = max(self._due + period, time.monotonic())
        self._driven += self._driver is Driver.you
        step = game.step(action)
        if self._recorder is not None:
            actions = torch.from_numpy(action)[None]
            self._recorder.record(np.zeros(1, np.int64), actions, step, game.world)
        if game.ended:
            self._finish()
            self._due = time.monotonic() + _LAST_FRAME
        self._changed = True

    def _finish(self) -> None:
        """Report and record the episode that has ended."""
        game = self._game
        if self._left is not None:
            self._left -= 1
        how = "terminated" if game.terminated else "truncated"
        by = f", {self._driven} of them driven by you" if self._driven else ""
        say(f"watch: seed {game.seed}: return {game.total:.2f}, {how} after {game.time} steps{by}")
        if self._recording is None or self._recorder is None or not self._driven:
            return
        episode = self._recorder.episode(0, game.seed)
        if not np.isfinite(episode.rewards).all():
            say(f"watch: seed {game.seed}: has rewards that are not finite: not recorded")
            return
        self._recording.add(episode, self._driven)

    def _action(self) -> np.ndarray:
        """The next action of the present driver, (A,) float32."""
        if self._driver is Driver.you:
            released = tuple(key for key in self._tapped if key not in self._pressed)
            return self._controls.action(released + self._pressed, self._game.actions.bounds)
        return self._game.choose()

    def _view(self) -> View:
        game, action = self._game, self._action()
        ended = "terminated" if game.terminated else "truncated" if game.truncated else ""
        return View(
            seed=game.seed,
            step=game.time,
            reward=game.reward,
            total=game.total,
            ended=ended,
            driver=self._driver,
            paused=self._paused,
            waiting=self._waiting,
            recorded=None if self._recording is None else self._recording.count,
            action=action,
            picture=game.picture.copy(),
            insight=game.insight(action),
        )
