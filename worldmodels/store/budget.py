"""How much of a core copying may use while a run goes on."""

from __future__ import annotations

import threading
import time


class Budget:
    """Pauses after work, so that this process uses a share of one core on average.

    Args:
        share: of one core, above 0 and at most 1.
        hurry: once it is set, nothing pauses.
    """

    def __init__(self, share: float, hurry: threading.Event) -> None:
        self._share, self._hurry = share, hurry
        self._used = time.process_time()

    def rest(self, least: float = 0.0) -> None:
        """Pause for what was used since the last pause, at least `least` seconds."""
        used = time.process_time() - self._used
        self._hurry.wait(max(least, used * (1 / self._share - 1)))
        self._used = time.process_time()
