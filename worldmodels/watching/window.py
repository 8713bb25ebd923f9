"""The window of ``stage=watch``: the same views as on the page, drawn by pygame."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import pygame

from worldmodels.errors import DisplayError
from worldmodels.system.environment import variables
from worldmodels.watching.session import Driver, Session, View

_GAP, _PANEL, _PICTURE, _LINE = 10, 256, 400, 22
"""Pixels: between parts, side of a panel, side of the environment's picture, height of a line."""
_SIZE = (3 * _PANEL + 4 * _GAP, _PICTURE + _PANEL + _LINE + 4 * _GAP)
_BACK, _TEXT, _QUIET = (20, 20, 27), (236, 236, 244), (169, 169, 187)
_ARROWS = {
    pygame.K_LEFT: "ArrowLeft",
    pygame.K_RIGHT: "ArrowRight",
    pygame.K_UP: "ArrowUp",
    pygame.K_DOWN: "ArrowDown",
}


class Window:
    """Draws views in a window, and passes its keys on.

    Closing it ends the session, as Ctrl-C does.

    Args:
        session: that is shown.
        about: what is shown once, as the page shows it.

    Raises:
        DisplayError: the display refuses a window.
    """

    watching = True
    """Whether anybody would see a view."""

    def __init__(self, session: Session, about: Mapping[str, Any]) -> None:
        self._session, self._about = session, about
        self._pressed: list[str] = []
        self._paused = False
        try:
            with variables(SDL_VIDEODRIVER="x11"):  # SDL would go on without a display
                pygame.display.init()
            self._screen = pygame.display.set_mode(_SIZE)
        except pygame.error as error:
            raise DisplayError(
                f"display=forward: {os.environ.get('DISPLAY')} refuses a window ({error}); check"
                " with `xset q`, or leave display= out for the page"
            ) from error
        pygame.font.init()
        self._font = pygame.font.Font(None, _LINE)
        pygame.display.set_caption(f"{about['name']}: {about['environment']}")

    def attend(self) -> None:
        """Pass on what was pressed since the last call."""
        for event in pygame.event.get():
            if event.type == pygame.QUIT:
                self._session.end()
            elif event.type in (pygame.KEYDOWN, pygame.KEYUP):
                self._key(event)

    def _key(self, event: Any) -> None:
        name = _ARROWS.get(event.key) or pygame.key.name(event.key)
        if name in self._about["controls"]["keys"]:
            self._pressed = [key for key in self._pressed if key != name]
            if event.type == pygame.KEYDOWN:
                self._pressed.append(name)
            self._session.press(self._pressed)
            return
        session = self._session
        asks = {
            "space": lambda: session.pause(not self._paused),
            "s": session.step,
            "r": session.restart,
            "n": session.skip,
            "c": lambda: session.drive(Driver.controller),
            "q": session.end,
            "escape": session.end,
        }
        if event.type == pygame.KEYDOWN and name in asks:
            asks[name]()

    def show(self, view: View) -> None:
        """Draw a view."""
        self._paused = view.paused
        self._screen.fill(_BACK)
        self._draw(view.picture, (_GAP, _GAP), _PICTURE)
        for number, line in enumerate(self._lines(view)):
            self._write(line, (_PICTURE + 2 * _GAP, _GAP + number * _LINE), _TEXT)
        insight = view.insight
        if insight is not None:
            top = _PICTURE + 2 * _GAP
            panels = {
                "agent's input": insight.frame,
                "reconstruction": insight.reconstruction,
                "expected next": insight.expected,
            }
            for number, (name, image) in enumerate(panels.items()):
                left = _GAP + number * (_PANEL + _GAP)
                if image is not None:
                    self._draw(image, (left, top), _PANEL)
                self._write(name, (left, top + _PANEL + _GAP // 2), _QUIET)
        pygame.display.flip()

    def _lines(self, view: View) -> list[str]:
        """The text beside the picture."""
        names = self._about["controls"]["names"]
        lines = [
            self._about["name"],
            self._about["environment"],
            f"seed {view.seed}, step {view.step}",
            f"reward {view.reward:.2f}, return {view.total:.1f}",
            "you drive" if view.driver is Driver.you else "the controller drives",
        ]
        if view.recorded is not None:
            lines.append(f"recorded episodes: {view.recorded}")
        influences = () if view.insight is None else view.insight.influences
        for index, (name, number) in enumerate(zip(names, view.action, strict=True)):
            lines.append(f"{name} {number:+.2f}")
            if influences:
                parts = (f"{one.feature} {one.amount:+.2f}" for one in influences[index][:4])
                lines.append(f"   {', '.join(parts)}")
        lines.append("")
        if view.ended:
            lines.append(f"{view.ended} after {view.step} steps")
        elif view.waiting:
            lines.append("press an arrow key to begin")
        elif view.paused:
            lines.append("paused")
        lines += ["arrows: drive, take over   C: hand back", "space: pause   S: step"]
        return [*lines, "R: restart   N: next episode   Q: quit"]

    def _draw(self, image: np.ndarray, place: tuple[int, int], side: int) -> None:
        """Draw an image in a square, as large as it fits."""
        surface = pygame.surfarray.make_surface(image.swapaxes(0, 1))
        scale = side / max(image.shape[:2])
        size = (round(image.shape[1] * scale), round(image.shape[0] * scale))
        self._screen.blit(pygame.transform.scale(surface, size), place)

    def _write(self, text: str, place: tuple[int, int], colour: tuple[int, int, int]) -> None:
        room = _SIZE[0] - place[0] - _GAP
        while text and self._font.size(text)[0] > room:
            text = text[:-2]
        self._screen.blit(self._font.render(text, True, colour), place)

    def close(self) -> None:
        """Close the window."""
        pygame.display.quit()
